"""Random paged-attention problems for the kernel tests."""

from __future__ import annotations

from typing import NamedTuple

import torch

from dflash_sglang.kernels import attention
from dflash_sglang.kernels.attention import AttentionPlan, BlockMask, MaskMode


class Shape(NamedTuple):
    heads: int
    kv_heads: int
    head_dim: int
    v_dim: int


class Problem(NamedTuple):
    """Queries and the caches that they look into."""

    q: torch.Tensor  # [tokens, H, d]
    k_cache: torch.Tensor  # [slots, Hkv, d]
    v_cache: torch.Tensor  # [slots, Hkv, dv]
    plan: AttentionPlan


def random_problem(
    seed: int,
    shape: Shape,
    q_lens: list[int],
    prefix_lens: list[int],
    dtype: torch.dtype,
    tree: bool = False,
) -> Problem:
    """Slots in random order, request rows in random order, optionally a random tree a request."""
    generator = torch.Generator().manual_seed(seed)
    bs = len(q_lens)
    kv_lens = torch.tensor(q_lens) + torch.tensor(prefix_lens)
    slots = int(kv_lens.sum()) + 5
    order = torch.randperm(slots, generator=generator)
    rows = torch.randperm(bs + 2, generator=generator)[:bs]
    table = torch.zeros(bs + 2, int(kv_lens.max()), dtype=torch.int32)
    for row, piece in zip(rows.tolist(), order.split([*kv_lens.tolist(), 5])[:bs], strict=True):
        table[row, : piece.numel()] = piece.int()

    def normal(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, generator=generator).to(dtype)

    return Problem(
        normal(sum(q_lens), shape.heads, shape.head_dim),
        normal(slots, shape.kv_heads, shape.head_dim),
        normal(slots, shape.kv_heads, shape.v_dim),
        AttentionPlan(
            table,
            rows,
            torch.tensor([0, *q_lens]).cumsum(0),
            kv_lens,
            block_mask(random_trees(generator, q_lens)) if tree else None,
        ),
    )


def random_trees(generator: torch.Generator, sizes: list[int]) -> list[torch.Tensor]:
    """Ancestor-or-self masks, [n, n] bool each; a parent precedes its children."""
    masks = []
    for size in sizes:
        mask = torch.eye(size, dtype=torch.bool)
        for node in range(1, size):
            parent = int(torch.randint(0, node, (), generator=generator))
            mask[node] |= mask[parent]
        masks.append(mask)
    return masks


def block_mask(masks: list[torch.Tensor]) -> BlockMask:
    sizes = torch.tensor([mask.shape[0] for mask in masks])
    offsets = (sizes**2).cumsum(0) - sizes**2
    return BlockMask(torch.cat([mask.flatten() for mask in masks]), offsets, sizes)


def run(problem: Problem, mode: MaskMode, **options) -> torch.Tensor:
    """The operator's output, [tokens, H, dv]."""
    q, k_cache, v_cache, plan = problem
    out = q.new_full((*q.shape[:2], v_cache.shape[2]), float("nan"))
    attention.paged_attention(q, k_cache, v_cache, out, plan, mode, **options)
    return out


def run_reference(problem: Problem, mode: MaskMode, **options) -> torch.Tensor:
    """The same through the PyTorch reference, computed from float32 copies."""
    q, k_cache, v_cache, plan = problem
    out = torch.empty(*q.shape[:2], v_cache.shape[2])
    mask = plan.block_mask or (None, None, None)
    attention._reference(
        q.float(),
        k_cache.float(),
        v_cache.float(),
        out,
        plan.slot_table,
        plan.table_rows,
        options.get("slot_map"),
        plan.q_starts,
        plan.kv_lens,
        int(mode),
        *mask,
        options.get("window", -1),
        options["scale"],
        options.get("logit_cap", 0.0),
        options.get("sinks"),
    )
    return out
