"""Decay, masking and the selector's loss."""

from __future__ import annotations

import math

import pytest
import torch
from tiny_pair import tiny_drafter
from torch.nn import functional as F

from dflash_sglang.train.losses import (
    IGNORED,
    decay_length,
    decayed_cross_entropy,
    inject_truth,
    position_weights,
    selector_cross_entropy,
    true_row_scores,
)


@pytest.mark.parametrize(
    ("block_size", "expected"),
    [(4, 4.0), (8, 4.0), (9, 4.5), (10, 5.0), (13, 6.0), (16, 7.0), (32, 7.0)],
)
def test_decay_length_is_the_published_one_and_linear_between(block_size: int, expected: float):
    assert decay_length(block_size) == pytest.approx(expected)


def test_weights_fall_from_one():
    weights = position_weights(8)
    assert weights.shape == (7,)
    assert weights[0] == 1.0
    assert weights[6].item() == pytest.approx(math.exp(-6 / 4))


def test_decayed_cross_entropy_is_the_weighted_mean_over_labelled_positions():
    torch.manual_seed(0)
    logits = torch.randn(2, 3, 5)
    labels = torch.tensor([[1, 2, IGNORED], [4, IGNORED, IGNORED]])
    weights = torch.tensor([1.0, 0.5, 0.25])
    nll = -logits.log_softmax(-1)
    expected = (nll[0, 0, 1] + 0.5 * nll[0, 1, 2] + nll[1, 0, 4]) / 2.5
    torch.testing.assert_close(decayed_cross_entropy(logits, labels, weights), expected)


def test_nothing_labelled_costs_nothing():
    labels = torch.full((1, 2), IGNORED)
    assert decayed_cross_entropy(torch.randn(1, 2, 5), labels, torch.ones(2)) == 0


def test_a_missed_truth_takes_the_last_candidates_place():
    candidates = torch.tensor([[[7, 3, 5], [7, 3, 5], [7, 3, 5]]])
    labels = torch.tensor([[3, 9, IGNORED]])
    injected, rank = inject_truth(candidates, labels)
    assert injected.tolist() == [[[7, 3, 5], [7, 3, 9], [7, 3, 5]]]
    assert rank.tolist() == [[1, 2, 0]]


def test_coverage_counts_unaided_hits_by_weight():
    labels = torch.tensor([[3, 9, IGNORED]])
    covered = torch.tensor([[True, False, True]])
    rank, weights = torch.tensor([[0, 1, 0]]), torch.tensor([1.0, 0.5, 0.25])
    scores = torch.randn(1, 3, 2)
    loss, coverage = selector_cross_entropy(scores, rank, labels, weights, covered)
    assert coverage.item() == pytest.approx(1 / 1.5)
    expected = F.cross_entropy(scores[0, :1], rank[0, :1]) + 0.5 * F.cross_entropy(
        scores[0, 1:2], rank[0, 1:2]
    )
    torch.testing.assert_close(loss, expected / 1.5)


def test_true_row_is_the_pair_scores_row_of_the_true_predecessor():
    torch.manual_seed(0)
    drafter = tiny_drafter()
    assert drafter.selector is not None
    hidden = torch.randn(2, 3, 32)
    candidates = torch.stack([torch.randperm(60)[:6] for _ in range(6)]).view(2, 3, 6)
    unary, anchors = torch.randn(2, 3, 6), torch.tensor([4, 5])
    pairs = drafter.selector.pair_scores(hidden, anchors, candidates, unary)
    taken = torch.tensor([[2, 5], [0, 3]])  # candidate of positions 0 and 1 that came true
    truth = candidates[:, :2].gather(-1, taken[..., None])[..., 0]
    predecessors = torch.cat([anchors[:, None], truth], dim=1)
    rows = true_row_scores(drafter.selector, hidden, predecessors, candidates, unary)
    torch.testing.assert_close(rows[:, 0], pairs[:, 0, 0])
    for b in range(2):
        for t in (1, 2):
            torch.testing.assert_close(rows[b, t], pairs[b, t, taken[b, t - 1]])
