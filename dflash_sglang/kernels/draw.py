"""The target's token after each node of a draft tree: argmax, or a draw with seeded noise."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dflash_sglang.kernels import library
from dflash_sglang.kernels.noise import gumbel_noise
from dflash_sglang.kernels.truncation import Truncation

# Doubtful rows of one call that are drawn again on an accelerator, whether there are any or not.
DEVICE_REDRAWS = 4


class DrawCall(NamedTuple):
    """The arguments of one :func:`draw_tokens`."""

    logits: Tensor
    temperatures: Tensor
    seeds: Tensor
    positions: Tensor
    limits: tuple[Tensor | None, ...]  # top_ks, top_ps, min_ps
    noise_by_rank: bool


def greedy_tokens(logits: Tensor) -> Tensor:
    """Argmax over the vocabulary, the lowest id in a tie; NaN counts as the greatest number.

    Args:
        logits: ``[bs, N, V]`` float32.

    Returns:
        ``[bs, N]`` int64.
    """
    return torch.ops.dflash2.greedy_tokens(logits)


def draw_tokens(
    logits: Tensor,
    temperatures: Tensor,
    seeds: Tensor,
    positions: Tensor,
    truncation: Truncation | None = None,
    *,
    noise_by_rank: bool = False,
) -> Tensor:
    """One seeded draw after every node: argmax of log p + Gumbel noise over what truncation leaves.

    Equal to :func:`draw_with_noise` with the noise of seed and position, without that noise ever
    being in memory. The compiled kernels mark the rare rows (about one in 10^4) where rounding
    decides, and those are drawn again by the reference: the tokens are the same number for number.
    On accelerators that is done where tokens are compared with SGLang's (``noise_by_rank``), for
    at most ``DEVICE_REDRAWS`` rows a call.

    Args:
        logits: ``[bs, N, V]`` float32, adjusted (penalties, bias, grammar).
        temperatures: ``[bs]`` float32, 0 for greedy.
        seeds: ``[bs]`` int64.
        positions: ``[bs, N]`` int64, the absolute position of each node: its noise is keyed by it.
        truncation: top-k, top-p and min-p of every request.
        noise_by_rank: draw truncated laws as SGLang does, with noise that belongs to ranks.

    Returns:
        ``[bs, N]`` int64.

    Raises:
        ValueError: shapes or dtypes do not fit together (compiled kernels).
    """
    limits = (None, None, None) if truncation is None else truncation
    marks_doubt = logits.is_cpu or noise_by_rank
    tokens = torch.ops.dflash2.draw_tokens(
        logits, temperatures, seeds, positions, *limits, noise_by_rank, marks_doubt
    )
    if not marks_doubt:
        return tokens
    call = DrawCall(logits, temperatures, seeds, positions, limits, noise_by_rank)
    return _settle(tokens, call, None if logits.is_cpu else DEVICE_REDRAWS)


def draw_with_noise(
    logits: Tensor,
    temperatures: Tensor,
    noise: Tensor,
    truncation: Truncation | None = None,
    *,
    noise_by_rank: bool = False,
) -> Tensor:
    """The draw of :func:`draw_tokens` with the noise given: ``[bs, N, V]`` float64."""
    is_greedy = (temperatures <= 0).unsqueeze(1)  # [bs, 1]
    scale = temperatures.masked_fill(temperatures <= 0, 1.0).view(-1, 1, 1)
    probs = (logits.float() / scale).softmax(dim=-1)

    drawn = (probs.log().double() + noise).argmax(dim=-1)
    if truncation is not None:
        truncated = _truncated_draw(probs, noise, truncation, noise_by_rank)
        applies = truncation.applies().unsqueeze(1)  # [bs, 1]
        drawn = torch.where(applies, truncated, drawn)
    return torch.where(is_greedy, logits.argmax(dim=-1), drawn)


def _truncated_draw(
    probs: Tensor, noise: Tensor, truncation: Truncation, noise_by_rank: bool
) -> Tensor:
    """One draw from each truncated law: probs and noise [bs, N, V] -> [bs, N] int64."""
    ranked = probs.sort(dim=-1, descending=True)  # [bs, N, V]
    if not noise_by_rank:
        noise = noise.gather(-1, ranked.indices)
    # In double precision before the logarithm: SGLang's order, on this way only.
    log_probs = ranked.values.masked_fill(truncation.drops(ranked.values), 0.0).double().log()
    rank = (log_probs + noise).argmax(dim=-1, keepdim=True)  # [bs, N, 1]
    return ranked.indices.gather(-1, rank).squeeze(-1)


def _settle(tokens: Tensor, call: DrawCall, count: int | None) -> Tensor:
    """Exchange doubtful tokens (t is marked as -1 - t) for the reference's, [bs, N] both.

    With a count so many rows are drawn again, the doubtful ones first: were their number a matter
    of values, the host would have to wait for an accelerator.
    """
    doubtful = (tokens < 0).flatten()  # [bs * N]
    if count is None:
        rows = doubtful.nonzero().squeeze(1)
    else:
        rows = doubtful.float().topk(min(count, doubtful.numel())).indices
    if rows.numel() == 0:
        return tokens
    settled = torch.where(tokens < 0, -1 - tokens, tokens).flatten()
    settled[rows] = torch.where(doubtful[rows], _draw_again(call, rows), settled[rows])
    return settled.view_as(tokens)


def _draw_again(call: DrawCall, flat: Tensor) -> Tensor:
    """The reference's draws of some rows, one request a row: flat rows [n] -> tokens [n]."""
    requests = flat // call.positions.shape[1]
    top_ks, top_ps, min_ps = (None if limit is None else limit[requests] for limit in call.limits)
    drawn = _draw_reference(
        call.logits.flatten(0, 1)[flat].unsqueeze(1),
        call.temperatures[requests],
        call.seeds[requests],
        call.positions.flatten()[flat].unsqueeze(1),
        top_ks,
        top_ps,
        min_ps,
        call.noise_by_rank,
    )
    return drawn.squeeze(1)


def _draw_reference(
    logits: Tensor,
    temperatures: Tensor,
    seeds: Tensor,
    positions: Tensor,
    top_ks: Tensor | None,
    top_ps: Tensor | None,
    min_ps: Tensor | None,
    noise_by_rank: bool,
    marks_doubt: bool = False,
) -> Tensor:
    noise = gumbel_noise(seeds, positions, logits.shape[-1])
    truncation = None
    if top_ks is not None and top_ps is not None:
        truncation = Truncation(top_ks, top_ps, min_ps)
    return draw_with_noise(logits, temperatures, noise, truncation, noise_by_rank=noise_by_rank)


library.define(
    library.Operator(
        "greedy_tokens(Tensor logits) -> Tensor",
        reference=lambda logits: logits.argmax(dim=-1),
        fake=lambda logits: logits.new_empty(logits.shape[:2], dtype=torch.int64),
    )
)
library.define(
    library.Operator(
        "draw_tokens(Tensor logits, Tensor temperatures, Tensor seeds, Tensor positions, "
        "Tensor? top_ks, Tensor? top_ps, Tensor? min_ps, bool noise_by_rank, bool marks_doubt) "
        "-> Tensor",
        reference=_draw_reference,
        fake=lambda logits, *_: logits.new_empty(logits.shape[:2], dtype=torch.int64),
    )
)
