"""Which keys a block's tokens see: the block-diagonal mask of training, once as a predicate.

One sequence carries T context positions and A blocks of B tokens. Keys are laid out as
[context 0 .. T-1, block 0, block 1, ...], queries as [block 0, block 1, ...].

**Which context a block sees.** The design demands features at positions <= the anchor, never later
ones. Served, a block starts from the bonus token: the target has not read that token yet, so its
features do not exist and the last ones there are belong to the position before it. Training
therefore shows a block the features at positions strictly *before* its anchor; the anchor itself
enters through its embedding. This satisfies the rule and equals serving position by position
(DFlash, arXiv 2602.06036; confirmed by the reference package's generation loop).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from dflash_sglang.config import DFlash2Config


class LayerRule(NamedTuple):
    """What narrows the view of one draft layer."""

    causal: bool  # inside the block
    window: int | None  # a key is seen when nearer than this many positions


MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""FlexAttention's predicate: (batch, head, query index, key index) -> visible."""


def layer_rules(config: DFlash2Config) -> list[LayerRule]:
    """The rule of every layer of a drafter."""
    return [
        LayerRule(config.causal[i], config.layer_window(i)) for i in range(config.num_hidden_layers)
    ]


def block_mask_mod(
    anchors: Tensor, context_length: int, block_size: int, rule: LayerRule
) -> MaskMod:
    """The predicate for `anchors` [S, A] int64 over `context_length` T context keys.

    A block that pads the batch (anchor -1) sees itself only, so no softmax row is empty.
    """

    def visible(sequence: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        block, offset = query // block_size, query % block_size
        anchor = anchors[sequence, block]
        # Keys of the blocks stand behind the context; their indices are meaningless below T.
        own = key - context_length
        own_offset = own % block_size
        in_context = (key < context_length) & (key < anchor)
        in_block = (key >= context_length) & (own // block_size == block)
        if rule.causal:
            in_block = in_block & (own_offset <= offset)
        if rule.window is not None:
            in_context = in_context & (anchor + offset - key < rule.window)
            in_block = in_block & ((offset - own_offset).abs() < rule.window)
        return in_context | in_block

    return visible


def dense_block_mask(
    anchors: Tensor, context_length: int, block_size: int, rule: LayerRule
) -> Tensor:
    """The predicate written out: [S, A * B, T + A * B] bool."""
    device = anchors.device
    sequences, blocks = anchors.shape
    queries = blocks * block_size
    sequence = torch.arange(sequences, device=device)[:, None, None]
    query = torch.arange(queries, device=device)[None, :, None]
    key = torch.arange(context_length + queries, device=device)[None, None, :]
    mask_mod = block_mask_mod(anchors, context_length, block_size, rule)
    return mask_mod(sequence, torch.zeros_like(sequence), query, key)
