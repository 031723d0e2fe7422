"""CPU operators that SGLang calls under ``torch.ops.sgl_kernel`` and its CUDA wheel lacks.

Each is defined only where the installed ``sgl_kernel`` does not bring it, so a real CPU build of
that package keeps its own. Semantics follow the Triton kernels beside SGLang's call sites
(``sglang/kernels/ops/speculative/cache_locs.py``, ``.../eagle.py``, ``.../kvcache/cache_move.py``
and ``sglang/srt/mem_cache/allocation.py``, 0.5.23).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from dflash_sglang.kernels import kv
from dflash_sglang.verify.noise import hash_columns

_NAMESPACE = "sgl_kernel"

# torch.library unregisters its operators when the Library object dies.
_library: torch.library.Library | None = None


def define_missing() -> list[str]:
    """Define every operator of this file that ``torch.ops.sgl_kernel`` does not have yet.

    Returns:
        The names defined by this call (empty on the second call).
    """
    global _library
    if _library is None:
        _library = torch.library.Library(_NAMESPACE, "FRAGMENT")
    defined = []
    for schema, function in _OPERATORS.items():
        name = schema.partition("(")[0]
        if not hasattr(torch.ops.sgl_kernel, name):
            _library.define(schema)
            _library.impl(name, function, "CPU")
            if name in _SHAPES:
                torch.library.register_fake(f"{_NAMESPACE}::{name}", _SHAPES[name])
            defined.append(name)
    return defined


def assign_extend_cache_locs(
    req_pool_indices: torch.Tensor,  # [bs] int64
    req_to_token: torch.Tensor,  # [pool size, max context] int32
    start_offset: torch.Tensor,  # [bs] int
    end_offset: torch.Tensor,  # [bs] int
    out_cache_loc: torch.Tensor,  # [>= sum(end - start)] int64, written
    pool_len: int,
) -> None:
    """Gather the slots of columns ``start..end`` of each request, one request after another."""
    rows, columns = _ragged_cells(req_pool_indices, start_offset, end_offset)
    out_cache_loc[: rows.numel()] = req_to_token[rows, columns].to(out_cache_loc.dtype)


def assign_req_to_token_pool(
    req_pool_indices: torch.Tensor,  # [bs] int64
    req_to_token: torch.Tensor,  # [pool size, max context] int32, written
    start_offset: torch.Tensor,  # [bs] int
    end_offset: torch.Tensor,  # [bs] int
    out_cache_loc: torch.Tensor,  # [>= sum(end - start)] int64
    pool_len: int,
) -> None:
    """Scatter consecutive slots into columns ``start..end`` of each request."""
    # A decode step writes one cell or a few of each request: slices of NumPy's cost a microsecond.
    table, slots = req_to_token.numpy(), out_cache_loc.numpy()
    cells = (req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist())
    first = 0
    for row, start, end in zip(*cells, strict=True):
        table[row, start:end] = slots[first : first + end - start]
        first += end - start


def assign_draft_cache_locs_contiguous(
    req_pool_indices: torch.Tensor,  # [bs] int64
    req_to_token: torch.Tensor,  # [pool size, max context] int32
    seq_lens: torch.Tensor,  # [bs] int
    out_cache_loc: torch.Tensor,  # [bs * topk * num_steps] int64, written
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """Gather the ``topk * num_steps`` slots behind each request's last token."""
    columns = seq_lens.long().view(-1, 1) + torch.arange(topk * num_steps)  # [bs, topk * steps]
    slots = req_to_token[req_pool_indices.long().view(-1, 1), columns]
    out_cache_loc.copy_(slots.view(-1))


def fill_bonus_tokens(
    accept_tokens: torch.Tensor,  # [bs * accept_stride] int
    accept_lens: torch.Tensor,  # [bs] int, bonus included
    bonus_tokens: torch.Tensor,  # [bs] int, written
    accept_stride: int,
) -> None:
    """Take the last accepted token of every request."""
    last = accept_lens.long() - 1  # [bs]
    tokens = accept_tokens.view(-1, accept_stride)
    bonus_tokens.copy_(tokens.gather(1, last.view(-1, 1)).view(-1))


def fill_accept_out_cache_loc(
    accept_index: torch.Tensor,  # [bs * width] int, -1 where nothing was accepted
    out_cache_loc: torch.Tensor,  # [tokens] int64
    accept_out_cache_loc: torch.Tensor,  # [>= accepted] int64, written
) -> None:
    """Pack the slots of the accepted tokens to the front, in order."""
    flat = accept_index.view(-1)
    accepted = flat[flat >= 0].long()
    accept_out_cache_loc[: accepted.numel()] = out_cache_loc[accepted]


def _ragged_cells(
    req_pool_indices: torch.Tensor, start_offset: torch.Tensor, end_offset: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Row and column of every cell ``start <= column < end``, request after request."""
    starts = start_offset.long()
    lengths = end_offset.long() - starts  # [bs]
    first = lengths.cumsum(0) - lengths  # [bs] cells before each request
    rows = req_pool_indices.long().repeat_interleave(lengths)  # [cells]
    columns = torch.arange(rows.numel()) + (starts - first).repeat_interleave(lengths)
    return rows, columns


def murmur_hash32(
    seed: torch.Tensor,  # [n] uint64
    positions: torch.Tensor,  # [n] int64
    col_indices: torch.Tensor,  # [m] int64, 0 to m - 1
) -> torch.Tensor:
    """Hash of every (seed, position) with every column, [n, m] uint32: seeded sampling's noise."""
    columns = col_indices.shape[0]
    return hash_columns(seed.view(torch.int64), positions, columns).to(torch.uint32)


def _murmur_hash32_shape(seed, positions, col_indices):
    return torch.empty((seed.shape[0], col_indices.shape[0]), dtype=torch.uint32)


_OPERATORS: dict[str, Callable] = {
    "assign_extend_cache_locs_cpu(Tensor req_pool_indices, Tensor req_to_token, "
    "Tensor start_offset, Tensor end_offset, Tensor(a!) out_cache_loc, int pool_len) -> ()": (
        assign_extend_cache_locs
    ),
    "assign_req_to_token_pool_cpu(Tensor req_pool_indices, Tensor(a!) req_to_token, "
    "Tensor start_offset, Tensor end_offset, Tensor out_cache_loc, int pool_len) -> ()": (
        assign_req_to_token_pool
    ),
    "assign_draft_cache_locs_contiguous_cpu(Tensor req_pool_indices, Tensor req_to_token, "
    "Tensor seq_lens, Tensor(a!) out_cache_loc, int pool_len, int topk, int num_steps) -> ()": (
        assign_draft_cache_locs_contiguous
    ),
    "fill_bonus_tokens_cpu(Tensor accept_tokens, Tensor accept_lens, "
    "Tensor(a!) bonus_tokens, int accept_stride) -> ()": fill_bonus_tokens,
    "fill_accept_out_cache_loc_cpu(Tensor accept_index, Tensor out_cache_loc, "
    "Tensor(a!) accept_out_cache_loc) -> ()": fill_accept_out_cache_loc,
    "murmur_hash32_cpu(Tensor seed, Tensor positions, Tensor col_indices) -> Tensor": (
        murmur_hash32
    ),
    "copy_all_layer_kv_cache_cpu(Tensor data_ptrs, Tensor strides, Tensor tgt_loc, "
    "Tensor src_loc) -> ()": kv.move_kv,
}

# For operators that return a tensor: what SGLang's compiled functions see of them.
_SHAPES: dict[str, Callable] = {"murmur_hash32_cpu": _murmur_hash32_shape}
