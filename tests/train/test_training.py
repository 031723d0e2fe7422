"""The loop: learning, resuming, refusing."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState
from tiny_pair import MASK, tiny_drafter

from dflash_sglang.drafter import load_drafter
from dflash_sglang.train import trainer
from dflash_sglang.train.data import Batch, CaptureDataset
from dflash_sglang.train.errors import TrainingError
from dflash_sglang.train.head_rows import HeadRows, RowSampler
from dflash_sglang.train.heldout import AcceptLength, greedy_samples, replay_accept_length
from dflash_sglang.train.losses import IGNORED
from dflash_sglang.train.objective import DraftObjective, block_labels
from dflash_sglang.train.options import TrainOptions
from dflash_sglang.train.schedule import learning_rate
from dflash_sglang.train.target import Target
from dflash_sglang.train.trainer import Trainer
from dflash_sglang.train.tree_shape import TreeShape

OPTIONS = TrainOptions(
    steps=8, sequences=4, anchors=4, warmup_steps=2, evaluate_every=4, save_every=4, tree_nodes=6
)


def make_trainer(target: Target, dataset: CaptureDataset, out: Path, **changes) -> Trainer:
    objective = DraftObjective(tiny_drafter(), target.embedding_weight, target.head_weight)
    options = TrainOptions(**({**OPTIONS.__dict__} | changes))
    return Trainer(objective, dataset, options, out, greedy_samples(dataset, 4))


def test_training_learns_the_text(target: Target, dataset: CaptureDataset, tmp_path: Path):
    trainer = make_trainer(
        target, dataset, tmp_path, steps=60, evaluate_every=20, save_every=60, learning_rate=1e-2
    )
    history = trainer.run().history
    assert [entry["step"] for entry in history] == [20, 40, 60]
    assert history[-1]["unary"] < history[0]["unary"] - 0.5
    assert history[-1]["accept_chain"] > history[0]["accept_chain"]
    assert history[-1]["accept_tree6"] >= history[-1]["accept_chain"] > 1.0


def test_held_out_text_is_replayed_in_the_precision_of_training(
    target: Target, dataset: CaptureDataset, tmp_path: Path, monkeypatch
):
    in_bfloat16 = []

    def replay(*args) -> dict[str, AcceptLength]:
        in_bfloat16.append(torch.is_autocast_enabled("cpu"))
        return {}

    monkeypatch.setattr(trainer, "replay_accept_length", replay)
    for precision in ("fp32", "bf16"):
        AcceleratorState._reset_state()  # a process has one precision
        make_trainer(target, dataset, tmp_path / precision, steps=4, precision=precision).run()
    AcceleratorState._reset_state()
    assert in_bfloat16 == [False, True]


def test_resumed_weights_equal_uninterrupted_ones_bit_for_bit(
    target: Target, dataset: CaptureDataset, tmp_path: Path
):
    changes = {"gradient_accumulation": 2, "head_rows": 30, "sampled_rows": 5}
    whole = make_trainer(target, dataset, tmp_path / "whole", **changes)
    whole.run()
    broken = make_trainer(target, dataset, tmp_path / "parts", **changes)
    assert broken.run(stop_after=5).step == 5
    resumed = make_trainer(target, dataset, tmp_path / "parts", **changes)
    assert resumed.run(resume=True).step == 8
    for (name, a), b in zip(
        whole.drafter.named_parameters(), resumed.drafter.parameters(), strict=True
    ):
        assert torch.equal(a, b), name


def test_a_run_is_not_continued_with_other_options(
    target: Target, dataset: CaptureDataset, tmp_path: Path
):
    make_trainer(target, dataset, tmp_path).run(stop_after=2)
    with pytest.raises(TrainingError, match="holds a run already"):
        make_trainer(target, dataset, tmp_path).run()
    with pytest.raises(TrainingError, match="learning_rate"):
        make_trainer(target, dataset, tmp_path, learning_rate=1.0).run(resume=True)


def test_a_checkpoint_loads_and_says_where_it_comes_from(
    target: Target, dataset: CaptureDataset, tmp_path: Path
):
    trainer = make_trainer(target, dataset, tmp_path)
    trainer.run()
    loaded = load_drafter(tmp_path / "step-000008")
    assert loaded.config == trainer.drafter.config
    for stored, trained in zip(loaded.parameters(), trainer.drafter.parameters(), strict=True):
        assert torch.equal(stored, trained.bfloat16())
    provenance = json.loads((tmp_path / "step-000008" / "provenance.json").read_text())
    assert provenance["data"] == dataset.manifest.fingerprint()
    assert provenance["options"]["seed"] == 0
    assert {"command", "versions", "git_revision", "step"} <= provenance.keys()
    assert (tmp_path / "curve.png").stat().st_size > 0
    assert [e["step"] for e in json.loads((tmp_path / "curve.json").read_text())] == [4, 8]


def test_the_target_stays_frozen(target: Target, dataset: CaptureDataset, tmp_path: Path):
    before = target.embedding_weight.clone()
    make_trainer(target, dataset, tmp_path).run(stop_after=2)
    assert torch.equal(before, target.embedding_weight)


def test_replay_equals_hopping_by_hand(objective: DraftObjective, dataset: CaptureDataset):
    """Chain accept lengths against a loop that drafts one block at a time with the plain argmax."""
    samples = greedy_samples(dataset, 3)
    replayed = replay_accept_length(objective, samples, [TreeShape.chain(4)])["chain"]
    tokens = steps = 0
    for sample in samples:
        place, last = sample.response_start, len(sample.tokens) - 1
        while place < last:
            draft = _greedy_chain(objective, sample, place)
            truth = sample.tokens[place + 1 :].tolist()
            hits = 0
            while hits < min(3, len(truth)) and draft[hits] == truth[hits]:
                hits += 1
            produced = min(hits + 1, last - place)
            place, tokens, steps = place + produced, tokens + produced, steps + 1
    assert (replayed.tokens, replayed.steps) == (tokens, steps)


def _greedy_chain(objective: DraftObjective, sample, anchor: int) -> list[int]:
    batch = Batch(
        sample.tokens[None],
        sample.features[None],
        torch.tensor([len(sample.tokens)]),
        torch.tensor([[anchor]]),
    )
    with torch.no_grad():
        states = objective.block_states(batch)
        unary, candidates = objective.full_logits(states.hidden).topk(6, dim=-1)
        assert objective.drafter.selector is not None
        pairs = objective.drafter.selector.pair_scores(
            states.hidden, states.anchors, candidates, unary
        )
    chain, row = [], 0
    for position in range(3):
        row = int(pairs[0, position, row].argmax())
        chain.append(int(candidates[0, position, row]))
    return chain


def test_labels_are_the_text_behind_the_anchor():
    batch = Batch(
        torch.tensor([[10, 11, 12, 13, 14, 0, 0]]),
        torch.zeros(1, 7, 1),
        torch.tensor([5]),
        torch.tensor([[1, 3, -1]]),
    )
    expected = [[12, 13, 14], [14, IGNORED, IGNORED], [IGNORED] * 3]
    assert block_labels(batch, 3).tolist() == expected


def test_frequent_rows_cover_the_labels_and_keep_the_denominator_unbiased():
    counts = torch.tensor([5, 0, 9, 1, 0, 0, 0, 0])
    sampler = RowSampler(counts, frequent=2, sampled=3, seed=0)
    assert sampler.label_share == pytest.approx(14 / 15)
    rows = sampler.rows(0, torch.device("cpu"))
    assert rows.ids is not None and rows.correction is not None
    assert rows.ids[:2].tolist() == [2, 0]
    assert set(rows.ids[2:].tolist()) <= {1, 3, 4, 5, 6, 7}
    assert rows.labels(torch.tensor([0, 2, 3, IGNORED])).tolist() == [1, 0, IGNORED, IGNORED]
    torch.manual_seed(0)
    logits = torch.randn(8)
    draws = [sampler.rows(i, torch.device("cpu")) for i in range(4000)]
    sums = [(logits[r.ids] + r.correction).exp().sum() for r in draws]
    assert torch.stack(sums).mean().item() == pytest.approx(logits.exp().sum().item(), rel=0.03)


def test_all_rows_and_full_vocabulary_give_the_same_loss(
    objective: DraftObjective, dataset: CaptureDataset
):
    from dflash_sglang.train.data import BatchSchedule

    batch = BatchSchedule(dataset, 4, 4, seed=0)[0]
    full = objective(batch, HeadRows(None, None, None))
    order = torch.randperm(60)
    row_of = torch.empty(60, dtype=torch.int64)
    row_of[order] = torch.arange(60)
    permuted = objective(batch, HeadRows(order, torch.zeros(60), row_of))
    for a, b in zip(full, permuted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_a_used_mask_token_and_foreign_taps_are_refused(
    target: Target, dataset: CaptureDataset, tmp_path: Path
):
    used = int(dataset[0].tokens[-1])
    for drafter, complaint in (
        (tiny_drafter(tap_layer_ids=(1, 4)), r"tap layers \[1, 4\], the captured data \[1, 3, 5\]"),
        (_with_mask(used), f"mask token {used} occurs"),
    ):
        objective = DraftObjective(drafter, target.embedding_weight, target.head_weight)
        with pytest.raises(TrainingError, match=complaint):
            Trainer(objective, dataset, OPTIONS, tmp_path)


def _with_mask(token: int):
    from dataclasses import replace

    from dflash_sglang.drafter import DFlash2Drafter

    assert token != MASK
    return DFlash2Drafter(replace(tiny_drafter().config, mask_token_id=token))


def test_rate_rises_then_falls_to_zero():
    rates = [learning_rate(step, 1.0, 4, 20) for step in range(21)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert all(a >= b for a, b in itertools.pairwise(rates[3:]))
    assert rates[20] == pytest.approx(0.0)


def test_impossible_options_are_refused():
    with pytest.raises(TrainingError, match="anchors must be at least 1, got 0"):
        TrainOptions(steps=1, anchors=0)
    with pytest.raises(TrainingError, match=r"50 \+ 20 head rows asked of a vocabulary of 60"):
        RowSampler(torch.ones(60, dtype=torch.int64), 50, 20, 0)
