"""Batched generation: rows have their own length, finished rows leave the batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dflash_sglang.kernels.draw import draw_tokens, greedy_tokens

from .ragged_cache import RaggedCache
from .target import Target

# Finished rows are cut out of the batch when this share of it is done: cutting copies the cache.
_CUT_SHARE = 0.25

Draw = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(logits [bs, V], rows [bs] of the original batch, positions [bs] of the drawn token) -> [bs]."""


def greedy_draw(logits: Tensor, rows: Tensor, positions: Tensor) -> Tensor:
    """The most likely token of every row."""
    # The kernel reads float32; PyTorch's argmax of bfloat16 costs more than the conversion.
    return greedy_tokens(logits.float()[:, None])[:, 0]


def sampled_draw(temperatures: Tensor, seeds: Tensor) -> Draw:
    """Seeded draws at `temperatures` [bs] fp32 of the original rows (0 is greedy), `seeds` [bs]
    int64: what `SharedNoise` delivers under the same seeds.

    The noise of a draw is a function of the row's seed and the position, so a row's text depends on
    no other row. Of a large vocabulary few columns can win, and the compiled kernels compute the
    noise of those alone.
    """

    def draw(logits: Tensor, rows: Tensor, positions: Tensor) -> Tensor:
        if not (temperatures[rows] > 0).any():
            return greedy_draw(logits, rows, positions)
        after = (positions - 1)[:, None]  # noise is keyed by the token that is drawn after
        nodes = logits.float()[:, None]  # [bs, 1, V]
        return draw_tokens(nodes, temperatures[rows], seeds[rows], after)[:, 0]

    return draw


@torch.no_grad()
def generate_batch(
    target: Target,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    stop_token_ids: Sequence[int],
    draw: Draw = greedy_draw,
) -> list[list[int]]:
    """Continue every prompt until a stop token (kept) or `max_new_tokens`.

    Prompts of similar length cost least. Returns the response tokens of each prompt, in order.
    """
    device = target.device
    lengths = torch.tensor([len(p) for p in prompts], device=device)  # [bs] tokens in the cache + 1
    capacity = int(lengths.max()) + max_new_tokens
    cache = target.new_cache(capacity)
    slot_ids = torch.arange(capacity, device=device)
    prefill(target, prompts, cache, slot_ids)

    stop = torch.tensor(sorted(stop_token_ids), dtype=torch.int64, device=device)
    rows = torch.arange(len(prompts), device=device)
    current = torch.tensor([p[-1] for p in prompts], device=device)  # [bs]
    alive = torch.ones_like(rows, dtype=torch.bool)
    responses: list[list[int]] = [[] for _ in prompts]
    for _ in range(max_new_tokens):
        extent = int(lengths.max())
        places = (lengths - 1)[:, None]  # [bs, 1]
        visible = slot_ids[None, None, :extent] < lengths[:, None, None]  # [bs, 1, S]
        out = target.step(
            current[:, None], places, visible, cache, places, slot_ids[:extent], with_logits=True
        )
        assert out.logits is not None
        current = draw(out.logits[:, -1], rows, lengths)
        for row, token, live in zip(rows.tolist(), current.tolist(), alive.tolist(), strict=True):
            if live:
                responses[row].append(token)
        alive &= ~torch.isin(current, stop)
        lengths = lengths + 1
        if not alive.any():
            break
        if alive.float().mean() <= 1 - _CUT_SHARE:
            keep = alive.nonzero()[:, 0]
            cache.select_rows(keep)
            rows, current, lengths, alive = (x[keep] for x in (rows, current, lengths, alive))
    return responses


def prefill(
    target: Target, prompts: Sequence[Sequence[int]], cache: RaggedCache, slot_ids: Tensor
) -> Tensor:
    """Cache all prompt tokens but the last, which the first decode step reads.

    Token i of a prompt goes to slot i. Returns their tap features [bs, t, n_taps * D], t the
    longest prompt less one; rows of shorter prompts hold padding behind their own tokens.
    """
    width = max(len(p) for p in prompts) - 1
    tokens = torch.zeros(len(prompts), width, dtype=torch.int64, device=slot_ids.device)
    if width == 0:
        return target.embedding_weight.new_zeros(len(prompts), 0, 0)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt) - 1] = torch.tensor(prompt[:-1], dtype=torch.int64)
    places = slot_ids[:width].expand(len(prompts), -1)  # [bs, t]
    # Right padding lands in slots that later tokens of the row overwrite before anything sees them.
    causal = (slot_ids[None, :width] <= slot_ids[:width, None]).expand(len(prompts), -1, -1)
    out = target.step(tokens, places, causal, cache, places, slot_ids[:width], with_logits=False)
    return out.features
