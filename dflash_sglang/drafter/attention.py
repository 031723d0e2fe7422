"""What a block may attend to, and attention over an explicit context.

The rule is that of the published drafters: a full layer sees the whole context and the whole
block; a sliding layer sees the last ``sliding_window`` positions, itself included, and is causal
unless the checkpoint's ``is_causal`` says otherwise.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from dflash_sglang.config import DFlash2Config


class AttentionCore(Protocol):
    """Attention of a block's own tokens over context and block: all that engine, training and
    reference exchange. It owns the context; the drafter hands it what it computed for the block."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [n, B, H, d], k and v [n, B, Hkv, d], head-normed and rotated -> out [n, B, H, d]."""
        ...


class ContextKV(NamedTuple):
    """Keys and values that the context features inject into every layer."""

    keys: Tensor  # [L, T, Hkv, d], head-normed and rotated
    values: Tensor  # [L, T, Hkv, d]

    def append(self, new: ContextKV) -> ContextKV:
        """The context grown by the positions of ``new``."""
        return ContextKV(
            torch.cat((self.keys, new.keys), dim=1), torch.cat((self.values, new.values), dim=1)
        )


def visible(
    query_positions: Tensor, key_positions: Tensor, causal: bool, window: int | None
) -> Tensor:
    """Which keys a query sees, by absolute positions alone.

    query_positions [..., Q], key_positions [..., K] -> bool [..., Q, K]. ``window`` counts the
    query itself; a layer that is not causal looks as far ahead as back.
    """
    ahead = key_positions[..., None, :] - query_positions[..., :, None]  # [..., Q, K]
    if window is None:
        return ahead <= 0 if causal else torch.ones_like(ahead, dtype=torch.bool)
    seen = ahead > -window
    return seen & (ahead <= 0 if causal else ahead < window)


class DenseAttention:
    """Attention core over one context that all blocks of a call share (batch of one, tests).

    The block follows the context: context positions are 0 to T - 1, the block's T to T + B - 1.
    """

    def __init__(self, config: DFlash2Config, context: ContextKV) -> None:
        self.config = config
        self.context = context

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        blocks, size = q.shape[:2]
        length = self.context.keys.shape[1]
        keys = torch.cat((self.context.keys[layer].expand(blocks, -1, -1, -1), k), dim=1)
        values = torch.cat((self.context.values[layer].expand(blocks, -1, -1, -1), v), dim=1)
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            attn_mask=self._mask(layer, length, size, q.device),
            enable_gqa=True,
        )  # [n, H, B, d]
        return out.transpose(1, 2)

    def _mask(self, layer: int, length: int, size: int, device: torch.device) -> Tensor | None:
        causal, window = self.config.causal[layer], self.config.layer_window(layer)
        if not causal and window is None:
            return None
        positions = torch.arange(length + size, device=device)
        return visible(positions[length:], positions, causal, window)  # [B, T + B]
