"""A chosen width is kept for as long as choosing it again would cost too much."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
import torch

from dflash_sglang.adaptive.thrift import Thrift
from dflash_sglang.engine import widths as engine_widths
from tests.unit.width_batches import adaptive_width, batch_of, chain, request, verdict

_NODES = 16


class Chosen:
    """An adaptive width whose every look at the clock finds a millisecond gone."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ticks = count()
        monkeypatch.setattr(engine_widths, "perf_counter", lambda: 1e-3 * next(ticks))
        self.widths, limits = adaptive_width(_NODES)
        self.requests = [request(0), request(1)]
        limits.admit(self.requests)
        self.widths.admit(self.requests)
        self.choices = 0
        choose = self.widths._policy.choose

        def counted(*args: Any) -> Any:
            self.choices += 1
            return choose(*args)

        monkeypatch.setattr(self.widths._policy, "choose", counted)

    def step(self, requests: list[Any] | None = None) -> int:
        """Nodes that a drafted step verifies; 1 for a plain one."""
        batch = batch_of(requests or self.requests)
        bs = len(batch.reqs)
        drafted = self.widths.nodes(batch)
        if drafted == 1:
            while self.widths.goes_on(batch, torch.zeros(bs, dtype=torch.int64)):
                pass
            return 1
        verified = self.widths.cut(chain(bs, drafted)).tokens.shape[1]
        self.widths.learn(verdict(bs))
        return verified


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Chosen:
    found = Chosen(monkeypatch)
    for _ in range(3):  # from the second choice on it is known what choosing costs
        found.step()
    return found


def kept_steps(chosen: Chosen) -> list[int]:
    """Nodes of the drafted steps of one choice, the first of them left out."""
    before = chosen.choices
    while chosen.choices == before:
        chosen.step()
    found = []
    while chosen.choices == before + 1:
        found.append(chosen.step())
    drafted = [nodes for nodes in found if nodes > 1]  # plain decoding is tried in between
    return drafted[:-1]  # the last of them was the next choice's


def test_a_width_whose_choice_is_dear_is_kept_for_some_steps(chosen: Chosen) -> None:
    kept = kept_steps(chosen)
    assert len(kept) >= 3
    assert len(set(kept)) == 1 and kept[0] > 1


def test_other_requests_are_chosen_for_at_once(chosen: Chosen) -> None:
    kept_steps(chosen)
    before = chosen.choices
    chosen.step(chosen.requests[:1])
    assert chosen.choices == before + 1 or chosen.widths._plan.step.nodes == 1
    assert chosen.widths._plan.rows == [0]


def test_nothing_is_kept_beyond_a_prefill_but_what_its_whole_steps_took(
    chosen: Chosen, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept_steps(chosen)
    while (plan := chosen.widths._plan).forwards < 3 or plan.step.nodes == 1:
        chosen.step()
    corrected: list[Any] = []
    monkeypatch.setattr(chosen.widths._costs, "correct", corrected.append)
    chosen.widths.admit([request(2)])
    assert chosen.widths._plan is None
    [measured] = corrected
    assert measured.step == plan.step
    took = 1e3 * (plan.latest - plan.started) / (plan.forwards - 1)
    assert measured.milliseconds == pytest.approx(took)


def test_plain_steps_that_the_host_must_see_are_decided_together_all_the_same(
    chosen: Chosen, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = batch_of(chosen.requests)
    watched.return_logprob = True
    decided: list[int] = []
    look_ahead = chosen.widths._policy.look_ahead

    def plain_for_five(*args: Any) -> Any:
        decided.append(1)
        return look_ahead(*args)._replace(rest=5)

    monkeypatch.setattr(chosen.widths._policy, "look_ahead", plain_for_five)
    chosen.widths.admit([])
    for _ in range(10):
        assert chosen.widths.nodes(watched) == 1
        assert not chosen.widths.goes_on(watched, torch.zeros(2, dtype=torch.int64))
    assert len(decided) == 2


def test_tokens_of_kept_steps_are_counted(chosen: Chosen) -> None:
    kept_steps(chosen)
    plan = chosen.widths._plan
    assert plan.tokens == 2 * 2 * plan.forwards


@pytest.mark.parametrize("step_ms", [3.0, 12.0, 60.0])
@pytest.mark.parametrize("choice_ms", [0.1, 0.8, 2.0])
def test_choosing_takes_two_per_cent_of_a_choices_steps_or_the_longest_time(
    choice_ms: float, step_ms: float
) -> None:
    thrift = Thrift()
    assert thrift.steps(step_ms) == 1  # nothing is known of the first
    for _ in range(3):
        thrift.spend(choice_ms / 2)
        thrift.spend(choice_ms / 2)
        assert thrift.settle() == pytest.approx(choice_ms)
    steps = thrift.steps(step_ms)
    assert 1 <= steps <= 8
    assert choice_ms <= 0.02 * steps * step_ms * 1.001 or steps == 8
    assert steps == 1 or choice_ms > 0.02 * (steps - 1) * step_ms
