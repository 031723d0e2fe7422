"""KV injection: the context's keys and values for all layers from one product."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dflash_sglang.config import DFlash2Config
from dflash_sglang.drafter.layers import InjectedAttention


class ContextProjection(nn.Module):
    """Key and value projections of every layer, stacked, with the layers' key norms.

    Gradients pass through to the layers. A stack that is kept must be made anew when they change.
    """

    weight: Tensor  # [L, 2 Hkv d, D], keys before values
    bias: Tensor | None  # [L, 1, 2 Hkv d]
    key_scale: Tensor  # [L, 1, 1, d]

    def __init__(self, config: DFlash2Config, layers: Sequence[InjectedAttention]) -> None:
        super().__init__()
        self.heads = (2, config.num_key_value_heads, config.head_dim)
        self.eps = config.rms_norm_eps
        pairs = [(layer.k_proj, layer.v_proj) for layer in layers]
        weight = torch.stack([torch.cat((k.weight, v.weight)) for k, v in pairs])
        self.register_buffer("weight", weight, persistent=False)
        bias = None
        if config.attention_bias:
            bias = torch.stack([torch.cat((k.bias, v.bias)) for k, v in pairs])[:, None]
        self.register_buffer("bias", bias, persistent=False)
        scales = torch.stack([layer.k_norm.weight for layer in layers])
        self.register_buffer("key_scale", scales[:, None, None], persistent=False)

    def forward(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """context [T, D] -> keys, head-normed but not rotated, and values, [L, T, Hkv, d] each."""
        projected = context @ self.weight.mT  # [L, T, 2 Hkv d]
        if self.bias is not None:
            projected = projected + self.bias
        keys, values = projected.unflatten(-1, self.heads).unbind(2)
        return F.rms_norm(keys, self.heads[-1:], eps=self.eps) * self.key_scale, values
