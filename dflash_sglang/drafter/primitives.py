"""Linear layers and norms that train on PyTorch's operators and serve on this project's kernels.

``fused`` is set by ``DFlash2Drafter.freeze`` and says that the kernels serve; a module without it
is PyTorch's own.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dflash_sglang.kernels.linear import linear
from dflash_sglang.kernels.rows import rms_norm


class Linear(nn.Linear):
    """``x [..., in] -> [..., out]``."""

    fused = False

    def forward(self, x: Tensor) -> Tensor:
        return product(x, self.weight, self.bias, self.fused)


class RMSNorm(nn.RMSNorm):
    """``x [..., width]``, normalised over its last dimension."""

    fused = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.fused or self.eps is None:
            return super().forward(x)
        rows = x.flatten(0, -3) if x.dim() > 3 else x  # a view also of a slice of stacked heads
        return rms_norm(rows, self.weight, self.eps).view(x.shape)


def product(x: Tensor, weight: Tensor, bias: Tensor | None, fused: bool) -> Tensor:
    """``x @ weight.T + bias`` by the kernel or by PyTorch."""
    return linear(x, weight, bias) if fused else F.linear(x, weight, bias)


class StackedLinear(nn.Module):
    """Several linear layers of one input as one product, kept while a drafter serves.

    The layers' parameters become views of the stack, so that nothing is held twice.
    """

    weight: Tensor  # [sum of outs, in]
    bias: Tensor | None  # [sum of outs]

    def __init__(self, layers: list[Linear]) -> None:
        super().__init__()
        self.widths = [layer.out_features for layer in layers]
        self.fused = layers[0].fused
        weight = torch.cat([layer.weight.data for layer in layers])
        bias = None if layers[0].bias is None else torch.cat([layer.bias.data for layer in layers])
        self.register_buffer("weight", weight, persistent=False)
        self.register_buffer("bias", bias, persistent=False)
        for layer, rows in zip(layers, weight.split(self.widths), strict=True):
            layer.weight.data = rows

    def forward(self, x: Tensor) -> Tensor:
        """``x [..., in]`` -> all outputs behind one another, ``[..., sum of outs]``."""
        return product(x, self.weight, self.bias, self.fused)

    def parts(self, x: Tensor) -> tuple[Tensor, ...]:
        """``x [..., in]`` -> each layer's output, views of one tensor."""
        return self(x).split(self.widths, dim=-1)
