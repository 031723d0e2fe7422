"""Top-k, top-p and min-p, as SGLang's sampler applies them and as the drafter anticipates them."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

NO_TOP_K = 1 << 30  # SGLang's number for the whole vocabulary

# How many ranks of a truncated draft law are looked at. A nucleus of more tokens loses the rest as
# candidates, which costs acceptance now and then and spares a sort of the vocabulary.
MAX_DRAFT_RANKS = 256


class Truncation(NamedTuple):
    """Restrictions of the law that is drawn from, by request.

    Out are ranks from top_k on, ranks before which more than top_p has accumulated, and what has
    less than min_p times the greatest probability.
    """

    top_ks: Tensor  # [bs] int64, at least 1; NO_TOP_K for no restriction
    top_ps: Tensor  # [bs] float32, in (0, 1]; 1 for no restriction
    min_ps: Tensor | None = None  # [bs] float32, in [0, 1); 0 for no restriction

    def applies(self) -> Tensor:
        """Which requests are restricted, [bs] bool."""
        applies = (self.top_ks < NO_TOP_K) | (self.top_ps < 1)
        return applies if self.min_ps is None else applies | (self.min_ps > 0)

    def drops(self, ranked_probs: Tensor) -> Tensor:
        """Which ranks are out: [bs, ..., n] probabilities, largest first -> bool, same shape."""
        by_request = (-1, *[1] * (ranked_probs.dim() - 1))
        ranks = torch.arange(ranked_probs.shape[-1], device=ranked_probs.device)
        mass_before = ranked_probs.cumsum(dim=-1) - ranked_probs
        beyond_k = ranks >= self.top_ks.view(by_request)
        drops = beyond_k | (mass_before > self.top_ps.view(by_request))
        if self.min_ps is None:
            return drops
        return drops | (ranked_probs < self.min_ps.view(by_request) * ranked_probs[..., :1])


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
