"""A KV cache whose rows have their own lengths, for batched generation and batched verification.

`transformers` ships caches in which all rows grow together, which forces left padding and cannot
take back the rejected part of a speculative step row by row. Here the caller says, before each
forward, into which slots the new tokens of each row go; a mask says what each token sees.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

# transformers takes every name with "flash" in it for a kernel of the hub.
GROUPED_ATTENTION = "grouped_ragged"


class _RaggedLayer(CacheLayerMixin):
    def __init__(self, cache: RaggedCache):
        super().__init__()
        self.cache = cache

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        bs, heads, _, width = key_states.shape
        shape = (bs, heads, self.cache.capacity)
        self.keys = key_states.new_zeros((*shape, width))  # [bs, Hkv, capacity, d]
        self.values = value_states.new_zeros((*shape, value_states.shape[-1]))
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs):
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        slots, extent = self.cache.slots, self.cache.extent  # [bs, t]
        rows = torch.arange(slots.shape[0], device=slots.device)[:, None]  # [bs, 1]
        self.keys[rows, :, slots] = key_states.transpose(1, 2)  # [bs, t, Hkv, d]
        self.values[rows, :, slots] = value_states.transpose(1, 2)
        return self.keys[:, :, :extent], self.values[:, :, :extent]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.cache.extent, 0

    def get_seq_length(self) -> int:
        return self.cache.extent if self.is_initialized else 0

    def get_max_length(self) -> int:
        return self.cache.capacity


class RaggedCache(Cache):
    """`capacity` KV slots a row; `place` names the slots of the next forward.

    Args:
        num_layers: decoder layers of the target.
        capacity: slots of each row.
    """

    def __init__(self, num_layers: int, capacity: int):
        self.capacity = capacity
        self.slots: Tensor = torch.zeros(0, 0, dtype=torch.int64)  # [bs, t] of the next forward
        self.extent = 0  # slots below it are handed to the attention of the next forward
        super().__init__(layers=[_RaggedLayer(self) for _ in range(num_layers)])

    def place(self, slots: Tensor, extent: int) -> None:
        """The next forward writes its tokens to `slots` [bs, t] and attends to slots < `extent`."""
        if extent > self.capacity:
            raise ValueError(f"cache holds {self.capacity} slots a row, {extent} were asked for")
        self.slots, self.extent = slots, extent

    def move(self, sources: Tensor, destinations: Tensor) -> None:
        """Copy slots within each row, `sources` to `destinations` [bs, t]: commits a tree path."""
        rows = torch.arange(sources.shape[0], device=sources.device)[:, None]
        for layer in self.layers:
            layer.keys[rows, :, destinations] = layer.keys[rows, :, sources]
            layer.values[rows, :, destinations] = layer.values[rows, :, sources]

    def select_rows(self, rows: Tensor) -> None:
        """Keep `rows` [m] int64 only, so that finished requests stop costing time."""
        for layer in self.layers:
            if layer.is_initialized:
                layer.keys = layer.keys.index_select(0, rows)
                layer.values = layer.values.index_select(0, rows)


def grouped_attention(
    module, query: Tensor, key: Tensor, value: Tensor, attention_mask, scaling=None, **kwargs
):
    """Masked attention without copying keys and values once per query head.

    query [bs, H, t, d], key, value [bs, Hkv, S, d], attention_mask [bs or 1, 1, t, S] bool or None
    (plain causal); returns ([bs, t, H, d], None). The query heads that share a KV head become
    further query rows.
    """
    for unsupported in ("softcap", "s_aux"):
        if kwargs.get(unsupported) is not None:
            raise ValueError(f"generation through a ragged cache does not support {unsupported}")
    if attention_mask is None:
        out = F.scaled_dot_product_attention(
            query, key, value, is_causal=query.shape[2] > 1, scale=scaling, enable_gqa=True
        )
        return out.transpose(1, 2).contiguous(), None
    bs, heads, t, width = query.shape
    kv_heads = key.shape[1]
    group = heads // kv_heads
    folded = query.reshape(bs, kv_heads, group * t, width)
    mask = attention_mask.repeat(1, 1, group, 1)  # [bs, 1, group * t, S]
    out = F.scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scaling)
    return out.view(bs, heads, t, width).transpose(1, 2).contiguous(), None


ALL_ATTENTION_FUNCTIONS.register(GROUPED_ATTENTION, grouped_attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(GROUPED_ATTENTION, sdpa_mask)
