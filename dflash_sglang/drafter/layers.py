"""One drafter layer: Qwen3-style attention with KV injection, MLP, local convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from dflash_sglang.config import DFlash2Config
from dflash_sglang.drafter.convolution import GroupedDynamicConv, StaticConv
from dflash_sglang.drafter.primitives import Linear, RMSNorm, StackedLinear
from dflash_sglang.drafter.rotary import Rotation, rotate_pair
from dflash_sglang.kernels.rows import Activation, gated_activation

LayerCore = Callable[[Tensor, Tensor, Tensor], Tensor]
"""An attention core with its layer fixed: q, k, v of the block -> out."""


class BlockQKV(NamedTuple):
    """A block's own queries, keys and values in one layer, head-normed and rotated."""

    q: Tensor  # [n, B, H, d]
    k: Tensor  # [n, B, Hkv, d]
    v: Tensor  # [n, B, Hkv, d]


class InjectedAttention(nn.Module):
    """Projections and head norms; the attention itself is the caller's core."""

    def __init__(self, config: DFlash2Config) -> None:
        super().__init__()
        width, bias = config.hidden_size, config.attention_bias
        self.head_dim = config.head_dim
        query_width = config.num_attention_heads * config.head_dim
        kv_width = config.num_key_value_heads * config.head_dim
        self.q_proj = Linear(width, query_width, bias=bias)
        self.k_proj = Linear(width, kv_width, bias=bias)
        self.v_proj = Linear(width, kv_width, bias=bias)
        self.o_proj = Linear(query_width, width, bias=bias)
        self.q_norm = RMSNorm(config.head_dim, eps=config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, eps=config.rms_norm_eps)
        self.stacked: StackedLinear | None = None

    def stack(self) -> None:
        """Make one product of the three projections, for serving."""
        self.stacked = StackedLinear([self.q_proj, self.k_proj, self.v_proj])

    def project(self, hidden: Tensor, rotation: Rotation) -> BlockQKV:
        """hidden [n, B, D] -> the block's queries, keys and values."""
        if self.stacked is None:
            rows = (self.q_proj(hidden), self.k_proj(hidden), self.v_proj(hidden))
        else:
            rows = self.stacked.parts(hidden)
        q, k, v = (part.unflatten(-1, (-1, self.head_dim)) for part in rows)
        q, k = rotate_pair(self.q_norm(q), self.k_norm(k), rotation)
        return BlockQKV(q, k, v)

    def forward(self, hidden: Tensor, rotation: Rotation, core: LayerCore) -> Tensor:
        """hidden [n, B, D] -> [n, B, D]."""
        return self.o_proj(core(*self.project(hidden, rotation)).flatten(-2))


class GatedMLP(nn.Module):
    """``down(silu(gate x) * up x)``."""

    def __init__(self, config: DFlash2Config) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = Linear(width, inner, bias=False)
        self.up_proj = Linear(width, inner, bias=False)
        self.down_proj = Linear(inner, width, bias=False)
        self.stacked: StackedLinear | None = None

    def stack(self) -> None:
        """Make one product of gate and up, for serving."""
        self.stacked = StackedLinear([self.gate_proj, self.up_proj])

    def forward(self, hidden: Tensor) -> Tensor:
        if self.stacked is not None and self.stacked.fused:
            return self.down_proj(gated_activation(self.stacked(hidden), Activation.SILU))
        gate, up = (
            (self.gate_proj(hidden), self.up_proj(hidden))
            if self.stacked is None
            else self.stacked.parts(hidden)
        )
        return self.down_proj(F.silu(gate) * up)


class DrafterLayer(nn.Module):
    """Pre-norm attention and MLP; a dynamic convolution wraps both, a static one stands between."""

    def __init__(self, config: DFlash2Config) -> None:
        super().__init__()
        width, eps, conv = config.hidden_size, config.rms_norm_eps, config.conv
        self.self_attn = InjectedAttention(config)
        self.mlp = GatedMLP(config)
        self.input_layernorm = RMSNorm(width, eps=eps)
        self.post_attention_layernorm = RMSNorm(width, eps=eps)
        self.attention_conv: GroupedDynamicConv | None = None
        self.mlp_conv: GroupedDynamicConv | None = None
        self.static_conv: StaticConv | None = None
        if conv is not None and conv.kind == "dynamic":
            self.attention_conv = GroupedDynamicConv(width, conv)
            self.mlp_conv = GroupedDynamicConv(width, conv)
        elif conv is not None:
            self.static_conv = StaticConv(width, conv)

    def forward(self, hidden: Tensor, rotation: Rotation, core: LayerCore) -> Tensor:
        """hidden [n, B, D] -> [n, B, D]."""
        hidden = hidden + _around(
            self.attention_conv,
            self.input_layernorm(hidden),
            lambda inner: self.self_attn(inner, rotation, core),
        )
        if self.static_conv is not None:
            hidden = self.static_conv(hidden)
        return hidden + _around(self.mlp_conv, self.post_attention_layernorm(hidden), self.mlp)


def _around(
    conv: GroupedDynamicConv | None, hidden: Tensor, sublayer: Callable[[Tensor], Tensor]
) -> Tensor:
    """The sublayer with its dynamic convolution on both sides, when the drafter has one."""
    if conv is None:
        return sublayer(hidden)
    hidden, kernels = conv.before(hidden)
    return conv.after(sublayer(hidden), kernels)
