"""The best few tokens of each drafted position."""

from __future__ import annotations

import torch
from torch import Tensor

from dflash_sglang.kernels import library


def top_columns(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The greatest logits of each row and where they stand, best first.

    Like ``torch.topk``, made for few of many columns: a stretch without a candidate is passed over
    in a few instructions. Equal logits come in any order.

    Args:
        logits: ``[..., V]`` float32.
        count: K, 1 to V.

    Returns:
        ``[..., K]`` float32 logits and ``[..., K]`` int64 columns.

    Raises:
        ValueError: dtype or count do not fit.
    """
    values, columns = torch.ops.dflash2.top_columns(logits, count)
    return values, columns


def _reference(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    if logits.dtype != torch.float32 or not 1 <= count <= logits.shape[-1]:
        raise ValueError(
            f"top_columns expects float32 logits and a count of 1 to {logits.shape[-1]}, got "
            f"{logits.dtype} and {count}"
        )
    values, columns = logits.topk(count, dim=-1)
    return values, columns


def _fake(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    values = logits.new_empty(*logits.shape[:-1], count)
    return values, values.to(torch.int64)


library.define(
    library.Operator(
        "top_columns(Tensor logits, int count) -> (Tensor, Tensor)",
        reference=_reference,
        fake=_fake,
    )
)
