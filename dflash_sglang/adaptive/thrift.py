"""How long choosing takes, and for how many steps a plan is kept so that it takes few of them."""

from __future__ import annotations

from math import ceil

_SHARE = 0.01  # of the steps' time, which choosing may take
_LONGEST = 16  # steps that a plan is kept for
_MEMORY = 0.9  # of earlier plans, kept a plan


class Thrift:
    """What choices cost, as they are made beside a model that empties the processor's caches.

    Measured alone, in a loop, they cost a third of that. A plan for some steps is made once, and
    each of its steps chooses its own width.
    """

    def __init__(self) -> None:
        self._planning = _Usual()
        self._choosing = _Usual()
        self._kept = 1.0  # share of a plan's steps that come about; requests end, others begin

    def plan(self, milliseconds: float) -> None:
        """A part of making the present plan took so long."""
        self._planning.present += milliseconds

    def choose(self, milliseconds: float) -> None:
        """A part of choosing its steps' widths took so long."""
        self._choosing.present += milliseconds

    def settle(self, steps: int, planned: int, *, drafted: bool) -> float:
        """The present plan is over, after so many of its steps: the milliseconds that it took.

        Plain steps, for which there is next to nothing to choose, say nothing about others.
        """
        if drafted:
            self._kept += (1 - _MEMORY) * (steps / planned - self._kept)
        parts = (self._planning, 1), (self._choosing, max(steps, 1))
        return sum(part.settle(times, counts=drafted) for part, times in parts)

    def steps(self, step_milliseconds: float) -> int:
        """Steps of so long that a plan is kept for, at least one."""
        left = _SHARE * step_milliseconds - self._choosing.usual
        if left <= 0:
            return _LONGEST
        return max(1, min(_LONGEST, ceil(self._planning.usual / left / self._kept)))


class _Usual:
    """Milliseconds that something usually takes."""

    def __init__(self) -> None:
        self.usual = 0.0
        self.present = 0.0

    def settle(self, times: int, *, counts: bool) -> float:
        """The present ones were for so many times."""
        spent, self.present = self.present, 0.0
        if counts:
            each = spent / times
            self.usual = each if self.usual == 0 else _MEMORY * self.usual + (1 - _MEMORY) * each
        return spent
