"""Where the time of decode steps goes, on SGLang's own /metrics page."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import torch

PHASES = ("draft", "verify", "commit")
"""Drafter, lattice and tree; the target's forward and its draws; walk, KV moves and injection."""


class StepMetrics:
    """Counters of decode steps; means and rates are left to the reader.

    They are made after SGLang's, which sets up the folder that its processes share.
    """

    def __init__(self) -> None:
        from prometheus_client import Counter

        self._steps = Counter("dflash2_steps", "Decode steps by the nodes verified.", ["nodes"])
        self._nodes = Counter("dflash2_nodes", "Nodes verified, those of all requests.")
        self._phases = Counter(
            "dflash2_phase_milliseconds", "Milliseconds of decode steps by phase.", ["phase"]
        )

    def add(self, nodes: int, requests: int, steps: int, milliseconds: list[float]) -> None:
        """Take in equal steps: nodes of each of their requests, and the time of each phase."""
        self._steps.labels(str(nodes)).inc(steps)
        self._nodes.inc(nodes * requests * steps)
        for phase, took in zip(PHASES, milliseconds, strict=True):
            self._phases.labels(phase).inc(took)


class _Timed(NamedTuple):
    nodes: int
    requests: int
    steps: int
    moments: list[Any]  # one more than there are phases


class _Moments(Protocol):
    def now(self) -> Any: ...

    def is_past(self, moment: Any) -> bool: ...

    def milliseconds(self, earlier: Any, later: Any) -> float: ...


class StepClock:
    """Times the phases of decode steps, where somebody reads them.

    Args:
        device: where the steps run. On an accelerator a moment is an event of its stream, which is
            read once the device has passed it: the host waits for nothing.
        metrics: where the times go; None times nothing.
    """

    def __init__(self, device: torch.device | str, metrics: StepMetrics | None) -> None:
        device = torch.device(device)
        self._moments: _Moments = _HostMoments() if device.type == "cpu" else _Events(device)
        self._metrics = metrics
        self._laps: list[Any] = []
        self._unread: deque[_Timed] = deque()

    def start(self) -> None:
        """A decode step begins, with its draft."""
        if self._metrics is not None:
            self._laps = [self._moments.now()]

    def lap(self) -> None:
        """The next phase begins."""
        if self._metrics is not None:
            self._laps.append(self._moments.now())

    def finish(self, nodes: int, requests: int, steps: int = 1) -> None:
        """The last phase is over: what each of the steps verified for each of its requests."""
        if self._metrics is None:
            return
        self.lap()
        self._unread.append(_Timed(nodes, requests, steps, self._laps))
        while self._unread and self._moments.is_past(self._unread[0].moments[-1]):
            timed = self._unread.popleft()
            took = [self._moments.milliseconds(a, b) for a, b in pairwise(timed.moments)]
            self._metrics.add(timed.nodes, timed.requests, timed.steps, took)


class _HostMoments:
    """Of a device that computes when it is asked to."""

    def now(self) -> float:
        return perf_counter()

    def is_past(self, moment: float) -> bool:
        return True

    def milliseconds(self, earlier: float, later: float) -> float:
        return 1e3 * (later - earlier)


class _Events:
    """Of a device that is asked ahead of time."""

    def __init__(self, device: torch.device) -> None:
        self._module = torch.get_device_module(device)

    def now(self) -> Any:
        event = self._module.Event(enable_timing=True)
        event.record()
        return event

    def is_past(self, moment: Any) -> bool:
        return bool(moment.query())

    def milliseconds(self, earlier: Any, later: Any) -> float:
        return float(earlier.elapsed_time(later))
