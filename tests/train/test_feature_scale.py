"""Training on features of unit size, and drafters that are served without."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from tiny_pair import tiny_drafter

from dflash_sglang.drafter import load_drafter
from dflash_sglang.train.data import BatchSchedule, CaptureDataset, all_anchors, collate
from dflash_sglang.train.feature_scale import feature_scale, fold, unfold
from dflash_sglang.train.heldout import greedy_samples
from dflash_sglang.train.objective import DraftObjective
from dflash_sglang.train.options import TrainOptions
from dflash_sglang.train.target import Target
from dflash_sglang.train.trainer import Trainer


def test_scaled_response_features_have_unit_size(dataset: CaptureDataset):
    scale = feature_scale(dataset)
    responses = [s.features[s.response_start :].float() for s in (dataset[i] for i in range(24))]
    scaled = torch.cat(responses) * scale
    torch.testing.assert_close(scaled.square().mean(dim=0), torch.ones_like(scale))


def test_a_folded_drafter_says_the_same_without_the_scale(target: Target, dataset: CaptureDataset):
    scale = feature_scale(dataset)
    frozen = (target.embedding_weight, target.head_weight)
    scaled = DraftObjective(tiny_drafter(), *frozen, feature_scale=scale)
    served = DraftObjective(scaled.served_drafter(), *frozen)
    batch = BatchSchedule(dataset, 4, 4, seed=0)[0]
    torch.testing.assert_close(
        scaled.block_states(batch).hidden, served.block_states(batch).hidden, rtol=1e-4, atol=1e-5
    )


def test_unfolding_undoes_folding(dataset: CaptureDataset):
    scale, drafter = feature_scale(dataset), tiny_drafter()
    changed = copy.deepcopy(drafter)
    fold(changed, scale)
    assert not torch.equal(changed.fc.weight, drafter.fc.weight)
    unfold(changed, scale)
    torch.testing.assert_close(changed.fc.weight, drafter.fc.weight)


def test_a_checkpoint_of_scaled_training_reads_plain_features(
    target: Target, dataset: CaptureDataset, tmp_path: Path
):
    frozen = (target.embedding_weight, target.head_weight)
    scaled = DraftObjective(tiny_drafter(), *frozen, feature_scale=feature_scale(dataset))
    options = TrainOptions(
        steps=2, sequences=4, anchors=4, warmup_steps=1, save_every=2, scale_features=True
    )
    Trainer(scaled, dataset, options, tmp_path, greedy_samples(dataset, 4)).run()
    served = DraftObjective(load_drafter(tmp_path / "step-000002", dtype=torch.float32), *frozen)
    sample = dataset[0]
    batch = collate([sample], [all_anchors(sample)])
    torch.testing.assert_close(
        scaled.block_states(batch).hidden, served.block_states(batch).hidden, rtol=0.1, atol=0.1
    )
