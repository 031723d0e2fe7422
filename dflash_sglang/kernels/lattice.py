"""Edges of the candidate lattice: pair scores of the selector, normalised or not."""

from __future__ import annotations

import torch
from torch import Tensor

from dflash_sglang.kernels import library


def pair_scores(
    gates: Tensor,
    anchors: Tensor,
    candidates: Tensor,
    unary: Tensor,
    predecessor_codebook: Tensor,
    successor_codebook: Tensor,
    temperatures: Tensor | None = None,
) -> Tensor:
    """``unary[c] + <A[a] * gate, B[c]>`` for candidate c at position t after a at position t - 1.

    Args:
        gates: ``[bs, g, r]`` hidden states after the selector's projection, P h.
        anchors: ``[bs]`` int64, the predecessors of position 0.
        candidates: ``[bs, g, K]`` int64.
        unary: ``[bs, g, K]`` float32, the candidates' logits.
        predecessor_codebook: A, ``[V, r]``, contiguous, dtype of the gates.
        successor_codebook: B, likewise.
        temperatures: ``[bs]`` float32. With it the result is the log-softmax over c of the scores
            divided by the temperature (by 1 where it is 0, for a greedy request).

    Returns:
        ``[bs, g, K, K]`` float32, (predecessor, candidate); rows of position 0 are identical.
        Products and sums are float32 whatever the dtype of the codebooks.

    Raises:
        ValueError: shapes or dtypes do not fit together.
        IndexError: a token outside of the codebooks.

    Source: DFlash 2's candidate selector.
    """
    return torch.ops.dflash2.pair_scores(
        gates, anchors, candidates, unary, predecessor_codebook, successor_codebook, temperatures
    )


def _reference(
    gates: Tensor,
    anchors: Tensor,
    candidates: Tensor,
    unary: Tensor,
    predecessor_codebook: Tensor,
    successor_codebook: Tensor,
    temperatures: Tensor | None,
) -> Tensor:
    before_first = anchors[:, None, None].expand_as(candidates[:, :1])
    predecessors = torch.cat((before_first, candidates[:, :-1]), dim=1)  # [bs, g, K]
    left = predecessor_codebook[predecessors].float() * gates[:, :, None].float()  # [bs, g, K, r]
    right = successor_codebook[candidates].float()  # [bs, g, K, r]
    scores = unary[:, :, None] + left @ right.mT
    if temperatures is None:
        return scores
    scale = temperatures.masked_fill(temperatures <= 0, 1.0).view(-1, 1, 1, 1)
    return (scores / scale).log_softmax(dim=-1)


library.define(
    library.Operator(
        "pair_scores(Tensor gates, Tensor anchors, Tensor candidates, Tensor unary, "
        "Tensor predecessor_codebook, Tensor successor_codebook, Tensor? temperatures) -> Tensor",
        reference=_reference,
        fake=lambda gates, anchors, candidates, unary, *_: unary.new_empty(
            *unary.shape, unary.shape[-1]
        ),
    )
)
