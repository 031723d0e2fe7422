"""Means, ratios and their 95 % confidence intervals over repetitions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

CONFIDENCE = 0.95
_DRAWS = 4096  # the chance is told to about one per cent


class Estimate(NamedTuple):
    """A value with its interval; one repetition has no interval."""

    value: float
    interval: tuple[float, float] | None


def mean(samples: Sequence[float]) -> Estimate:
    """Mean of independent repetitions, with Student's interval."""
    values = np.asarray(samples, dtype=float)
    if values.size == 0:
        raise ValueError("expected at least one repetition, got none")
    return _student(float(values.mean()), values)


def paired_ratio(samples: Sequence[float], baselines: Sequence[float]) -> Estimate:
    """Geometric mean of ``samples[i] / baselines[i]``.

    The two were measured one after the other in repetition ``i``, so a machine whose speed drifts
    from repetition to repetition cancels out of each ratio.
    """
    logs = np.log(np.asarray(samples, dtype=float)) - np.log(np.asarray(baselines, dtype=float))
    return _exponential(_student(float(logs.mean()), logs))


def median(samples: Sequence[float]) -> Estimate:
    """Median of independent repetitions, between two of them.

    What disturbs a repetition, however much, moves it by no more than one place. The interval
    assumes nothing of the distribution, for which it takes six repetitions.
    """
    values = np.sort(np.asarray(samples, dtype=float))
    if values.size == 0:
        raise ValueError("expected at least one repetition, got none")
    center = float(np.median(values))
    # The bound is the last repetition that is below the true median in more than chance's share.
    outside = int(stats.binom.ppf((1 - CONFIDENCE) / 2, values.size, 0.5))
    if outside < 1:
        return Estimate(center, None)
    return Estimate(center, (float(values[outside - 1]), float(values[-outside])))


def chance_of_reaching(share: float, ratios: Sequence[float]) -> float | None:
    """Chance that the median of as many repetitions is at ``share`` or above if its truth is 1.

    The repetitions are moved so that their median is 1, and drawn again with replacement
    (bootstrap), on the logarithms. Fewer repetitions than an interval takes say nothing: None.

    Args:
        share: above 0.
        ratios: each above 0.
    """
    if median(ratios).interval is None:
        return None
    logs = np.log(np.asarray(ratios, dtype=float))
    drawn = np.random.default_rng(0).choice(logs - np.median(logs), (_DRAWS, logs.size))
    return float((np.median(drawn, axis=1) >= math.log(share)).mean())


def harmonic_mean(columns: Sequence[Sequence[float]]) -> list[float]:
    """Repetition by repetition, the rate of a whole whose parts have equal amounts.

    Args:
        columns: of each part, its rates in every repetition, each above 0.
    """
    return [len(rates) / sum(1 / rate for rate in rates) for rates in zip(*columns, strict=True)]


class Change(NamedTuple):
    """``after / before`` of two independent runs."""

    ratio: float
    interval: tuple[float, float] | None

    @property
    def beyond_noise(self) -> bool | None:
        """Whether 1 lies outside the interval; None if there is no interval to say."""
        if self.interval is None:
            return None
        low, high = self.interval
        return not low <= 1.0 <= high


def change(before: Sequence[float], after: Sequence[float]) -> Change:
    """Ratio of the geometric means, with Welch's interval on the logarithms.

    Args:
        before: repetitions of one run, each above 0.
        after: repetitions of the other; their number may differ.
    """
    old, new = np.log(np.asarray(before, dtype=float)), np.log(np.asarray(after, dtype=float))
    difference = float(new.mean() - old.mean())
    if min(old.size, new.size) < 2:
        return Change(math.exp(difference), None)
    parts = [float(side.var(ddof=1)) / side.size for side in (old, new)]
    spread = math.sqrt(sum(parts))
    if spread == 0:
        return Change(math.exp(difference), (math.exp(difference),) * 2)
    # Welch and Satterthwaite's degrees of freedom.
    freedom = sum(parts) ** 2 / sum(
        part**2 / (side.size - 1) for part, side in zip(parts, (old, new), strict=True)
    )
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)) * spread
    return Change(
        math.exp(difference), (math.exp(difference - reach), math.exp(difference + reach))
    )


def _student(center: float, values: np.ndarray) -> Estimate:
    if values.size < 2:
        return Estimate(center, None)
    error = float(values.std(ddof=1)) / math.sqrt(values.size)
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, values.size - 1)) * error
    return Estimate(center, (center - reach, center + reach))


def _exponential(estimate: Estimate) -> Estimate:
    interval = estimate.interval
    return Estimate(
        math.exp(estimate.value),
        None if interval is None else (math.exp(interval[0]), math.exp(interval[1])),
    )
