"""What the width policy chose, what it promised, and what came of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from dflash_sglang.adaptive.acceptance import Floats
from dflash_sglang.adaptive.policy import Width


@dataclass
class WidthLog:
    """Sums over a stretch of decode steps.

    Attributes:
        widths: W ascending numbers of nodes.
        steps: decode steps by their width.
        promised_tokens, promised_ms: what the policy expected of them.
        tokens, ms: what came.
        choosing_ms: what choosing their widths took.
        fixed_tokens, fixed_ms: [W] what each width was expected to bring if it had been kept.
    """

    widths: tuple[int, ...]
    steps: Counter[int] = field(default_factory=Counter)
    promised_tokens: float = 0.0
    promised_ms: float = 0.0
    tokens: float = 0.0
    ms: float = 0.0
    choosing_ms: float = 0.0
    fixed_tokens: Floats = field(init=False)
    fixed_ms: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.fixed_tokens = np.zeros(len(self.widths))
        self.fixed_ms = np.zeros(len(self.widths))

    def add(self, width: Width, tokens: int, milliseconds: float, steps: int) -> None:
        """Take in equal steps.

        Args:
            width: what was chosen.
            tokens: that the steps delivered to all requests together.
            milliseconds: of all of them, from the first one's start to that of the one behind them.
            steps: how many there were.
        """
        self.steps[width.nodes] += steps
        self.promised_tokens += steps * width.tokens
        self.promised_ms += steps * width.milliseconds
        self.tokens += tokens
        self.ms += milliseconds

    def compare(self, curve: Floats, times: Floats, steps: int, choosing_ms: float) -> None:
        """Take in what was known of these steps.

        Args:
            curve: [W] tokens that each width was expected to bring in a step.
            times: [W] milliseconds that each width was expected to take for it.
            steps: how many there were.
            choosing_ms: what choosing their widths took.
        """
        self.choosing_ms += choosing_ms
        self.fixed_tokens += steps * curve
        self.fixed_ms += steps * times

    def take_in(self, other: WidthLog) -> None:
        """Add a later stretch."""
        self.steps.update(other.steps)
        self.promised_tokens += other.promised_tokens
        self.promised_ms += other.promised_ms
        self.tokens += other.tokens
        self.ms += other.ms
        self.choosing_ms += other.choosing_ms
        self.fixed_tokens += other.fixed_tokens
        self.fixed_ms += other.fixed_ms

    @property
    def count(self) -> int:
        return self.steps.total()

    def best_fixed(self) -> tuple[int, float]:
        """The width that was expected to be best if kept, and its tokens a millisecond."""
        rates = self.fixed_tokens / np.maximum(self.fixed_ms, 1e-9)
        best = int(rates.argmax())
        return self.widths[best], float(rates[best])

    def regret(self) -> float:
        """Share by which the best fixed width was expected to beat what was expected of ours."""
        ours = self.promised_tokens / max(self.promised_ms, 1e-9)
        return 1 - ours / max(self.best_fixed()[1], 1e-9)

    def describe(self) -> str:
        """One line for the log."""
        shares = ", ".join(
            f"{nodes}: {count / self.count:.0%}" for nodes, count in sorted(self.steps.items())
        )
        fixed, _ = self.best_fixed()
        return (
            f"{self.count} steps by nodes {{{shares}}}; tokens/s expected "
            f"{1e3 * self.promised_tokens / self.promised_ms:.0f}, measured "
            f"{1e3 * self.tokens / self.ms:.0f}; choosing took "
            f"{self.choosing_ms / self.ms:.1%}; best fixed width {fixed}, regret "
            f"{self.regret():+.1%}"
        )
