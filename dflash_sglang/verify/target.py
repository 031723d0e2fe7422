"""The target's token after each node of the draft tree."""

from __future__ import annotations

from torch import Tensor


def greedy_tokens(logits: Tensor) -> Tensor:
    """Argmax over the vocabulary, the lowest id in a tie: [bs, N, V] -> [bs, N] int64."""
    return logits.argmax(dim=-1)
