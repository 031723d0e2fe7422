"""Moves of cached keys and values between slots."""

from __future__ import annotations

import ctypes

import torch

from dflash_sglang.kernels import library


def move_kv(
    data_ptrs: torch.Tensor, strides: torch.Tensor, targets: torch.Tensor, sources: torch.Tensor
) -> None:
    """Copy slots ``sources -> targets`` in every buffer; moves may overlap.

    All sources of a buffer are read before a target is written. The buffers' memory is written; it
    is the caller's word that the addresses are valid and every slot lies inside.

    Args:
        data_ptrs: [buffers] uint64, base address of each layer's K or V buffer.
        strides: [buffers] int64, bytes of one slot; slots stand one behind another.
        targets: [n] int64 slots.
        sources: [n] int64 slots.

    Raises:
        ValueError: shapes or dtypes that do not fit together.
    """
    torch.ops.dflash2.move_kv(data_ptrs, strides, targets, sources)


def _move_kv_reference(
    data_ptrs: torch.Tensor, strides: torch.Tensor, targets: torch.Tensor, sources: torch.Tensor
) -> None:
    if targets.numel() == 0:
        return
    slots = int(torch.maximum(sources.max(), targets.max())) + 1
    for address, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        memory = (ctypes.c_uint8 * (slots * stride)).from_address(address)
        buffer = torch.frombuffer(memory, dtype=torch.uint8).view(slots, stride)
        buffer[targets] = buffer[sources]


library.define(
    library.Operator(
        "move_kv(Tensor data_ptrs, Tensor strides, Tensor targets, Tensor sources) -> ()",
        reference=_move_kv_reference,
        fake=lambda *_: None,
    )
)
