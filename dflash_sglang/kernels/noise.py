"""Gumbel noise keyed by request seed, position and column: what ``csrc/core/noise.h`` computes.

``verify.noise`` says what it is for. MurmurHash3 (Appleby), as SGLang's seeded sampler uses it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

UINT32_MAX = 0xFFFFFFFF


class NoiseKeys(NamedTuple):
    """What the noise of some draws is a function of; it is computed where it is used, never kept.

    Column t of the positions belongs to the draws at depth t behind a request's anchor.
    """

    seeds: Tensor  # [bs] int64, one a request; all 64 bits count
    positions: Tensor  # [bs, P] int64, absolute position of the token after which is drawn

    def values(self, num_columns: int) -> Tensor:
        """The noise itself, ``[bs, P, num_columns]`` float64: see :func:`gumbel_noise`."""
        return gumbel_noise(self.seeds, self.positions, num_columns)


def gumbel_noise(seeds: Tensor, positions: Tensor, num_columns: int) -> Tensor:
    """Noise for every column at every position of every request.

    Args:
        seeds: ``[bs]`` int64, one a request; all 64 bits count.
        positions: ``[bs, P]`` int64, the absolute position of the token *after which* is drawn:
            the noise of the root is that of the anchor's position. Its low 32 bits count.
        num_columns: width of the vocabulary.

    Returns:
        ``[bs, P, num_columns]`` float64. A column is a token id, or a rank where SGLang's sampler
        draws from sorted probabilities (see ``verify.target``).

    Raises:
        ValueError: seeds and positions do not fit each other.
    """
    if seeds.dim() != 1 or positions.dim() != 2 or seeds.shape[0] != positions.shape[0]:
        raise ValueError(
            "seeds must be [bs] and positions [bs, P], "
            f"got {list(seeds.shape)} and {list(positions.shape)}"
        )
    hashed = hash_columns(seeds.unsqueeze(1), positions, num_columns)  # [bs, P, V]
    # In double precision: float32 has no room for the uniform numbers next to 1, which win.
    uniform = hashed.to(torch.float64) / UINT32_MAX
    log_uniform = uniform.log_().clamp_(min=torch.finfo(torch.float64).min, max=-(2.0**-32))
    return log_uniform.neg_().log_().neg_()


def hash_columns(seeds: Tensor, positions: Tensor, num_columns: int) -> Tensor:
    """MurmurHash3 (x86, 32 bit, seed 0) of seed (8 bytes), position and column (4 bytes each).

    Seeds and positions are int64 and broadcast to some shape ``[...]``; the result is
    ``[..., num_columns]`` int64 with values of 32 bits.
    """
    columns = torch.arange(num_columns, dtype=torch.int32, device=positions.device)
    state = _absorb(torch.zeros_like(seeds, dtype=torch.int32), seeds.to(torch.int32))
    state = _absorb(state, (seeds >> 32).to(torch.int32))
    state = _absorb(state, positions.to(torch.int32))  # [...]
    state = _absorb(state.unsqueeze(-1), columns)  # [..., num_columns]
    state = state ^ 16  # bytes absorbed
    state = (state ^ _shift_right(state, 16)) * _int32(0x85EBCA6B)
    state = (state ^ _shift_right(state, 13)) * _int32(0xC2B2AE35)
    state = state ^ _shift_right(state, 16)
    return state.to(torch.int64) & UINT32_MAX


# The hash counts modulo 2^32. Tensors of int32 do, too; only shifts to the right must be unsigned.


def _absorb(state: Tensor, block: Tensor) -> Tensor:
    """Mix four bytes into the state of the hash; both int32."""
    block = _rotate_left(block * _int32(0xCC9E2D51), 15) * _int32(0x1B873593)
    return _rotate_left(state ^ block, 13) * 5 + _int32(0xE6546B64)


def _rotate_left(x: Tensor, bits: int) -> Tensor:
    return (x << bits) | _shift_right(x, 32 - bits)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & ((1 << (32 - bits)) - 1)


def _int32(unsigned: int) -> int:
    """The signed number with the same 32 bits."""
    return unsigned - (1 << 32) if unsigned >= 1 << 31 else unsigned
