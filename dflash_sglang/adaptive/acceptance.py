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

from bisect import bisect_left
from collections.abc import Sequence
from math import exp
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dflash_sglang.adaptive.origins import Floats, Ints, OriginHistory, Places, ratio

_VALUE_EDGES = np.array([0.003, 0.01, 0.03, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 0.95])
_LOG_EDGES = np.log(_VALUE_EDGES).tolist()
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


class Calibration(NamedTuple):
    """How the values of a batch's nodes become chances, for some steps.

    It is asked at every step, beside a model that leaves nothing of NumPy in the processor's
    caches: there a loop over some dozens of nodes is over before a dozen of calls are.
    """

    worth: list[list[list[float]]]  # [bs][D + 1][S]: chance by value, by depth and size of value
    most_nodes: list[int]  # [bs] that a request allows
    last_nodes: list[int]  # [W] of each width

    def curves(
        self, log_values: Sequence[Sequence[float]], depths: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """Tokens that each width is expected to bring each request, [bs][W].

        The sum of its nodes' chances that their paths are accepted; the root's, 1, stands for the
        bonus token. Widths of more nodes than were drafted bring what all of these do.

        Args:
            log_values: [bs][N] the drafter's, best nodes first, root and padding included.
            depths: [bs][N].
        """
        found = []
        drafted = zip(self.worth, self.most_nodes, log_values, depths, strict=True)
        for worth, most, values, levels in drafted:
            tokens = 1.0
            running = [tokens]
            for value, depth in zip(values[1:most], levels[1:most], strict=True):
                tokens += min(1.0, exp(value) * worth[depth][bisect_left(_LOG_EDGES, value)])
                running.append(tokens)
            last = len(running) - 1
            found.append([running[min(node, last)] for node in self.last_nodes])
        return found


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
        self._last_nodes = [width - 1 for width in widths]
        shared = (2, max_depth + 1, len(_VALUE_EDGES) + 1)
        self._promised, self._accepted = np.zeros(shared), np.zeros(shared)
        self._history = OriginHistory(_first_curve(widths, max_depth))
        self._origins = np.zeros(rows, dtype=np.int64)
        self._is_new = np.ones(rows, dtype=bool)
        self._centres = np.ones(rows)
        self._row_promised, self._row_accepted = np.zeros(rows), np.zeros(rows)
        self._curves = np.zeros((rows, len(widths)))
        # Steps since a request was last learned from, and since its curve was last renewed.
        self._ages = np.zeros((2, rows))

    def restart(self, rows: Ints, origins: Ints) -> None:
        """New requests in these rows, [n] each; ``origins`` as ``adaptive.domain`` counts them."""
        self._origins[rows] = origins
        self._is_new[rows] = True
        self._row_promised[rows] = self._row_accepted[rows] = 0.0

    def remembered(self, kinds: Kinds) -> Floats:
        """Tokens a step that each request got lately at each width, [bs, W]."""
        self._welcome(kinds)
        return self._curves[kinds.rows]

    def grow_older(self, rows: Ints, steps: int) -> None:
        """Steps of these requests went by; what is learned next makes up for them."""
        self._ages[:, rows] += steps

    def calibration(self, kinds: Kinds, bounds: Ints) -> Calibration:
        """What these requests' values are worth as far as is known.

        Args:
            bounds: [bs, 2] nodes, root included, and depth that each request allows at most.
        """
        self._welcome(kinds)
        ratios = ratio(self._accepted, self._promised, _SHARED_PRIOR, _PRIOR_RATIOS)
        worth = ratios[kinds.sampled] * self._factors(kinds.rows)[:, None, None]  # [bs, D + 1, S]
        worth *= (np.arange(worth.shape[1]) <= bounds[:, 1:])[:, :, None]
        return Calibration(worth.tolist(), bounds[:, 0].tolist(), self._last_nodes)

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
        place = kinds.sampled[:, None], nodes.depths[:, 1:n], sizes
        ratios = ratio(
            self._accepted[place], self._promised[place], _SHARED_PRIOR, _PRIOR_RATIOS[sizes]
        )
        expected = np.minimum(values * ratios, 1.0).sum(axis=1)  # [bs]
        got = hits.sum(axis=1)

        self._promised *= _SHARED_MEMORY
        self._accepted *= _SHARED_MEMORY
        np.add.at(self._promised, place, values)
        np.add.at(self._accepted, place, hits)

        self._history.learn(self._places(kinds), expected, got)

        rows = kinds.rows
        keep = _REQUEST_MEMORY ** self._ages[0, rows]  # [bs]
        self._row_promised[rows] = keep * self._row_promised[rows] + expected
        self._row_accepted[rows] = keep * self._row_accepted[rows] + got
        self._ages[0, rows] = 0

    def remember(
        self, kinds: Kinds, curves: Floats, steps: int, is_bound: NDArray[np.bool_]
    ) -> None:
        """Take in what trees were expected to bring.

        Args:
            curves: [bs, W] tokens at each width, the mean of some steps.
            steps: how many.
            is_bound: [bs], of requests with limits of their own, which say nothing of others.
        """
        rows = kinds.rows
        news = (1 - _CURVE_MEMORY ** self._ages[1, rows])[:, None]
        self._curves[rows] += news * (curves - self._curves[rows])
        self._ages[1, rows] = 0
        self._history.remember(self._places(kinds), curves, np.where(is_bound, 0, steps))

    def _places(self, kinds: Kinds) -> Places:
        return Places(self._origins[kinds.rows], kinds.sampled)

    def _welcome(self, kinds: Kinds) -> None:
        """Requests that decode for the first time start from their origin."""
        new = self._is_new[kinds.rows]
        if not new.any():
            return
        rows = kinds.rows[new]
        places = Places(self._origins[rows], kinds.sampled[new])
        self._centres[rows] = self._history.ratios(places)
        self._curves[rows] = self._history.curves(places)
        self._ages[:, rows] = [[0], [_FIRST_AGE]]
        self._is_new[rows] = False

    def _factors(self, rows: Ints) -> Floats:
        return ratio(
            self._row_accepted[rows],
            self._row_promised[rows],
            _REQUEST_PRIOR,
            self._centres[rows],
        )


def _first_curve(widths: tuple[int, ...], max_depth: int) -> Floats:
    """A chain whose tokens hold with a fixed chance: what is assumed before anything was seen."""
    holds = _PRIOR_HOLD ** np.arange(max_depth + 1)
    return np.array([holds[: min(width, max_depth + 1)].sum() for width in widths])
