"""The candidate lattice: what the drafter believes about every edge between two positions."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class LatticeError(ValueError):
    """Tensors that do not form a lattice, or a request that the lattice cannot satisfy."""


class Lattice(NamedTuple):
    """K candidates for each of the g drafted positions and the value of every edge between them.

    ``log_probs[b, t, a, c]`` is log q(candidate c at position t | candidate a at position t - 1),
    always <= 0. Position 0 follows the anchor, so its K rows are identical. An edge of ``-inf`` is
    never taken. The candidates of one position are distinct tokens.
    """

    tokens: Tensor  # [bs, g, K] int64
    log_probs: Tensor  # [bs, g, K, K] float32


def build_lattice(
    scores: Tensor,
    candidates: Tensor,
    temperatures: Tensor | None = None,
    entropy_weight: float = 0.0,
) -> Lattice:
    """Normalise edge scores over the K candidates of each position.

    Args:
        scores: the selector's pair scores ``[bs, g, K, K]`` (predecessor, candidate), or, for a
            drafter without a selector, the candidates' unary logits ``[bs, g, K]``; any dtype.
        candidates: token ids ``[bs, g, K]`` int64, best unary logit first.
        temperatures: ``[bs]`` float. A greedy request (0) is normalised at temperature 1, as are
            all requests without this argument: its tree is still ranked by how likely each
            candidate is to be the target's argmax.
        entropy_weight: lambda >= 0 of score(path) = sum log q + lambda * sum H(q(. | predecessor)).
            It favours branching where the drafter is unsure. Edges are cut off at 0, because a
            value that grows along a path would select children without their parents.

    Returns:
        A ``Lattice`` with float32 values.

    Raises:
        LatticeError: the shapes do not fit each other, or lambda is negative.

    Source: DFlash 2 candidate selector, S_t(a, b) = U_t(b) + <A[a] * (P h_t), B[b]>.
    """
    bs, g, K = _checked_shape(scores, candidates)
    scores = scores.float()
    if scores.dim() == 3:
        scores = scores.unsqueeze(2)  # [bs, g, 1, K]: every predecessor sees the same candidates
    if temperatures is not None:
        scores = scores / draft_temperatures(temperatures).view(bs, 1, 1, 1)

    log_probs = with_entropy(scores.log_softmax(dim=-1), entropy_weight)
    return Lattice(candidates, log_probs.expand(bs, g, K, K))


def with_entropy(log_probs: Tensor, weight: float) -> Tensor:
    """Lift the edges of unsure predecessors by weight * entropy of their row, but not above 0."""
    if weight < 0:
        raise LatticeError(f"entropy_weight must be at least 0, got {weight}")
    if weight == 0:
        return log_probs
    row_entropy = -(log_probs.exp() * log_probs).nansum(-1, keepdim=True)  # 0 log 0 = 0
    return (log_probs + weight * row_entropy).clamp(max=0.0)


def draft_temperatures(temperatures: Tensor) -> Tensor:
    """What draft scores are divided by, [bs] float32: the temperature, or 1 for greedy (0)."""
    temperatures = temperatures.float()
    return temperatures.masked_fill(temperatures <= 0, 1.0)


def _checked_shape(scores: Tensor, candidates: Tensor) -> tuple[int, int, int]:
    if candidates.dim() != 3:
        raise LatticeError(f"candidates must be [bs, g, K], got {list(candidates.shape)}")
    bs, g, K = candidates.shape
    if tuple(scores.shape) not in ((bs, g, K), (bs, g, K, K)):
        raise LatticeError(
            f"scores must be {[bs, g, K]} (unary) or {[bs, g, K, K]} (pairs) "
            f"to fit the candidates, got {list(scores.shape)}"
        )
    return bs, g, K
