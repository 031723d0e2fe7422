"""Phases of decode steps are timed where somebody reads them, and never waited for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dflash_sglang.engine import step_clock
from dflash_sglang.engine.step_clock import StepClock


class Metrics:
    """Notes what it is given."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, int, int, list[float]]] = []

    def add(self, nodes: int, requests: int, steps: int, milliseconds: list[float]) -> None:
        self.steps.append((nodes, requests, steps, milliseconds))


def step(clock: StepClock, nodes: int) -> None:
    clock.start()
    clock.lap()
    clock.lap()
    clock.finish(nodes, 3)


def test_every_phase_of_a_step_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([1.0, 1.002, 1.007, 1.008])
    monkeypatch.setattr(step_clock, "perf_counter", lambda: next(moments))
    metrics = Metrics()
    step(StepClock("cpu", metrics), nodes=8)
    [(nodes, requests, steps, took)] = metrics.steps
    assert (nodes, requests, steps) == (8, 3, 1)
    assert took == pytest.approx([2.0, 5.0, 1.0])


def test_without_a_reader_nothing_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_clock, "perf_counter", lambda: pytest.fail("a clock was read"))
    step(StepClock("cpu", None), nodes=8)


def test_on_an_accelerator_a_step_is_read_once_the_device_has_passed_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Event:
        """An event of a device that stands still until it is let go."""

        made = 0
        passed = False

        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            Event.made += 1
            self.at = Event.made

        def query(self) -> bool:
            return Event.passed

        def elapsed_time(self, later: Event) -> float:
            assert Event.passed, "waits for the device"
            return 10.0 * (later.at - self.at)

    module = SimpleNamespace(Event=Event)
    monkeypatch.setattr(step_clock.torch, "get_device_module", lambda device: module)
    metrics = Metrics()
    clock = StepClock("cuda", metrics)
    step(clock, nodes=8)
    step(clock, nodes=4)
    assert metrics.steps == []
    Event.passed = True
    step(clock, nodes=2)
    assert [nodes for nodes, *_ in metrics.steps] == [8, 4, 2]
    assert all(took == [10.0] * 3 for *_, took in metrics.steps)
