"""Training losses: decayed cross-entropy of the block, cross-entropy of the candidate selector."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from dflash_sglang.drafter import CandidateSelector

IGNORED = -100
"""Label of a position that has none: behind the text's end, or outside the trained rows."""

# gamma_w of the published recipe (DFlash, arXiv 2602.06036): block size -> decay length.
_DECAY_LENGTHS = ((8, 4.0), (10, 5.0), (16, 7.0))


def decay_length(block_size: int) -> float:
    """gamma_w: 4 up to B = 8, 5 at 10, 7 at 16; linear between these, constant beyond 16."""
    below, value = _DECAY_LENGTHS[0]
    for size, length in _DECAY_LENGTHS:
        if block_size <= size:
            share = 1.0 if size == below else (block_size - below) / (size - below)
            return length if block_size <= below else value + share * (length - value)
        below, value = size, length
    return value


def position_weights(block_size: int) -> Tensor:
    """w_k = exp(-(k - 1) / gamma_w), k = 1 .. B-1, [B - 1] fp32: an early miss voids the rest."""
    gamma = decay_length(block_size)
    return torch.tensor([math.exp(-k / gamma) for k in range(block_size - 1)])


class SelectorLoss(NamedTuple):
    """Selector loss and how much of it is real."""

    loss: Tensor  # scalar
    coverage: Tensor  # scalar, weighted share of labels that stood among the K candidates unaided


def decayed_cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean of -log P(label).

    logits [n, g, V] fp32, labels [n, g] int64 (IGNORED where there is none), weights [g] -> scalar;
    0 when no position has a label.
    """
    losses = F.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), reduction="none", ignore_index=IGNORED
    ).view_as(labels)
    return _weighted_mean(losses, labels, weights)


def inject_truth(candidates: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Put the label among the candidates, in place of the last one where the K best miss it.

    candidates [n, g, K] int64 best first, labels [n, g] -> (candidates [n, g, K], the label's rank
    [n, g] int64). Labels that are IGNORED change nothing and get rank 0.
    """
    hits = candidates == labels[..., None]  # [n, g, K]
    found = hits.any(dim=-1)
    last = candidates.shape[-1] - 1
    rank = torch.where(found, hits.int().argmax(dim=-1), last)
    replaced = torch.where(found | (labels == IGNORED), candidates[..., last], labels)
    injected = torch.cat([candidates[..., :last], replaced[..., None]], dim=-1)
    return injected, rank.masked_fill(labels == IGNORED, 0)


def true_row_scores(
    selector: CandidateSelector,
    hidden: Tensor,
    predecessors: Tensor,
    candidates: Tensor,
    unary: Tensor,
) -> Tensor:
    """The row of `CandidateSelector.pair_scores` of each position's true predecessor.

    hidden [n, g, D], predecessors [n, g] int64, candidates and unary [n, g, K] -> [n, g, K] fp32.
    """
    gate = selector.hidden_projection(hidden)  # [n, g, r]
    left = F.embedding(predecessors, selector.predecessor_codebook) * gate
    right = F.embedding(candidates, selector.successor_codebook)  # [n, g, K, r]
    return unary + (right @ left[..., None])[..., 0].float()


def selector_cross_entropy(
    scores: Tensor, rank: Tensor, labels: Tensor, weights: Tensor, covered: Tensor
) -> SelectorLoss:
    """Cross-entropy over the K candidates given the true predecessor.

    Args:
        scores: [n, g, K] fp32, pair scores of the row that belongs to the true predecessor.
        rank: [n, g] int64, index of the true token among the candidates (see inject_truth).
        labels: [n, g], only whether they are IGNORED matters.
        weights: [g]. covered: [n, g] bool, the label needed no injection.
    """
    losses = F.cross_entropy(scores.flatten(0, 1), rank.flatten(), reduction="none").view_as(labels)
    return SelectorLoss(
        _weighted_mean(losses, labels, weights), _weighted_mean(covered.float(), labels, weights)
    )


def _weighted_mean(values: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """values, labels [n, g], weights [g]; positions without a label count for nothing."""
    mass = weights.to(values) * (labels != IGNORED)  # [n, g]
    return (values * mass).sum() / mass.sum().clamp_min(torch.finfo(values.dtype).tiny)
