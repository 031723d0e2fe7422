"""Top-k, top-p and min-p, as the drafter anticipates them."""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor

from dflash_sglang.kernels.truncation import NO_TOP_K, Truncation

__all__ = ["NO_TOP_K", "Truncation", "truncate_draft"]

# How many ranks of a truncated draft law are looked at. A nucleus of more tokens loses the rest as
# candidates, which costs acceptance now and then and spares a sort of the vocabulary.
MAX_DRAFT_RANKS = 256


def truncate_draft(log_probs: Tensor, truncation: Truncation | None) -> Tensor:
    """Set to -inf what is out under the draft's law: [bs, ..., n] float32 -> same shape.

    The n columns are the vocabulary, or the candidates that lead it in any order.
    """
    if truncation is None:
        return log_probs
    ranked = log_probs.topk(min(MAX_DRAFT_RANKS, log_probs.shape[-1]), dim=-1)
    kept = ranked.values.masked_fill(truncation.drops(ranked.values.exp()), -inf)
    truncated = torch.full_like(log_probs, -inf).scatter_(-1, ranked.indices, kept)
    applies = truncation.applies().view(-1, *[1] * (log_probs.dim() - 1))
    return torch.where(applies, truncated, log_probs)
