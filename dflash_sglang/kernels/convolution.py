"""The drafter's local convolutions along a block."""

from __future__ import annotations

import torch
from torch import Tensor

from dflash_sglang.kernels import library


def convolve_block(
    x: Tensor, kernel: Tensor, delta: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """``out[t, c] = sum_j (kernel[j, c] + delta[t, j, g(c)]) * x[t - j, c] + bias[c]``.

    Grouped and dynamic with ``delta`` (DFlash 2), depthwise and static without. Taps that reach
    before the block are zero. Arithmetic is float32, results are rounded once.

    Args:
        x: ``[n, B, D]`` float32, bfloat16 or float16.
        kernel: ``[k, D]``, dtype of x.
        delta: ``[n, B, k, groups]``, dtype of x, groups contiguous; channel c belongs to group
            ``c // (D / groups)``.
        bias: ``[D]``, dtype of x.

    Returns:
        ``[n, B, D]``, contiguous, dtype of x.

    Raises:
        ValueError: shapes or dtypes do not fit together.
    """
    return torch.ops.dflash2.convolve_block(x, kernel, delta, bias)


def _reference(x: Tensor, kernel: Tensor, delta: Tensor | None, bias: Tensor | None) -> Tensor:
    n, B, D = x.shape
    weights = kernel.float().expand(n, B, *kernel.shape)  # [n, B, k, D]
    if delta is not None:
        weights = weights + delta.float().repeat_interleave(D // delta.shape[-1], dim=-1)
    values = x.float()
    out = values.new_zeros(n, B, D) if bias is None else bias.float().expand(n, B, D).clone()
    for tap in range(min(kernel.shape[0], B)):
        out[:, tap:] += weights[:, tap:, tap] * values[:, : B - tap]
    return out.to(x.dtype)


library.define(
    library.Operator(
        "convolve_block(Tensor x, Tensor kernel, Tensor? delta, Tensor? bias) -> Tensor",
        reference=_reference,
        fake=lambda x, *_: x.new_empty(x.shape),
    )
)
