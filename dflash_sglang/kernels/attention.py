"""Attention of a few query tokens over a request's paged prefix and their own block."""

from __future__ import annotations

import math
from enum import IntEnum
from typing import NamedTuple

import torch

from dflash_sglang.kernels import library


class MaskMode(IntEnum):
    """Which of the block's own tokens a query token sees (the prefix is always visible)."""

    CAUSAL = 0  # itself and those before it
    BIDIRECTIONAL = 1  # all of them
    TREE = 2  # those that the mask names


class BlockMask(NamedTuple):
    """Visibility among the query tokens of each request, rows in one flat tensor."""

    flat: torch.Tensor  # bool; row i of request r starts at offsets[r] + i * strides[r]
    offsets: torch.Tensor  # [bs] int64
    strides: torch.Tensor  # [bs] int64


class AttentionPlan(NamedTuple):
    """What all layers of one forward share. Requests may have different numbers of tokens."""

    slot_table: torch.Tensor  # [rows, columns] int32, KV slot of each position of a request
    table_rows: torch.Tensor  # [bs] int64, row of each request
    q_starts: torch.Tensor  # [bs + 1] int64, first query token of each request, then the total
    kv_lens: torch.Tensor  # [bs] int64, keys of each request, its query tokens included
    block_mask: BlockMask | None = None  # for MaskMode.TREE


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    out: torch.Tensor,
    plan: AttentionPlan,
    mode: MaskMode,
    *,
    scale: float,
    window: int = -1,
    logit_cap: float = 0.0,
    sinks: torch.Tensor | None = None,
    slot_map: torch.Tensor | None = None,
) -> None:
    """Softmax attention over each request's slots, written to ``out``; float32 inside.

    The keys and values of the query tokens themselves must already be in the cache: they are the
    last ``q_len`` of a request's ``kv_len`` slots. In ``TREE`` mode a token's ancestors take the
    positions directly behind the prefix, so a node at depth d counts as position prefix + d.

    A query token's result does not depend, in any bit, on what else is in the call: on the other
    requests, on how many tokens are verified or prefilled together, or on the number of threads.

    Args:
        q: [tokens, heads, head_dim], float32, bfloat16 or float16.
        k_cache: [slots, kv_heads, head_dim], same dtype.
        v_cache: [slots, kv_heads, v_head_dim], same dtype.
        out: [tokens, heads, v_head_dim], same dtype; written.
        plan: slots, lengths and tree mask of the batch.
        mode: visibility inside the block.
        scale: factor on the logits.
        window: greatest distance between the positions of a query and a visible key (0 sees itself
            only); negative for none. In ``BIDIRECTIONAL`` mode it bounds both sides.
        logit_cap: c > 0 replaces a logit s by c * tanh(s / c).
        sinks: [heads] float32, logits that take part in the softmax's denominator only (gpt-oss).
        slot_map: [slots of the table] int64, slot of the table to slot of this layer's cache, for
            layers whose cache is a smaller pool.

    Raises:
        ValueError: shapes or dtypes that do not fit together.
    """
    _check(q, k_cache, v_cache, out, plan, mode, sinks)
    mask = plan.block_mask if mode is MaskMode.TREE else None
    torch.ops.dflash2.paged_attention(
        q,
        k_cache,
        v_cache,
        out,
        plan.slot_table,
        plan.table_rows,
        slot_map,
        plan.q_starts,
        plan.kv_lens,
        int(mode),
        mask.flat if mask else None,
        mask.offsets if mask else None,
        mask.strides if mask else None,
        window,
        scale,
        logit_cap,
        sinks,
    )


def _check(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    out: torch.Tensor,
    plan: AttentionPlan,
    mode: MaskMode,
    sinks: torch.Tensor | None,
) -> None:
    heads, kv_heads = q.shape[1], k_cache.shape[1]
    if heads % kv_heads != 0 or v_cache.shape[1] != kv_heads:
        raise ValueError(
            f"paged_attention expects the {heads} query heads to be a multiple of equally many key "
            f"and value heads, got {kv_heads} and {v_cache.shape[1]}."
        )
    if q.shape[2] != k_cache.shape[2] or out.shape != (q.shape[0], heads, v_cache.shape[2]):
        raise ValueError(
            f"paged_attention expects keys of head_dim {q.shape[2]} and an output of "
            f"{(q.shape[0], heads, v_cache.shape[2])}, got {k_cache.shape[2]} and {out.shape}."
        )
    if not (q.dtype == k_cache.dtype == v_cache.dtype == out.dtype):
        raise ValueError(
            f"paged_attention expects one dtype, got q {q.dtype}, keys {k_cache.dtype}, values "
            f"{v_cache.dtype}, output {out.dtype}."
        )
    if any(t.stride(-1) != 1 for t in (q, k_cache, v_cache, out)):
        raise ValueError("paged_attention expects the head dimension to be contiguous.")
    if mode is MaskMode.TREE and plan.block_mask is None:
        raise ValueError("paged_attention in TREE mode expects plan.block_mask, got None.")
    if sinks is not None and (
        sinks.dtype != torch.float32 or sinks.shape != (heads,) or not sinks.is_contiguous()
    ):
        raise ValueError(
            f"paged_attention expects {heads} contiguous float32 sinks, got {tuple(sinks.shape)} "
            f"{sinks.dtype} with strides {sinks.stride()}."
        )


def _reference(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    out: torch.Tensor,
    slot_table: torch.Tensor,
    table_rows: torch.Tensor,
    slot_map: torch.Tensor | None,
    q_starts: torch.Tensor,
    kv_lens: torch.Tensor,
    mask_mode: int,
    tree_mask: torch.Tensor | None,
    mask_offsets: torch.Tensor | None,
    mask_strides: torch.Tensor | None,
    window: int,
    scale: float,
    logit_cap: float,
    sinks: torch.Tensor | None,
) -> None:
    group = q.shape[1] // k_cache.shape[1]
    starts = q_starts.tolist()
    for r, kv_len in enumerate(kv_lens.tolist()):
        tokens = slice(starts[r], starts[r + 1])
        q_len = tokens.stop - tokens.start
        block = None
        if tree_mask is not None and mask_offsets is not None and mask_strides is not None:
            block = tree_mask.as_strided(
                (q_len, q_len), (int(mask_strides[r]), 1), int(mask_offsets[r])
            )
        visible = _visible(MaskMode(mask_mode), q_len, kv_len, block, window)  # [q_len, kv_len]
        slots = slot_table[table_rows[r], :kv_len].long()
        slots = slots if slot_map is None else slot_map[slots]
        keys = k_cache[slots].float().repeat_interleave(group, 1)  # [kv_len, H, d]
        values = v_cache[slots].float().repeat_interleave(group, 1)
        logits = torch.einsum("qhd,khd->hqk", q[tokens].float() * scale, keys)
        if logit_cap > 0:
            logits = logit_cap * torch.tanh(logits / logit_cap)
        logits = logits.masked_fill(~visible, -math.inf)
        if sinks is not None:
            sink = sinks.view(-1, 1, 1).expand(-1, q_len, 1)
            logits = torch.cat([logits, sink], dim=-1)
        weights = logits.softmax(-1)[..., :kv_len]  # [H, q_len, kv_len]
        out[tokens] = torch.einsum("hqk,khd->qhd", weights, values).to(out.dtype)


def _visible(
    mode: MaskMode, q_len: int, kv_len: int, block: torch.Tensor | None, window: int
) -> torch.Tensor:
    """Which keys each query token sees, [q_len, kv_len] bool."""
    prefix = kv_len - q_len
    positions = torch.arange(kv_len)
    if mode is MaskMode.TREE and block is not None:
        depths = block.sum(-1) - 1  # [q_len]
        q_positions = prefix + depths
        k_positions = torch.cat([positions[:prefix], q_positions])
        visible = torch.cat([block.new_ones(q_len, prefix), block], dim=-1)
    else:
        q_positions, k_positions = positions[prefix:], positions
        visible = torch.ones(q_len, kv_len, dtype=torch.bool)
        if mode is MaskMode.CAUSAL:
            visible = k_positions <= q_positions[:, None]
    if window >= 0:
        visible = visible & ((q_positions[:, None] - k_positions).abs() <= window)
    return visible


library.define(
    library.Operator(
        "paged_attention(Tensor q, Tensor k_cache, Tensor v_cache, Tensor(a!) out, "
        "Tensor slot_table, Tensor table_rows, Tensor? slot_map, Tensor q_starts, Tensor kv_lens, "
        "int mask_mode, Tensor? tree_mask, Tensor? mask_offsets, Tensor? mask_strides, "
        "int window, float scale, float logit_cap, Tensor? sinks) -> ()",
        reference=_reference,
        fake=lambda *args: None,
    )
)
