"""What a draft node is worth: its drafter's value, corrected by what such nodes were accepted with.

A node's value v is the drafter's chance that its whole path is accepted. Drafters are wrong in ways
that repeat: they are too sure at the ends of blocks, and of one kind of text more than of another.
So two corrections stand between a value and the chance that is reckoned with:

* one for all requests, by kind of decoding (greedy or sampled), depth and size of v, and
* one for each request, a single factor, which starts at what its origin showed (its domain and its
  length, ``adaptive.domain``) and follows the request's own steps. Old steps are forgotten
  exponentially.

Both are ratios of accepted to promised nodes, with a prior that weighs as much as a few accepted
nodes. What a request got lately at each width is remembered too: it is all that is known before a
block is drafted.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dflash_sglang.adaptive.origins import Floats, Ints, OriginHistory, Places, ratio
from dflash_sglang.kernels.expectation import NodeWorth, expected_tokens

_VALUE_EDGES = np.array([0.003, 0.01, 0.03, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 0.95])
_LOG_EDGES = torch.from_numpy(np.log(_VALUE_EDGES))
# Drafters are the more too sure the less likely a path is: before anything was seen, a value v is
# taken for v ** 1.25, about what the demo pair's greedy nodes were accepted with.
_BIN_MIDDLES = np.sqrt(np.append(_VALUE_EDGES, 1.0) * np.insert(_VALUE_EDGES, 0, 0.001))
_PRIOR_RATIOS = _BIN_MIDDLES**0.25
_SHARED_PRIOR = 4.0  # accepted nodes that the prior of a shared ratio weighs
_REQUEST_PRIOR = 6.0  # the same for a request's factor
_SHARED_MEMORY = 0.999  # of what earlier steps said, kept a step
_REQUEST_MEMORY = 0.97
_CURVE_MEMORY = 0.85
_FIRST_AGE = 1  # steps that a new request's first drafts count for beyond their own
_PRIOR_HOLD = 0.8  # chance that a draft token holds, of origins that were not seen yet


class DraftedNodes(NamedTuple):
    """A batch of draft trees on the host, best nodes first, root and padding included."""

    depths: Ints  # [bs, N]
    values: Floats  # [bs, N], the drafter's; 0 for padding


class Kinds(NamedTuple):
    """What is known of a batch's requests from their prompts and parameters."""

    rows: Ints  # [bs], the rows that the requests hold
    sampled: Ints  # [bs], 1 where the request is sampled, 0 where it is greedy
    places: Places  # of all of them


class Calibration(NamedTuple):
    """How the values of a batch's nodes become chances, for some steps."""

    worth: NodeWorth
    bounds: Tensor  # [bs, 2] int64, nodes and depth that a request allows
    widths: Tensor  # [W] int64

    def curves(self, log_values: Tensor, depths: Tensor) -> Tensor:
        """Tokens that each width is expected to bring each request, [bs, W] float64.

        Args:
            log_values: [bs, N] float32 the drafter's, best nodes first, root and padding included.
            depths: [bs, N] int64.
        """
        return expected_tokens(log_values, depths, *self)


class AcceptModel:
    """Acceptance of every request that a server can hold at once.

    Args:
        rows: number of requests.
        widths: W ascending numbers of nodes, the first of them 1 (plain decoding).
        max_depth: greatest depth of a node.
    """

    def __init__(self, rows: int, widths: tuple[int, ...], max_depth: int) -> None:
        if len(widths) < 2 or widths[0] != 1 or list(widths) != sorted(set(widths)):
            raise ValueError(f"widths must ascend from 1, got {widths}")
        self._widths = torch.tensor(widths)
        # Promised and accepted nodes by kind of decoding, depth and size of value.
        self._shared = np.zeros((2, 2, max_depth + 1, len(_BIN_MIDDLES)))
        self._history = OriginHistory(_first_curve(widths, max_depth))
        self._sampled = np.zeros(rows, dtype=np.int64)
        self._places = np.zeros((2, rows), dtype=np.int64)  # of its origin, of all of its length
        self._is_new = np.ones(rows, dtype=bool)
        self._centres = np.ones(rows)
        self._nodes = np.zeros((2, rows))  # promised and accepted ones of each request
        self._curves = np.zeros((rows, len(widths)))
        # Steps since a request was last learned from, and since its curve was last renewed.
        self._ages = np.zeros((2, rows))

    def restart(self, rows: Ints, origins: Ints, sampled: Ints) -> None:
        """New requests.

        Args:
            rows: [n] that they hold.
            origins: [n], as ``adaptive.domain`` counts them.
            sampled: [n], 1 where the request is sampled, 0 where it is greedy.
        """
        places = Places.of(origins, sampled)
        self._sampled[rows] = sampled
        self._places[:, rows] = places.own, places.shared
        self._is_new[rows] = True
        self._nodes[:, rows] = 0.0

    def meet(self, rows: Ints) -> Kinds:
        """The requests in these rows, [bs]; those that decode for the first time start here."""
        places = Places(*self._places[:, rows])
        new = self._is_new[rows]
        if new.any():
            self._centres[rows[new]] = self._history.ratios(places)[new]
            self._curves[rows[new]] = self._history.curves(places)[new]
            self._ages[:, rows[new]] = [[0], [_FIRST_AGE]]
            self._is_new[rows] = False
        return Kinds(rows, self._sampled[rows], places)

    def remembered(self, kinds: Kinds) -> Floats:
        """Tokens a step that each request got lately at each width, [bs, W]."""
        return self._curves[kinds.rows]

    def grow_older(self, rows: Ints, steps: int) -> None:
        """Steps of these requests went by; what is learned next makes up for them."""
        self._ages[:, rows] += steps

    def calibration(self, kinds: Kinds, bounds: Ints) -> Calibration:
        """What these requests' values are worth as far as is known.

        Args:
            bounds: [bs, 2] nodes, root included, and depth that each request allows at most.
        """
        promised, accepted = self._shared
        ratios = ratio(accepted, promised, _SHARED_PRIOR, _PRIOR_RATIOS)
        worth = ratios[kinds.sampled] * self._factors(kinds.rows)[:, None, None]  # [bs, D + 1, S]
        factors = NodeWorth(_LOG_EDGES, torch.from_numpy(worth))
        return Calibration(factors, torch.from_numpy(bounds), self._widths)

    def learn(self, kinds: Kinds, nodes: DraftedNodes, accepted: NDArray[np.bool_]) -> None:
        """Take in a step.

        Args:
            nodes: all N drafted nodes.
            accepted: [bs, n] of the first n of them, which were verified: those of the path.
        """
        n = accepted.shape[1]
        hits = accepted[:, 1:].astype(np.float64)  # [bs, n - 1]
        values = nodes.values[:, 1:n]
        sizes = np.searchsorted(_VALUE_EDGES, values)
        _, _, levels, num_sizes = self._shared.shape
        place = (kinds.sampled[:, None] * levels + nodes.depths[:, 1:n]) * num_sizes + sizes
        shared = self._shared.reshape(2, -1)  # a view
        before = shared[:, place]  # [2, bs, n - 1]
        ratios = ratio(before[1], before[0], _SHARED_PRIOR, _PRIOR_RATIOS[sizes])
        expected = np.minimum(values * ratios, 1.0).sum(axis=1)  # [bs]
        got = hits.sum(axis=1)

        shared *= _SHARED_MEMORY
        for total, seen in zip(shared, (values, hits), strict=True):
            total += np.bincount(place.ravel(), seen.ravel(), minlength=len(total))

        self._history.learn(kinds.places, expected, got)

        rows = kinds.rows
        keep = _REQUEST_MEMORY ** self._ages[0, rows]  # [bs]
        self._nodes[:, rows] = keep * self._nodes[:, rows] + (expected, got)
        self._ages[0, rows] = 0

    def remember(self, kinds: Kinds, curves: Floats) -> None:
        """Take in what the requests' trees were expected to bring.

        Args:
            curves: [bs, W] tokens a step at each width, the mean of some steps.
        """
        rows = kinds.rows
        news = (1 - _CURVE_MEMORY ** self._ages[1, rows])[:, None]
        self._curves[rows] += news * (curves - self._curves[rows])
        self._ages[1, rows] = 0

    def remember_origins(self, kinds: Kinds, curves: Floats, steps: Ints) -> None:
        """The same for requests to come.

        Args:
            curves: [bs, W].
            steps: [bs] that they are the mean of; 0 of requests with limits of their own, which say
                nothing of others.
        """
        self._history.remember(kinds.places, curves, steps)

    def _factors(self, rows: Ints) -> Floats:
        promised, accepted = self._nodes[:, rows]
        return ratio(accepted, promised, _REQUEST_PRIOR, self._centres[rows])


def _first_curve(widths: tuple[int, ...], max_depth: int) -> Floats:
    """A chain whose tokens hold with a fixed chance: what is assumed before anything was seen."""
    holds = _PRIOR_HOLD ** np.arange(max_depth + 1)
    return np.array([holds[: min(width, max_depth + 1)].sum() for width in widths])
