"""Each request's doubt: how far its drafter's law is from the target's, learned from what it got.

The doubt of ``tree.noisy`` has no right value for all texts: where the target is sure and the
drafter is not, the noise decides little; where both are unsure alike, it decides nearly everything.
So a few values compete for every request. Each step tells, for every token it delivered, with what
chance each value had expected that token; the value with the largest likelihood so far is used.
"""

from __future__ import annotations

import torch
from torch import Tensor

DOUBTS = (0.3, 0.7, 1.5, 3.0, 6.0)

# Likelihood before anything was seen, in nats: the middle of what was measured on two drafters.
_PRIOR = (-3.0, -1.5, -0.5, 0.0, -0.5)
_MEMORY = 0.95  # of what earlier steps said, kept a step


class DoubtLedger:
    """Evidence for every request a server can hold at once.

    Args:
        rows: number of requests.
        device: where steps are computed.
    """

    def __init__(self, rows: int, device: torch.device | str) -> None:
        self.values = torch.tensor(DOUBTS, device=device)  # [S]
        self._prior = torch.tensor(_PRIOR, device=device)
        self._evidence = self._prior.repeat(rows, 1)  # [rows, S]

    def restart(self, rows: Tensor) -> None:
        """Forget the requests that had these rows, [n] int64."""
        self._evidence[rows] = self._prior

    def doubts(self, rows: Tensor) -> Tensor:
        """The likeliest doubt of each request: rows [bs] int64 -> [bs] float32."""
        return self.values[self._evidence[rows].argmax(dim=-1)]

    def learn(self, rows: Tensor, evidence: Tensor) -> None:
        """Take in one step: rows [bs] int64, evidence [bs, S] float32 from ``doubt_evidence``."""
        self._evidence[rows] = (
            self._prior + _MEMORY * (self._evidence[rows] - self._prior) + evidence
        )
