"""Learning rate as a function of the step."""

from __future__ import annotations

import math


def learning_rate(step: int, peak: float, warmup: int, total: int, floor: float = 0.0) -> float:
    """Rate of step `step` (0-based): linear warm-up to `peak`, half a cosine to `floor * peak`."""
    if step < warmup:
        return peak * (step + 1) / warmup
    done = (step - warmup) / max(1, total - warmup)
    return peak * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))
