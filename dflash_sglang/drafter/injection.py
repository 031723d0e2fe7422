"""KV injection: the context's keys and values for all layers from one product."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dflash_sglang.config import DFlash2Config
from dflash_sglang.drafter.layers import InjectedAttention
from dflash_sglang.drafter.primitives import product


class ContextProjection(nn.Module):
    """Key and value projections of every layer, stacked, with the layers' key norms.

    Gradients pass through to the layers. A stack that is kept must be made anew when they change.
    """

    weight: Tensor  # [L 2 Hkv d, D], keys before values in each layer
    bias: Tensor | None  # [L 2 Hkv d]
    key_scale: Tensor  # [L, 1, 1, d]

    def __init__(self, config: DFlash2Config, layers: Sequence[InjectedAttention]) -> None:
        super().__init__()
        self.heads = (2, config.num_key_value_heads, config.head_dim)
        self.eps = config.rms_norm_eps
        self.fused = layers[0].k_proj.fused
        pairs = [(layer.k_proj, layer.v_proj) for layer in layers]
        weight = torch.cat([part.weight for pair in pairs for part in pair])
        self.register_buffer("weight", weight, persistent=False)
        bias = None
        if config.attention_bias:
            bias = torch.cat([part.bias for pair in pairs for part in pair])
        self.register_buffer("bias", bias, persistent=False)
        scales = torch.stack([layer.k_norm.weight for layer in layers])
        self.register_buffer("key_scale", scales[:, None, None], persistent=False)

    def forward(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """context [T, D] -> keys, head-normed but not rotated, and values, [L, T, Hkv, d] each."""
        rows = product(context, self.weight, self.bias, self.fused)  # [T, L 2 Hkv d]
        projected = rows.unflatten(-1, (-1, *self.heads))  # [T, L, 2, Hkv, d]
        keys, values = projected.transpose(0, 1).unbind(2)  # [L, T, Hkv, d]
        return F.rms_norm(keys, self.heads[-1:], eps=self.eps) * self.key_scale, values
