"""Whether a step drafts, and how many of the drafted nodes it verifies.

A server delivers the most if every step's tokens, less what its time is worth, are the most:

    E(n) - rate * t(n)

with E(n) the tokens that n nodes a request are expected to bring to the whole batch, t(n) the
step's time, and ``rate`` the tokens a millisecond that decoding comes to (Dinkelbach's rule for
ratios). The marginal gain of the next node of every request is held against its marginal cost.

It is decided in two parts, since a step that does not draft saves the drafter's pass, and only a
drafted tree tells what its nodes are worth:

* before the draft, from what requests got lately at each width: plain decoding where it is faster;
* behind it, from the chances of this tree's nodes: the width.

What is not tried is not learned. A batch that decodes plainly drafts now and then, ever more rarely
while that changes nothing, and the best width's neighbours are tried, at once where their time was
never measured at this batch size: width by width the best one is climbed to.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from dflash_sglang.adaptive.acceptance import Floats
from dflash_sglang.adaptive.costs import CostModel

_HYSTERESIS = 0.02  # drafting or plain decoding must promise so much more than the present one
_FIRST_PROBE, _LAST_PROBE = 9, 256  # plain steps until the next draft, doubling
_LONGEST_REST = 8  # plain steps that are decided together,
_LONGEST_REST_MS = 100.0  # and about what they may take: new requests wait for their end
_TRIED_REST = 4  # plain steps that are tried together
_ROOM = 2  # widths beyond the best one that a draft has nodes for
# Steps, or for plain decoding plans, between tries of a neighbour without a measured time,
_NEW_WIDTH_EVERY = 4
_NEIGHBOUR_EVERY = 32  # and of the best width's neighbours
_MEASUREMENTS = 2  # after which a width's time is known
_WORTH_A_TRY = 0.8  # of the best rate, which a width must promise to be tried
_PLAIN_WORTH_A_TRY = 0.4  # the same for plain decoding, whose time may be far from the expected one


class Outlook(NamedTuple):
    """What is expected of a step before it drafts."""

    times: list[float]  # [W] milliseconds at each width
    counts: list[int]  # [W] measurements behind them
    rate: float  # tokens a millisecond of the best width
    longest: int  # plain steps that may be decided together
    rest: int  # of them, before asking again; 0: draft
    ceiling: int  # nodes that are worth drafting
    probes: bool  # a batch that decodes plainly drafts this once


class Width(NamedTuple):
    """A step's width and what it promises."""

    nodes: int  # 1 is plain decoding
    tokens: float  # expected, all requests together
    milliseconds: float  # expected


class WidthPolicy:
    """Chooses the width of every step of one server.

    Args:
        widths: W ascending numbers of nodes that can be run, the first of them 1.
        costs: expected times; the caller corrects them with what it measures.
    """

    def __init__(self, widths: tuple[int, ...], costs: CostModel) -> None:
        self._widths = widths
        self._costs = costs
        self._drafting = True
        self._plain_steps = self._drafted_steps = 0
        self._patience = _FIRST_PROBE
        self._steps = 0

    def look_ahead(self, remembered: Floats, context: int) -> Outlook:
        """Decide whether the next step drafts, or how many steps do not.

        Args:
            remembered: [bs, W] tokens that each request lately got at each width.
            context: cached tokens of all requests together.
        """
        bs = remembered.shape[0]
        times = self._costs.milliseconds(bs, context)  # [W]
        counts = self._costs.counts(bs, context)  # [W]
        rates = remembered.sum(axis=0) / times
        best = 1 + int(rates[1:].argmax())
        plain, drafted = rates[0], rates[best]
        was_drafting = self._drafting
        if self._drafting and plain > (1 + _HYSTERESIS) * drafted:
            self._drafting = False
        elif not self._drafting and drafted > (1 + _HYSTERESIS) * plain:
            self._drafting = True
        longest = max(1, min(_LONGEST_REST, round(_LONGEST_REST_MS / times[0])))
        if not self._drafting:
            rest = self._rest(bool((counts[1:] >= _MEASUREMENTS).any()), longest)
        else:
            if not was_drafting:
                self._patience = _FIRST_PROBE
            tries_plain = self._tries_plain(int(counts[0]), plain / drafted)
            rest = min(longest, _TRIED_REST) if tries_plain else 0
        ceiling = self._widths[min(best + _ROOM, len(self._widths) - 1)]
        rate = float(rates.max())
        probes = not self._drafting and rest == 0
        return Outlook(times.tolist(), counts.tolist(), rate, longest, rest, ceiling, probes)

    def choose(self, tokens: Sequence[float], outlook: Outlook) -> Width:
        """The width of a step that has drafted.

        Args:
            tokens: [W] that each width is expected to bring all requests together.
            outlook: of this step; widths above its ceiling were not drafted.
        """
        reachable = range(1, bisect_right(self._widths, outlook.ceiling))
        times, rate = outlook.times, outlook.rate
        best = max(reachable, key=lambda i: tokens[i] - rate * times[i])
        chosen = self._tried(tokens, outlook, best, reachable)
        return Width(self._widths[chosen], tokens[chosen], times[chosen])

    def _rest(self, known: bool, longest: int) -> int:
        """Plain steps until the next look at a batch that decodes plainly.

        None where it drafts this once, to see what that would bring.

        Args:
            known: the time of drafting was measured at this batch size.
            longest: steps at most.
        """
        patience = self._patience if known else min(_NEW_WIDTH_EVERY, self._patience)
        left = patience - 1 - self._plain_steps
        if left > 0:
            rest = min(left, longest)
            self._plain_steps += rest
            return rest
        self._plain_steps = 0
        if known:
            self._patience = min(2 * self._patience, _LAST_PROBE)
        return 0

    def _tries_plain(self, count: int, promised: float) -> bool:
        """Whether a batch that drafts decodes plainly this once, for what the time teaches.

        Args:
            count: measurements of plain steps like this one.
            promised: tokens a millisecond of plain decoding, as a share of drafting's.
        """
        self._drafted_steps += 1
        if count < _MEASUREMENTS:
            return promised >= _PLAIN_WORTH_A_TRY and self._drafted_steps % _NEW_WIDTH_EVERY == 0
        return promised >= _WORTH_A_TRY and self._drafted_steps % _NEIGHBOUR_EVERY == 0

    def _tried(self, tokens: Sequence[float], outlook: Outlook, best: int, reachable: range) -> int:
        """The best width, or now and then another one for what its time teaches.

        Widths by their index, ``tokens`` [W] as they are expected.
        """
        self._steps += 1
        if self._steps % _NEW_WIDTH_EVERY:
            return best
        times, counts = outlook.times, outlook.counts
        worth = _WORTH_A_TRY * tokens[best] / times[best]
        neighbours = [
            i for i in (best - 1, best + 1) if i in reachable and tokens[i] >= worth * times[i]
        ]
        new = [i for i in neighbours if counts[i] < _MEASUREMENTS]
        if not new and self._steps % _NEIGHBOUR_EVERY:
            return best
        return min(new or neighbours, key=lambda i: counts[i], default=best)
