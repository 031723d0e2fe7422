"""Norms, rotary embedding, gated activations and KV writes: what stands between matrix products."""

from __future__ import annotations

from enum import IntEnum

import torch
import torch.nn.functional as F

from dflash_sglang.kernels import library


class Activation(IntEnum):
    """Activation of a gated feed-forward layer."""

    SILU = 0
    GELU_TANH = 1


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    residual: torch.Tensor | None = None,
    *,
    weight_offset: float = 0.0,
    round_normalized: bool = False,
    round_sum: bool = False,
) -> torch.Tensor:
    """``x / rms(x) * (weight + weight_offset)`` over the last dimension, float32 inside.

    Args:
        x: [rows, width] or [tokens, heads, width], last dimension contiguous.
        weight: [width], dtype of x.
        eps: added to the mean square.
        residual: [rows, width]; becomes ``x + residual``, which is then normalised. Written.
        weight_offset: 1 for models that store the weight's distance from one (Gemma).
        round_normalized: round to the storage dtype before the weight is applied (Llama in
            transformers).
        round_sum: normalise the rounded sum with the residual rather than the exact one (Gemma).

    Returns:
        Contiguous, shape and dtype of x.

    Raises:
        ValueError: shapes or dtypes that do not fit together.
    """
    return torch.ops.dflash2.rms_norm(
        x, residual, weight, eps, weight_offset, round_normalized, round_sum
    )


def rotary_embedding(
    positions: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    neox: bool,
) -> None:
    """Rotate every head of ``q`` and ``k`` in place (RoPE, arXiv 2104.09864), float32 inside.

    Args:
        positions: [tokens] int64.
        q: [tokens, heads, head_dim], of which the first rotary_dim elements are rotated; written.
        k: [tokens, kv_heads, head_dim]; written.
        cos_sin_cache: [positions, rotary_dim], cosines then sines.
        neox: pairs are (i, i + rotary_dim / 2), otherwise (2i, 2i + 1).

    Raises:
        ValueError: shapes or dtypes that do not fit together.
    """
    torch.ops.dflash2.rotary_embedding(positions, q, k, cos_sin_cache, neox)


def gated_activation(x: torch.Tensor, activation: Activation) -> torch.Tensor:
    """``activation(gate) * up`` for rows ``[gate, up]``: [..., 2 * width] to [..., width]."""
    return torch.ops.dflash2.gated_activation(x, int(activation))


def store_kv(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """Write ``k[i]`` and ``v[i]`` to ``slots[i]`` of their caches.

    Args:
        k: [tokens, ...], rows of as many elements as the cache's.
        v: [tokens, ...].
        k_cache: [slots, ...], same dtype; written.
        v_cache: [slots, ...]; written.
        slots: [tokens] int64.

    Raises:
        IndexError: a slot outside of the cache.
        ValueError: shapes or dtypes that do not fit together.
    """
    torch.ops.dflash2.store_kv(k, v, k_cache, v_cache, slots)


def _rms_norm_reference(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    weight_offset: float,
    round_normalized: bool,
    round_sum: bool,
) -> torch.Tensor:
    value = x.float()
    if residual is not None:
        value = value + residual.float()
        residual.copy_(value)
        value = residual.float() if round_sum else value
    value = value * torch.rsqrt(value.pow(2).mean(-1, keepdim=True) + eps)
    value = value.to(x.dtype).float() if round_normalized else value
    return (value * (weight.float() + weight_offset)).to(x.dtype)


def _rotary_embedding_reference(
    positions: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    neox: bool,
) -> None:
    cos, sin = cos_sin_cache[positions].float().unsqueeze(1).chunk(2, -1)  # [tokens, 1, half]
    rotary_dim = cos_sin_cache.shape[1]
    for x in (q, k):
        heads = x[..., :rotary_dim]  # a view: written through
        pairs = heads.float()
        a, b = pairs.chunk(2, -1) if neox else (pairs[..., ::2], pairs[..., 1::2])
        rotated = (a * cos - b * sin, b * cos + a * sin)
        heads.copy_(torch.cat(rotated, -1) if neox else torch.stack(rotated, -1).flatten(-2))


def _gated_activation_reference(x: torch.Tensor, activation: int) -> torch.Tensor:
    gate, up = x.float().chunk(2, -1)
    if activation == Activation.SILU:
        return (F.silu(gate) * up).to(x.dtype)
    return (F.gelu(gate, approximate="tanh") * up).to(x.dtype)


def _store_kv_reference(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    k_cache[slots] = k.reshape(-1, *k_cache.shape[1:])
    v_cache[slots] = v.reshape(-1, *v_cache.shape[1:])


library.define(
    library.Operator(
        "rms_norm(Tensor x, Tensor(a!)? residual, Tensor weight, float eps, float weight_offset, "
        "bool round_normalized, bool round_sum) -> Tensor",
        reference=_rms_norm_reference,
        fake=lambda x, *_: x.new_empty(x.shape),
    )
)
library.define(
    library.Operator(
        "rotary_embedding(Tensor positions, Tensor(a!) q, Tensor(b!) k, Tensor cos_sin_cache, "
        "bool neox) -> ()",
        reference=_rotary_embedding_reference,
        fake=lambda *_: None,
    )
)
library.define(
    library.Operator(
        "gated_activation(Tensor x, int activation) -> Tensor",
        reference=_gated_activation_reference,
        fake=lambda x, _: x.new_empty(*x.shape[:-1], x.shape[-1] // 2),
    )
)
library.define(
    library.Operator(
        "store_kv(Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor slots) -> ()",
        reference=_store_kv_reference,
        fake=lambda *_: None,
    )
)
