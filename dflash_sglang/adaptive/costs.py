"""Milliseconds of a step by batch size, nodes and context: a fit, corrected by what is measured.

The fit is linear in what a step reads and multiplies: draft and verify have a fixed part, a part
for each request, one for each node, and one for every cached token that a request's nodes attend
to. Plain decoding is a step of one node without a draft. Devices are not linear (a GEMM of nine
rows can cost what eight cost, or twice, and a context that leaves a cache costs more than one that
does not), so each place, of batch size, length of contexts and nodes, also keeps how far its
measurements are from the fit; places without any lean on their neighbours. How a place's widths
differ is left to the fit, as far as that was good, until measurements say otherwise beyond their
noise: single steps are off by more than the widths differ by. Machines are faster and
slower from one second to the next, all places alike: that is kept apart, or the width that happened
to be measured in a slow second would be shunned.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

_MEMORY = 0.99  # of a place's earlier measurements, kept a measurement
_PACE_SHARE = 0.1  # of what a known place's measurement says: the machine of the moment
# How far a measurement says something about its neighbours, in powers of two. Of nodes no further
# than to the next width, which may fill a kernel's tiles much better or worse.
_REACH, _NODES_REACH = 0.35, 0.4
_NEIGHBOURS = 10.0  # measurements that a neighbouring width's weigh, however many they are
_TRUST = 0.5  # measurements that a mean of more places weighs
# Widths differ by a few per cent of a step, single measurements by more. So a place's widths are
# taken to lie on the fit, but for a slope over powers of two, as far as the fit was good; and for
# what is beyond all noise.
_LEAST_MISFIT = 0.02  # of a fit, relative, however small it seems
_UNKNOWN_MISFIT = 0.5  # of what was assumed, or fitted to too few steps to tell
_NOISE = 0.15  # of a measurement, relative
_BEYOND_NOISE = 3.0  # standard errors
_FIRST_TRUST = 0.1  # what a measurement at the start weighs beside those of real steps
_SURPRISE = math.log(1.5)  # what a known place's measurement says at most, and
_NEW_SURPRISE = math.log(2.5)  # one of a place that is not
_FADING, _FADING_EVERY = 0.9, 64  # of all that was measured, in steps: machines change
_BOUNDING = 1.5  # measurements, faded, beyond which a place's time bounds others
_KNOWN = 5  # measurements after which a place is known
# Corrections are kept for some measurements; those of a place until it brings news.
_RENEWED_EVERY, _MUCH_NEWS = 32, math.log(1.25)
_LEAST = 1e-3  # milliseconds of any step
_OUTLIER = 8.0  # times the expectation; such a step was interrupted, two in a row were not
_ASSUMED = np.array([8.0, 0.2, 0.25, 0.1, 0.01, 2.0, 0.2])  # milliseconds a feature
_LENGTHS = (0, 256, 1024, 4096, 16384)  # cached tokens a request, where a longer context begins
_BATCH_SIZES = (*range(1, 9), *(s * 2**e for e in range(7) for s in (10, 12, 14, 16)))


class Step(NamedTuple):
    """What a decode step's time depends on."""

    requests: int
    nodes: int  # verified a request, root included; 1 is plain decoding
    context: int  # cached tokens, all requests together


class Measured(NamedTuple):
    """A step and what it took."""

    step: Step
    milliseconds: float


class CostModel:
    """Expected milliseconds of decode steps.

    Args:
        widths: W ascending numbers of nodes that steps may have.
        coefficients: milliseconds per feature, from :meth:`fit`.
        misfit: how far steps are from them, relative; None: they were assumed.
    """

    def __init__(
        self, widths: Sequence[int], coefficients: np.ndarray, misfit: float | None = None
    ) -> None:
        self._widths = list(widths)
        shape = (len(_BATCH_SIZES) * len(_LENGTHS), len(widths))
        # Logarithms of measured by fitted, summed, and their number; forgotten ones left out.
        self._sums = np.zeros((2, *shape))
        # The same of the places of each length of contexts, where a place weighs one at most:
        # however often it was measured, it is one of many that a mean is taken over.
        self._totals = np.zeros((2, len(_LENGTHS)))
        self._counts = np.zeros(shape, dtype=np.int64)
        near_lengths = _nearness([2**i for i in range(len(_LENGTHS))], _REACH)
        self._near_places = np.kron(_nearness(_BATCH_SIZES, _REACH), near_lengths)
        self._powers = np.log2(self._widths)
        # A plain step has no draft, so it says nothing about the others.
        plain = np.array(self._widths) == 1
        alike = (plain[:, None] == plain[None, :]) & ~np.eye(len(plain), dtype=bool)
        self._near_widths = _nearness(self._widths, _NODES_REACH) * alike
        self._is_fitted = misfit is not None
        # Measurements that weigh as much as the fit does.
        misfit = _UNKNOWN_MISFIT if misfit is None else max(misfit, _LEAST_MISFIT)
        self._fit_trust = (_NOISE / misfit) ** 2

        # Features are linear in requests and in context, so times at all widths are three vectors.
        def times(requests: int, context: int) -> np.ndarray:
            return np.array([_features(Step(requests, n, context)) @ coefficients for n in widths])

        self._fixed = times(0, 0)  # [W]
        self._a_request = times(1, 0) - self._fixed
        self._a_kilotoken = times(0, 1024) - self._fixed
        self._steps = 0
        self._was_outlier = False  # the last measurement of a known place
        self._pace = 0.0  # logarithm of how slow the machine is at the moment
        self._corrected: dict[int, np.ndarray] = {}  # [W] of each row, as long as they hold

    @classmethod
    def fit(cls, widths: Sequence[int], measured: Iterable[Measured]) -> CostModel:
        """Least squares with no negative coefficient, errors relative to the times.

        Raises:
            ValueError: nothing was measured, or a time is not positive.
        """
        from scipy.optimize import nnls

        rows = list(measured)
        if not rows or any(not row.milliseconds > 0 for row in rows):
            raise ValueError("a cost model needs measured steps with positive times")
        times = np.array([row.milliseconds for row in rows])
        features = np.array([_features(row.step) for row in rows])
        coefficients, _ = nnls(features / times[:, None], np.ones(len(rows)))
        free = len(rows) - np.count_nonzero(coefficients)
        errors = np.log(features @ coefficients / times)
        misfit = math.sqrt(errors @ errors / free) if free > 0 else _UNKNOWN_MISFIT
        model = cls(widths, coefficients, misfit)
        for row in rows:
            place = model._place_of(row.step)
            model._take_in(*place, model._ratio(row, place[1]), _FIRST_TRUST)
        return model

    @classmethod
    def assumed(cls, widths: Sequence[int]) -> CostModel:
        """Before anything was measured: the shape of a small machine's times, at no known scale."""
        return cls(widths, _ASSUMED)

    def milliseconds(self, requests: int, context: int) -> np.ndarray:
        """Expected times at every width, [W].

        A step of fewer nodes takes no longer, so a time that was measured bounds those of other
        widths that were not.
        """
        row = _place(requests, context)
        times = self._fitted(requests, context) * np.exp(self._corrections(row) + self._pace)
        known = self._sums[1, row] >= _BOUNDING
        least = np.maximum.accumulate(np.where(known, times, 0.0))
        most = np.minimum.accumulate(np.where(known, times, np.inf)[::-1])[::-1]
        return np.minimum(np.maximum(times, least), most)

    def counts(self, requests: int, context: int) -> np.ndarray:
        """How often about such steps were measured at every width, [W]."""
        return self._counts[_place(requests, context)]

    def correct(self, measured: Measured) -> None:
        """Take in a step's time; one that was plainly interrupted is left out."""
        step, milliseconds = measured
        if not milliseconds > 0:
            return
        row, column = self._place_of(step)
        expected = self._corrections(row)[column]
        news = self._ratio(measured, column) - self._pace - expected
        count = self._counts[row, column]
        surprise, pace = _NEW_SURPRISE, 0.0
        if count == 0 and self._is_fitted:
            news = min(news, 0.0)  # first steps of a kind are cold: caches, memory, kernels
        elif count >= _KNOWN:
            was_outlier, self._was_outlier = self._was_outlier, news > math.log(_OUTLIER)
            if self._was_outlier and not was_outlier:
                return
            surprise, pace = _SURPRISE, _PACE_SHARE
        news = max(-surprise, min(surprise, news))
        self._pace += pace * news
        self._counts[row, column] += 1
        self._take_in(row, column, expected + (1 - pace) * news, 1.0)
        self._steps += 1
        if count < _KNOWN or abs(news) > _MUCH_NEWS:
            self._corrected.pop(row, None)
        if self._steps % _RENEWED_EVERY == 0:
            self._corrected.clear()
        if self._steps % _FADING_EVERY == 0:
            self._sums *= _FADING
            by_place = _at_most(self._sums, 1.0).sum(axis=2)
            self._totals = by_place.reshape(2, -1, len(_LENGTHS)).sum(axis=1)

    def _take_in(self, row: int, column: int, ratio: float, trust: float) -> None:
        sums = self._sums[:, row, column]
        totals = self._totals[:, row % len(_LENGTHS)]
        totals -= _at_most(sums, 1.0)
        sums *= _MEMORY
        sums += (trust * ratio, trust)
        totals += _at_most(sums, 1.0)

    def _fitted(self, requests: int, context: int) -> np.ndarray:
        """Times by the fit alone at every width, [W]."""
        kilotokens = context / 1024
        times = self._fixed + requests * self._a_request + kilotokens * self._a_kilotoken
        return np.maximum(times, _LEAST)

    def _ratio(self, measured: Measured, column: int) -> float:
        """Logarithm of a step's time by its fit."""
        step, milliseconds = measured
        return math.log(milliseconds / self._fitted(step.requests, step.context)[column])

    def _place_of(self, step: Step) -> tuple[int, int]:
        return _place(step.requests, step.context), self._widths.index(step.nodes)

    def _corrections(self, row: int) -> np.ndarray:
        """Mean of the measured places' ratios at every width, [W].

        Near places say most, those with contexts of this length more than all others.
        """
        if row in self._corrected:
            return self._corrected[row]
        everywhere = _mean(self._totals.sum(axis=1), 0.0, trust=1e-9)
        typical = _mean(self._totals[:, row % len(_LENGTHS)], everywhere)
        here = self._near_places[row] @ self._sums  # [2, W]
        near = here + _at_most(here, _NEIGHBOURS) @ self._near_widths
        corrections = _mean(near, typical)
        drafts = self._widths[0] == 1  # the index of the first width that drafts
        line = _line(here[:, drafts:], self._powers[drafts:], typical, self._fit_trust)
        total, weight = near[:, drafts:]
        apart = total / np.maximum(weight, 1e-9) - line
        corrections[drafts:] = line + apart * _belief(apart, weight, self._fit_trust)
        self._corrected[row] = corrections
        return corrections


def _features(step: Step) -> np.ndarray:
    drafts = float(step.nodes > 1)
    rows = step.requests * step.nodes
    kilotokens = step.context / 1024
    reads = (1.0, step.requests, rows, kilotokens, kilotokens * step.nodes)
    return np.array([*reads, drafts, drafts * step.requests])


def _place(requests: int, context: int) -> int:
    """Row of the places of such steps."""
    size = bisect_right(_BATCH_SIZES, requests) - 1
    length = bisect_right(_LENGTHS, context // max(requests, 1)) - 1
    return size * len(_LENGTHS) + length


def _mean(weighted: np.ndarray, prior: np.ndarray | float, trust: float = _TRUST) -> np.ndarray:
    """Means from weighted sums and weights [2, ...], with a prior that weighs ``trust``."""
    total, weight = weighted
    return (total + trust * prior) / (weight + trust)


def _line(weighted: np.ndarray, powers: np.ndarray, prior: np.ndarray, trust: float) -> np.ndarray:
    """The line through ratios at ``powers`` [n], from weighted sums and weights [2, n].

    Args:
        prior: level of a line without measurements.
        trust: measurements that say that there is no slope.
    """
    total, weight = weighted
    level = _mean(weighted.sum(axis=1), prior)
    away = powers - (weight @ powers) / max(weight.sum(), 1e-9)
    spread = weight @ away**2
    slope = away @ (total - level * weight) / max(spread, 1e-9)
    return level + slope * _belief(slope, spread, trust) * away


def _belief(apart: np.ndarray, weight: np.ndarray, trust: float) -> np.ndarray:
    """Share, 0 to 1, of a deviation that is believed: the more, the more measurements it is of.

    Args:
        apart: deviations from what is expected.
        weight: measurements that they are means of.
        trust: measurements that say there is none; one beyond all noise is believed nevertheless.
    """
    errors = np.abs(apart) * np.sqrt(weight) / _NOISE
    beyond = 1 - (_BEYOND_NOISE / np.maximum(errors, _BEYOND_NOISE)) ** 2
    return np.maximum(weight / (weight + trust), beyond)


def _at_most(sums: np.ndarray, most: float) -> np.ndarray:
    """Weighted sums and weights [2, ...] with weights of no more than ``most``."""
    return sums / np.maximum(sums[1] / most, 1.0)


def _nearness(values: Sequence[int], reach: float) -> np.ndarray:
    """How much a measurement at one value says about another, [n, n]."""
    powers = np.log2(np.array(values, dtype=float))
    return np.exp(-(((powers[:, None] - powers[None, :]) / reach) ** 2))
