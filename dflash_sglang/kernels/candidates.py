"""Candidates of drafted positions under the noise that the target will draw with."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

from dflash_sglang.kernels import library
from dflash_sglang.kernels.noise import gumbel_noise
from dflash_sglang.kernels.truncation import Truncation, truncate_draft


class CandidateColumns(NamedTuple):
    """W candidates a position: the K best without noise, then the M best others with it."""

    tokens: Tensor  # [bs, g, W] int64, distinct
    unary_logits: Tensor  # [bs, g, W] float32
    log_q: Tensor  # [bs, g, W] float32, log softmax; -inf for others that truncation drops
    noise: Tensor  # [bs, g, W] float32


def noisy_candidates(
    unary_logits: Tensor,
    scale: Tensor,
    weight: Tensor,
    seeds: Tensor,
    positions: Tensor,
    truncation: Truncation | None,
    num_inside: int,
    num_others: int,
) -> CandidateColumns:
    """Top K of the logits, and of those that truncation leaves the M others with the greatest
    weight * log q + noise.

    ``tree.noisy`` says what they are for.

    Args:
        unary_logits: ``[bs, g, V]`` float32.
        scale: ``[bs]`` float32 > 0, what logits are divided by.
        weight: ``[bs]`` float32 > 0, of log q against the noise.
        seeds: ``[bs]`` int64.
        positions: ``[bs, g]`` int64, absolute positions of the draws.
        truncation: top-k, top-p and min-p of every request.
        num_inside: K >= 1.
        num_others: M >= 0; K + M <= V.

    Raises:
        ValueError: shapes or dtypes do not fit together (compiled kernels).
    """
    limits = (None, None, None) if truncation is None else truncation
    return CandidateColumns(
        *torch.ops.dflash2.noisy_candidates(
            unary_logits, scale, weight, seeds, positions, *limits, num_inside, num_others
        )
    )


def candidates_with_noise(
    unary_logits: Tensor,
    noise: Tensor,
    scale: Tensor,
    weight: Tensor,
    truncation: Truncation | None,
    num_inside: int,
    num_others: int,
) -> CandidateColumns:
    """The same with the noise given: ``[bs, g, V]`` float32."""
    log_q = (unary_logits / scale.view(-1, 1, 1)).log_softmax(dim=-1)  # [bs, g, V]
    possible = truncate_draft(log_q, truncation)

    inside = unary_logits.topk(num_inside, dim=-1).indices  # [bs, g, K]
    # Impossible tokens rank behind all others, but before the top K: candidates stay distinct.
    perturbed = weight.view(-1, 1, 1) * possible + noise  # [bs, g, V]
    perturbed = perturbed.clamp(min=torch.finfo(noise.dtype).min)
    outside = perturbed.scatter(-1, inside, -inf).topk(num_others, dim=-1).indices  # [bs, g, M]
    tokens = torch.cat((inside, outside), dim=-1)
    return CandidateColumns(
        tokens=tokens,
        unary_logits=unary_logits.gather(-1, tokens),
        log_q=torch.cat((log_q.gather(-1, inside), possible.gather(-1, outside)), dim=-1),
        noise=noise.gather(-1, tokens),
    )


def _reference(
    unary_logits: Tensor,
    scale: Tensor,
    weight: Tensor,
    seeds: Tensor,
    positions: Tensor,
    top_ks: Tensor | None,
    top_ps: Tensor | None,
    min_ps: Tensor | None,
    num_inside: int,
    num_others: int,
) -> tuple[Tensor, ...]:
    noise = gumbel_noise(seeds, positions, unary_logits.shape[-1]).float()
    truncation = None
    if top_ks is not None and top_ps is not None:
        truncation = Truncation(top_ks, top_ps, min_ps)
    return candidates_with_noise(
        unary_logits, noise, scale, weight, truncation, num_inside, num_others
    )


def _fake(
    unary_logits: Tensor, scale: Tensor, weight: Tensor, seeds: Tensor, *rest: Tensor | int
) -> tuple[Tensor, ...]:
    shape = (*unary_logits.shape[:2], sum(rest[-2:]))
    return seeds.new_empty(shape), *(unary_logits.new_empty(shape) for _ in range(3))


library.define(
    library.Operator(
        "noisy_candidates(Tensor unary_logits, Tensor scale, Tensor weight, Tensor seeds, "
        "Tensor positions, Tensor? top_ks, Tensor? top_ps, Tensor? min_ps, int num_inside, "
        "int num_others) -> (Tensor, Tensor, Tensor, Tensor)",
        reference=_reference,
        fake=_fake,
    )
)
