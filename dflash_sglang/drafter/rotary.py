"""Rotary position embedding at absolute positions, with every scaling that Qwen 3 configs use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dflash_sglang.config import RopeConfig
from dflash_sglang.kernels.rows import rotary_embedding


class Rotation(NamedTuple):
    """Cosines and signed sines of some positions; the head axis is there to broadcast."""

    cos: Tensor  # [..., 1, rotary_dim]
    sin: Tensor  # [..., 1, rotary_dim], negative in the first half
    table: RotationTable | None = None  # the same for the kernel, where that serves


class RotationTable(NamedTuple):
    """A rotation as the rotary kernel reads it, one row a token."""

    rows: Tensor  # [T] int64, 0 to T - 1
    cos_sin: Tensor  # [T, rotary_dim], the distinct cosines, then sines


class RotaryEmbedding(nn.Module):
    """Rotate-half RoPE. Angles are float32 in every model dtype: bfloat16 positions collide."""

    fused = False
    signed_frequencies: Tensor  # [rotary_dim] = [-f, f]: one product yields cosine and signed sine

    def __init__(self, config: RopeConfig) -> None:
        super().__init__()
        self.config = config
        frequencies, self.amplitude = inverse_frequencies(config)
        signed = torch.cat((-frequencies, frequencies))
        # A checkpoint does not hold them, so they are real even in a drafter built without storage.
        device = torch.get_default_device()
        if device.type != "meta":
            signed = signed.to(device)
        self.register_buffer("signed_frequencies", signed, persistent=False)

    def forward(self, positions: Tensor, dtype: torch.dtype, ahead: int = 0) -> Rotation:
        """positions [...] integer -> rotation in ``dtype`` (the reference rounds there too).

        ``ahead``: positions that follow in the same step. Dynamic NTK scaling depends on where a
        step ends, for its context as for its block.
        """
        signed, amplitude = self.signed_frequencies, self.amplitude
        if self.config.kind == "dynamic" and positions.numel():
            signed, amplitude = self._grown(int(positions.max()) + 1 + ahead)
        angles = positions[..., None, None].float() * signed  # [..., 1, rotary_dim]
        cos, sin = angles.cos(), angles.sin()
        if amplitude != 1.0:  # yarn only
            cos, sin = cos * amplitude, sin * amplitude
        cos, sin = cos.to(dtype), sin.to(dtype)
        return Rotation(cos, sin, _table(cos, sin) if self.fused else None)

    def _grown(self, length: int) -> tuple[Tensor, float]:
        """Frequencies of dynamic NTK scaling for a sequence of ``length``."""
        if length <= self.config.max_positions:
            return self.signed_frequencies, self.amplitude
        frequencies, amplitude = inverse_frequencies(self.config, length)
        signed = torch.cat((-frequencies, frequencies))
        return signed.to(self.signed_frequencies.device), amplitude

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RotaryEmbedding:
        """Move with the model, but stay float32 when the model's dtype changes."""
        exact = self.signed_frequencies
        super()._apply(fn, recurse)
        self.signed_frequencies = exact.to(self.signed_frequencies.device)
        return self


def _table(cos: Tensor, sin: Tensor) -> RotationTable:
    half = cos.shape[-1] // 2
    cos_sin = torch.cat((cos[..., :half], sin[..., half:]), dim=-1).flatten(0, -2)
    return RotationTable(torch.arange(cos_sin.shape[0]), cos_sin)


def rotate_pair(q: Tensor, k: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
    """Rotate queries ``[..., H, d]`` and keys ``[..., Hkv, d]``; the kernel does it in place."""
    if rotation.table is None:
        return rotate(q, rotation), rotate(k, rotation)
    rows, cos_sin = rotation.table
    rotary_embedding(rows, q.flatten(0, -3), k.flatten(0, -3), cos_sin, neox=True)
    return q, k


def rotate(heads: Tensor, rotation: Rotation) -> Tensor:
    """Rotate the first ``rotary_dim`` channels of ``heads [..., H, d]``; the rest stays."""
    width = rotation.cos.shape[-1]
    if width == heads.shape[-1]:
        return _rotate_all(heads, rotation)
    turned = _rotate_all(heads[..., :width], rotation)
    return torch.cat((turned, heads[..., width:]), dim=-1)


def _rotate_all(heads: Tensor, rotation: Rotation) -> Tensor:
    # The halves change places; the sign that rotate-half gives one of them is in the sine.
    swapped = heads.roll(heads.shape[-1] // 2, dims=-1)
    return torch.addcmul(heads * rotation.cos, swapped, rotation.sin)


def inverse_frequencies(config: RopeConfig, length: int | None = None) -> tuple[Tensor, float]:
    """Frequencies [rotary_dim / 2] float32 on the CPU, and the factor on cosine and sine.

    ``length`` is the sequence length that dynamic NTK scaling depends on. The scaled kinds are
    computed by transformers' ``ROPE_INIT_FUNCTIONS``, the code that drafters are trained with.
    """
    with torch.device("cpu"):
        if config.kind == "default":
            exponents = torch.arange(0, config.rotary_dim, 2, dtype=torch.float32)
            return 1.0 / (config.theta ** (exponents / config.rotary_dim)), 1.0
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        compute = ROPE_INIT_FUNCTIONS[config.kind]
        frequencies, amplitude = compute(_transformers_config(config), None, length)
    return frequencies.float(), float(amplitude)


def _transformers_config(config: RopeConfig) -> Any:
    from transformers import Qwen3Config

    return Qwen3Config(
        head_dim=config.rotary_dim,
        max_position_embeddings=config.max_positions,
        rope_parameters={
            "rope_type": config.kind,
            "rope_theta": config.theta,
            **(config.scaling or {}),
        },
    )
