"""What requests of one origin were accepted with so far: where a new one starts.

An origin is a domain and a length of the prompt (``adaptive.domain``), of greedy or of sampled
requests. One that was seen little is taken for what all domains of its length showed: a drafter
that does not hold in long contexts hardly holds there in one kind of text alone.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dflash_sglang.adaptive.domain import NUM_LENGTHS, NUM_ORIGINS

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_PRIOR_STEPS = 4.0  # that what is assumed of an origin weighs
_STEP_MEMORY = 0.99  # of earlier steps, kept a step
_PRIOR_NODES = 6.0  # accepted nodes that a ratio's prior weighs
_NODE_MEMORY = 0.999  # of what earlier lessons said, kept a lesson
_MOST = 5.0  # a ratio's reach


# Each origin, then all origins of each length; greedy and sampled requests apart.
_NUM_PLACES = 2 * (NUM_ORIGINS + NUM_LENGTHS)


class Places:
    """Where requests belong.

    Args:
        own: [n], the place of each one's origin.
        shared: [n], that of all of its length.
    """

    def __init__(self, own: Ints, shared: Ints) -> None:
        self.own, self.shared = own, shared

    @classmethod
    def of(cls, origins: Ints, sampled: Ints) -> Places:
        """Those of requests.

        Args:
            origins: [n], as ``adaptive.domain`` counts them.
            sampled: [n], 1 where the request is sampled, 0 where it is greedy.
        """
        shared = 2 * (NUM_ORIGINS + origins % NUM_LENGTHS) + sampled
        return cls(2 * origins + sampled, shared)

    @cached_property
    def members(self) -> Floats:
        """Which requests belong to a place, 1 or 0, [P, n]: sums over them are one product."""
        requests = np.arange(len(self.own))
        members = np.zeros((_NUM_PLACES, len(requests)))
        members[self.own, requests] = 1.0
        members[self.shared, requests] = 1.0
        return members


class OriginHistory:
    """What every origin showed.

    Args:
        first_curve: [W] tokens that each width brings before anything was seen.
    """

    def __init__(self, first_curve: Floats) -> None:
        self._promised, self._accepted = np.zeros(_NUM_PLACES), np.zeros(_NUM_PLACES)
        self._steps, self._tokens = np.zeros(_NUM_PLACES), np.zeros((_NUM_PLACES, len(first_curve)))
        self._first_curve = first_curve

    def learn(self, places: Places, promised: Floats, accepted: Floats) -> None:
        """Take in a step: nodes, [bs], that were promised and accepted."""
        self._promised = _NODE_MEMORY * self._promised + places.members @ promised
        self._accepted = _NODE_MEMORY * self._accepted + places.members @ accepted

    def remember(self, places: Places, curves: Floats, steps: Ints) -> None:
        """Take in what drafted steps were expected to bring.

        Args:
            curves: [bs, W] tokens a step at each width.
            steps: [bs]; 0 of requests that say nothing of others.
        """
        new = places.members @ steps  # [P]
        keep = _STEP_MEMORY**new
        self._steps = keep * self._steps + new
        self._tokens *= keep[:, None]
        self._tokens += places.members @ (curves * steps[:, None])

    def curves(self, places: Places) -> Floats:
        """Tokens that each width is expected to bring new requests, [n, W]."""
        curve = self._first_curve
        for place in (places.shared, places.own):
            seen = self._steps[place][:, None]
            curve = (_PRIOR_STEPS * curve + self._tokens[place]) / (_PRIOR_STEPS + seen)
        return curve

    def ratios(self, places: Places) -> Floats:
        """Accepted of promised nodes, [n]."""
        found: Floats | float = 1.0
        for place in (places.shared, places.own):
            found = ratio(self._accepted[place], self._promised[place], _PRIOR_NODES, found)
        return np.asarray(found)


def ratio(accepted: Floats, promised: Floats, weight: float, centre: Floats | float) -> Floats:
    """Accepted of promised nodes, with a prior that weighs as much as some accepted ones."""
    found = (weight * centre + accepted) / (weight + promised)
    return np.minimum(np.maximum(found, 1 / _MOST), _MOST)
