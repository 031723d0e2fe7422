"""Local convolutions along the block: a position sees itself and the few before it in its block.

Both start as the identity, so drafters with and without them start training at the same function.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from dflash_sglang.config import ConvConfig
from dflash_sglang.drafter.primitives import Linear


class DynamicKernels(NamedTuple):
    """Content-dependent parts of the two kernels around one sublayer, from one projection."""

    before: Tensor  # [n, B, k, groups]
    after: Tensor  # [n, B, k, groups]


class GroupedDynamicConv(nn.Module):
    """``out[t, c] = sum_j (base[side, j, c] + delta[t, side, j, g(c)]) * x[t - j, c]``.

    Wraps a sublayer: ``before`` convolves its input, ``after`` its output, both with kernels
    projected from the input. Tensors: ``base_kernel [2, k, D]``,
    ``kernel_projection.weight [2 k D / group, D]``.
    """

    def __init__(self, hidden_size: int, conv: ConvConfig) -> None:
        super().__init__()
        self.kernel_size, self.group_size = conv.kernel_size, conv.group_size
        self.groups = hidden_size // conv.group_size
        self.base_kernel = nn.Parameter(torch.empty(2, conv.kernel_size, hidden_size))
        outputs = 2 * conv.kernel_size * self.groups
        self.kernel_projection = Linear(hidden_size, outputs, bias=False)

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.base_kernel.zero_()
            self.base_kernel[:, 0] = 1.0
            self.kernel_projection.weight.zero_()

    def before(self, hidden: Tensor) -> tuple[Tensor, DynamicKernels]:
        """hidden [n, B, D] -> the sublayer's input [n, B, D] and the kernels for :meth:`after`."""
        delta = self.kernel_projection(hidden)  # [n, B, 2 k groups]
        shape = (2, self.kernel_size, self.groups)
        kernels = DynamicKernels(*delta.unflatten(-1, shape).unbind(-3))
        return self._convolve(hidden, kernels.before, self.base_kernel[0]), kernels

    def after(self, hidden: Tensor, kernels: DynamicKernels) -> Tensor:
        """The sublayer's output [n, B, D], convolved."""
        return self._convolve(hidden, kernels.after, self.base_kernel[1])

    def _convolve(self, hidden: Tensor, delta: Tensor, base: Tensor) -> Tensor:
        blocks = hidden.unflatten(-1, (self.groups, self.group_size))  # [n, B, groups, group]
        base = base.view(self.kernel_size, self.groups, self.group_size)
        kernels = (base + delta[..., None]).unbind(2)  # k times [n, B, groups, group]
        out = kernels[0] * blocks
        for tap in range(1, self.kernel_size):
            # Taps that reach before the block are zero: its first rows are left alone.
            out[:, tap:].addcmul_(kernels[tap][:, tap:], blocks[:, :-tap])
        return out.flatten(-2)


class StaticConv(nn.Module):
    """``out[t] = sum_j weight[j] * x[t - j] + bias``, depthwise, between attention and MLP.

    Tensors: ``weight [k, D]``, ``bias [D]``. This project's own variant, no published checkpoint's.
    """

    def __init__(self, hidden_size: int, conv: ConvConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(conv.kernel_size, hidden_size))
        self.bias = nn.Parameter(torch.empty(hidden_size))

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.weight.zero_()
            self.weight[0] = 1.0
            self.bias.zero_()

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden [n, B, D] -> [n, B, D]."""
        out = torch.addcmul(self.bias, hidden, self.weight[0])
        for tap in range(1, self.weight.shape[0]):
            out[:, tap:].addcmul_(hidden[:, :-tap], self.weight[tap])
        return out
