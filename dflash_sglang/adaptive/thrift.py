"""How long choosing takes, and for how many steps a choice is kept so that it takes few of them."""

from __future__ import annotations

from math import ceil

_SHARE = 0.02  # of the steps' time, which choosing may take
_LONGEST = 8  # steps that a choice is kept for
_MEMORY = 0.9  # of earlier choices, kept a choice


class Thrift:
    """What choices cost, as they are made beside a model that empties the processor's caches.

    Measured alone, in a loop, they cost a third of that.
    """

    def __init__(self) -> None:
        self._usual = 0.0  # milliseconds of a choice
        self._present = 0.0

    def spend(self, milliseconds: float) -> None:
        """A part of the present choice took so long."""
        self._present += milliseconds

    def settle(self) -> float:
        """The present choice is over: its milliseconds."""
        spent, self._present = self._present, 0.0
        self._usual = spent if self._usual == 0 else _MEMORY * self._usual + (1 - _MEMORY) * spent
        return spent

    def steps(self, step_milliseconds: float) -> int:
        """Steps of so long that a choice is kept for, at least one."""
        return max(1, min(_LONGEST, ceil(self._usual / (_SHARE * step_milliseconds))))
