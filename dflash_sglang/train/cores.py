"""Attention cores for training: many blocks of a sequence in one call, under the block mask.

The drafter hands a core the block's own queries, keys and values; the core adds the keys and values
of the sequence's context, which are computed once for all blocks of the sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dflash_sglang.config import DFlash2Config

from .mask import LayerRule, block_mask_mod, dense_block_mask, layer_rules


class PackedCore:
    """Common packing of both cores.

    Args:
        config: the drafter's.
        context_keys, context_values: [L, S, T, Hkv, d] of S sequences.
        anchors: [S, A] int64 block anchors (see mask.py).
        block_size: B.
    """

    def __init__(
        self,
        config: DFlash2Config,
        context_keys: Tensor,
        context_values: Tensor,
        anchors: Tensor,
        block_size: int,
    ):
        self.keys, self.values = context_keys, context_values
        self.anchors, self.block_size = anchors, block_size
        self.context_length = context_keys.shape[2]
        self.rules = layer_rules(config)
        # Layers mostly share one rule: each distinct one is worked out once.
        self.masks = {rule: self._mask(rule) for rule in set(self.rules)}

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [n, B, H, d], k, v [n, B, Hkv, d] with n = S * A -> [n, B, H, d]."""
        S, A = self.anchors.shape
        packed = (S, A * self.block_size)
        heads, width = q.shape[2:]
        keys = torch.cat([self.keys[layer], k.reshape(*packed, *k.shape[2:])], dim=1)
        values = torch.cat([self.values[layer], v.reshape(*packed, *v.shape[2:])], dim=1)
        out = self._attend(
            q.reshape(*packed, heads, width).transpose(1, 2),  # [S, H, A * B, d]
            keys.transpose(1, 2),  # [S, Hkv, T + A * B, d]
            values.transpose(1, 2),
            self.masks[self.rules[layer]],
        )
        return out.transpose(1, 2).reshape(S * A, self.block_size, heads, width)

    def _mask(self, rule: LayerRule) -> Any:
        raise NotImplementedError

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
        raise NotImplementedError


class SdpaCore(PackedCore):
    """The mask as a dense boolean tensor through scaled_dot_product_attention: runs everywhere."""

    def _mask(self, rule: LayerRule) -> Tensor:
        mask = dense_block_mask(self.anchors, self.context_length, self.block_size, rule)
        return mask[:, None]  # [S, 1, A * B, T + A * B]

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


class FlexCore(PackedCore):
    """The mask as a FlexAttention predicate: key tiles that no query of a tile sees are skipped.

    Needs torch.compile and a GPU to pay; PyTorch has no backward of it on the CPU.
    """

    def _mask(self, rule: LayerRule) -> Any:
        from torch.nn.attention.flex_attention import create_block_mask

        S, A = self.anchors.shape
        queries = A * self.block_size
        mask_mod = block_mask_mod(self.anchors, self.context_length, self.block_size, rule)
        return create_block_mask(
            mask_mod, S, None, queries, self.context_length + queries, device=self.anchors.device
        )

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
        return _flex_attention(q.device.type)(q, k, v, block_mask=mask, enable_gqa=True)


_FLEX: dict[str, Callable[..., Tensor]] = {}


def _flex_attention(device_type: str) -> Callable[..., Tensor]:
    """Compiled once a process on an accelerator, plain (the slow reference) elsewhere."""
    if device_type not in _FLEX:
        from torch.nn.attention.flex_attention import flex_attention

        _FLEX[device_type] = (
            torch.compile(flex_attention) if device_type == "cuda" else flex_attention
        )
    return _FLEX[device_type]


def packed_core(device: torch.device) -> type[PackedCore]:
    """The core that trains fastest on `device`."""
    return FlexCore if device.type == "cuda" else SdpaCore
