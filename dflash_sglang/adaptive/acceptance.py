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
from numpy.typing import NDArray

from dflash_sglang.adaptive.domain import NUM_ORIGINS

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_VALUE_EDGES = np.array([0.003, 0.01, 0.03, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 0.95])
# Drafters are the more too sure the less likely a path is: before anything was seen, a value v is
# taken for v ** 1.25, about what the demo pair's greedy nodes were accepted with.
_BIN_MIDDLES = np.sqrt(np.append(_VALUE_EDGES, 1.0) * np.insert(_VALUE_EDGES, 0, 0.001))
_PRIOR_RATIOS = _BIN_MIDDLES**0.25
_SHARED_PRIOR = 4.0  # accepted nodes that the prior of a shared ratio weighs
_REQUEST_PRIOR = 6.0  # the same for a request's factor
_SHARED_MEMORY = 0.999  # of what earlier steps said, kept a step
_REQUEST_MEMORY = 0.97
_CURVE_MEMORY = 0.85
_ORIGIN_SHARE = 0.02  # of a request's curve in its origin's, a step
_PRIOR_HOLD = 0.8  # chance that a draft token holds, of origins that were not seen yet
_MOST = 5.0  # a ratio's reach


class DraftedNodes(NamedTuple):
    """A batch of draft trees on the host, best nodes first, root and padding included."""

    depths: Ints  # [bs, N]
    values: Floats  # [bs, N], the drafter's; 0 for padding


class Chances(NamedTuple):
    """What drafted nodes are reckoned to be worth."""

    sizes: Ints  # [bs, N] of the values, as bins
    shared: Floats  # [bs, N] as of any request
    own: Floats  # [bs, N] as of this one, the chance that the node's path is accepted


class Kinds(NamedTuple):
    """What is known of a batch's requests from their prompts and parameters."""

    rows: Ints  # [bs], the rows that the requests hold
    sampled: Ints  # [bs], 1 where the request is sampled, 0 where it is greedy


class Calibration(NamedTuple):
    """How the values of a batch's nodes become chances, at one moment."""

    ratios: Floats  # [bs, D + 1, S] accepted by promised nodes, by depth and size of value
    factors: Floats  # [bs, 1] of each request

    def chances(self, nodes: DraftedNodes) -> Chances:
        """The chance that each node's path is accepted; the root's is 1."""
        sizes = np.searchsorted(_VALUE_EDGES, nodes.values)
        requests = np.arange(len(sizes))[:, None]
        shared = np.minimum(nodes.values * self.ratios[requests, nodes.depths, sizes], 1.0)
        own = np.minimum(shared * self.factors, 1.0)
        own[:, 0] = 1.0
        return Chances(sizes, shared, own)


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
        self._widths = np.array(widths)
        shared = (2, max_depth + 1, len(_VALUE_EDGES) + 1)
        self._promised, self._accepted = np.zeros(shared), np.zeros(shared)
        kinds = (NUM_ORIGINS, 2)
        self._origin_promised, self._origin_accepted = np.zeros(kinds), np.zeros(kinds)
        self._origin_curves = np.tile(_first_curve(widths, max_depth), (*kinds, 1))
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

    def calibration(self, kinds: Kinds) -> Calibration:
        """What these requests' values are worth as far as is known."""
        self._welcome(kinds)
        kind = kinds.sampled
        ratios = _ratio(self._accepted, self._promised, _SHARED_PRIOR, _PRIOR_RATIOS)
        return Calibration(ratios[kind], self._factors(kinds.rows)[:, None])

    def learn(
        self, kinds: Kinds, nodes: DraftedNodes, accepted: NDArray[np.bool_], chances: Chances
    ) -> None:
        """Take in a step.

        Args:
            nodes: all N drafted nodes.
            accepted: [bs, n] of the first n of them, which were verified: those of the path.
            chances: of the nodes.
        """
        n = accepted.shape[1]
        hits = accepted[:, 1:].astype(np.float64)  # [bs, n - 1]
        place = kinds.sampled[:, None], nodes.depths[:, 1:n], chances.sizes[:, 1:n]
        expected = chances.shared[:, 1:n].sum(axis=1)  # [bs]
        got = hits.sum(axis=1)

        self._promised *= _SHARED_MEMORY
        self._accepted *= _SHARED_MEMORY
        np.add.at(self._promised, place, nodes.values[:, 1:n])
        np.add.at(self._accepted, place, hits)

        origin = self._origins[kinds.rows], kinds.sampled
        for total, step in ((self._origin_promised, expected), (self._origin_accepted, got)):
            total *= _SHARED_MEMORY
            np.add.at(total, origin, step)

        rows = kinds.rows
        keep = _REQUEST_MEMORY ** self._ages[0, rows]  # [bs]
        self._row_promised[rows] = keep * self._row_promised[rows] + expected
        self._row_accepted[rows] = keep * self._row_accepted[rows] + got
        self._ages[0, rows] = 0

    def remember(self, kinds: Kinds, chances: Floats) -> None:
        """Take in what trees were expected to bring at each width.

        Args:
            chances: [bs, N] of their nodes, the mean of some steps.
        """
        rows, origin = kinds.rows, (self._origins[kinds.rows], kinds.sampled)
        news = (1 - _CURVE_MEMORY ** self._ages[1, rows])[:, None]
        self._curves[rows] += news * (self._curve(chances) - self._curves[rows])
        self._ages[1, rows] = 0
        drift = self._curves[rows] - self._origin_curves[origin]
        np.add.at(self._origin_curves, origin, _ORIGIN_SHARE * drift)

    def _curve(self, chances: Floats) -> Floats:
        """Expected tokens at each width, [bs, W]: the root stands for the bonus token."""
        within = np.minimum(self._widths, chances.shape[1]) - 1
        return np.cumsum(chances, axis=1)[:, within]

    def _welcome(self, kinds: Kinds) -> None:
        """Requests that decode for the first time start from their origin."""
        new = self._is_new[kinds.rows]
        if not new.any():
            return
        rows = kinds.rows[new]
        origin = self._origins[rows], kinds.sampled[new]
        self._centres[rows] = _ratio(
            self._origin_accepted[origin], self._origin_promised[origin], _REQUEST_PRIOR, 1.0
        )
        self._curves[rows] = self._origin_curves[origin]
        self._ages[:, rows] = 0
        self._is_new[rows] = False

    def _factors(self, rows: Ints) -> Floats:
        return _ratio(
            self._row_accepted[rows],
            self._row_promised[rows],
            _REQUEST_PRIOR,
            self._centres[rows],
        )


def _ratio(accepted: Floats, promised: Floats, weight: float, centre: Floats | float) -> Floats:
    ratio = (weight * centre + accepted) / (weight + promised)
    return np.minimum(np.maximum(ratio, 1 / _MOST), _MOST)


def _first_curve(widths: tuple[int, ...], max_depth: int) -> Floats:
    """A chain whose tokens hold with a fixed chance: what is assumed before anything was seen."""
    holds = _PRIOR_HOLD ** np.arange(max_depth + 1)
    return np.array([holds[: min(width, max_depth + 1)].sum() for width in widths])
