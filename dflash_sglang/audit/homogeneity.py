"""Do two samples of generations follow one law? Pearson's chi-square, and the size it needs.

The tokens of one generation are not independent, so the plain chi-square of pooled bigrams would
cry wolf. The statistic is therefore compared with a scaled chi-square whose mean and variance are
those of its own sampling distribution, estimated with whole generations as the units: the
second-order correction of Rao and Scott (Annals of Statistics 12, 1984). With one observation a
generation it is the ordinary two-sample test.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.stats import chi2, ncx2

MOST_BINS = 256
# Expected count of a bin, in both samples together, below which it is pooled with the other rare.
LEAST_EXPECTED = 10
_CHUNK = 4096


@dataclass(frozen=True)
class Homogeneity:
    """Outcome of one test.

    Attributes:
        bins: categories after pooling.
        observations: of the baseline and of the candidate.
        statistic: Pearson's chi-square divided by the correction.
        freedom: corrected degrees of freedom.
        p_value: chance of such a statistic under one law.
    """

    bins: int
    observations: tuple[int, int]
    statistic: float
    freedom: float
    p_value: float


def compare_samples(first: np.ndarray, second: np.ndarray, strata: np.ndarray) -> Homogeneity:
    """Test whether two samples of generations have one law.

    Args:
        first: ``[n, m]`` int64, m outcomes of each of the first server's n generations, -1 for
            none. Two columns of a row may be dependent in any way, rows are independent.
        second: ``[n, m]`` the second server's.
        strata: ``[n]`` int64, which prompt a row belongs to, for both.
    """
    bins, codes = _pool(first, second)  # codes [2, n, m], -1 for none
    counts = np.stack([np.bincount(part[part >= 0], minlength=bins) for part in codes])  # [2, bins]
    totals = counts.sum(axis=1)
    if bins < 2 or totals.min() == 0:
        return Homogeneity(bins, (int(totals[0]), int(totals[1])), 0.0, 0.0, 1.0)
    # Samples of unequal size are weighted so that the difference has mean 0 under one law.
    weights = np.sqrt([totals[1] / totals[0], totals[0] / totals[1]])
    scale = 1 / np.sqrt(counts.sum(axis=0))  # [bins]
    difference = (weights[0] * counts[0] - weights[1] * counts[1]) * scale
    covariance = _covariance(codes, weights, strata, bins) * np.outer(scale, scale)

    mean = np.trace(covariance)
    spread = np.square(covariance).sum()  # half the statistic's variance
    statistic = float(np.square(difference).sum() * mean / spread)
    freedom = float(mean**2 / spread)
    return Homogeneity(
        bins=bins,
        observations=(int(totals[0]), int(totals[1])),
        statistic=statistic,
        freedom=freedom,
        p_value=float(chi2.sf(statistic, freedom)),
    )


def _pool(first: np.ndarray, second: np.ndarray) -> tuple[int, np.ndarray]:
    """Number outcomes by falling frequency; all rare ones share the last number."""
    both = np.stack([first, second])
    values, inverse, counts = np.unique(both, return_inverse=True, return_counts=True)
    counts = np.where(values < 0, 0, counts)
    order = np.argsort(-counts, kind="stable")
    common = int((counts >= 2 * LEAST_EXPECTED).sum())
    bins = min(common, MOST_BINS) + 1
    rare = counts[order[bins - 1 :]].sum()
    if rare < 2 * LEAST_EXPECTED:  # too rare even together: they join the last common one
        bins = max(bins - 1, 1)
    numbers = np.empty(len(values), dtype=np.int64)
    numbers[order] = np.minimum(np.arange(len(values)), bins - 1)
    numbers[values < 0] = -1
    return bins, numbers[inverse.reshape(both.shape)]


def _covariance(
    codes: np.ndarray, weights: np.ndarray, strata: np.ndarray, bins: int
) -> np.ndarray:
    """[bins, bins] covariance of the weighted difference of counts, under one law a stratum."""
    total = np.zeros((bins, bins))
    for stratum in np.unique(strata):
        rows = codes[:, strata == stratum]  # [2, n, m]
        center = sum(_row_counts(rows[side], bins).sum(axis=0) for side in (0, 1))
        center = center / (2 * rows.shape[1])
        for side, weight in enumerate(weights):
            for start in range(0, rows.shape[1], _CHUNK):
                centered = _row_counts(rows[side, start : start + _CHUNK], bins) - center
                total += weight**2 * centered.T @ centered
    return total


def _row_counts(codes: np.ndarray, bins: int) -> np.ndarray:
    """[n, m] numbers -> [n, bins] how often each occurs in a row."""
    n = codes.shape[0]
    places = np.arange(n)[:, None] * (bins + 1) + np.where(codes < 0, bins, codes)
    return np.bincount(places.ravel(), minlength=n * (bins + 1)).reshape(n, -1)[:, :bins]


# The size of a sample -------------------------------------------------------------------------
#
# An engine that with chance b delivers the drafter's token whatever the target drew has the law
# (1 - b) p + b d instead of p. Two samples of N observations then have the noncentrality
#
#     lambda = N sum (p - p')^2 / (p + p')  ~  N b^2 D / 2,    D = sum (d - p)^2 / p.
#
# D measures how far the drafter is from the target: one that insists on a token to which the
# target gives probability 0.25 has D = 1 / 0.25 - 1 = 3. A drafter whose law is the target's has
# D = 0, and no bias towards it changes the output. D is meant behind the pooling of bins: bins of
# frequent outcomes cannot see that a drafter favours rare ones.


def observations_for(
    bias: float, distance: float, bins: int, error_rate: float, power: float
) -> int:
    """Observations a server needed to find a bias.

    Args:
        bias: b, chance of accepting a drafted token that the target did not draw.
        distance: D, chi-square distance of the drafted tokens' law from the target's.
        bins: categories of the test.
        error_rate: chance of an alarm without bias.
        power: chance of an alarm with it.
    """
    return int(np.ceil(2 * _noncentrality(bins - 1, error_rate, power) / (bias**2 * distance)))


def detectable_bias(
    observations: int, distance: float, bins: int, error_rate: float, power: float
) -> float:
    """The smallest bias that so many observations find; arguments as above."""
    needed = _noncentrality(bins - 1, error_rate, power)
    return float(np.sqrt(2 * needed / (observations * distance)))


def _noncentrality(freedom: int, error_rate: float, power: float) -> float:
    threshold = chi2.isf(error_rate, freedom)
    return float(
        brentq(lambda shift: ncx2.sf(threshold, freedom, shift) - power, 1e-6, 100 * threshold)
    )
