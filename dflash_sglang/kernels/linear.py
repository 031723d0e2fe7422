"""Matrix products whose rows do not depend on the batch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from dflash_sglang.kernels import library

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``x @ weight.T + bias`` on the CPU with float32 sums, like ``torch.nn.functional.linear``.

    A row of the result has the same bits whatever other rows are in ``x``, which is what makes
    verified tokens equal plainly decoded ones. Made for few rows (decoding, verification) and
    weights that are read from memory once; long prefills are served at about a library's speed.

    Args:
        x: [..., depth], float32, bfloat16 or float16.
        weight: [columns, depth], same dtype, rows contiguous.
        bias: [columns], same dtype, or None.

    Returns:
        [..., columns], dtype of x.

    Raises:
        ValueError: shapes or dtypes that do not fit together.
    """
    return torch.ops.dflash2.linear(x, weight, bias)


def _reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    if x.dtype not in DTYPES or weight.dtype != x.dtype or x.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"linear expects x [..., depth] and weights [columns, depth] of one dtype, got "
            f"{tuple(x.shape)} {x.dtype} and {tuple(weight.shape)} {weight.dtype}"
        )
    wide_bias = None if bias is None else bias.float()
    return F.linear(x.float(), weight.float(), wide_bias).to(x.dtype)


library.define(
    library.Operator(
        "linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor",
        reference=_reference,
        fake=lambda x, weight, bias: x.new_empty(*x.shape[:-1], weight.shape[0]),
    )
)
