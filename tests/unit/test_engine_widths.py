"""A chosen width is kept for as long as choosing it again would cost too much."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dflash_sglang.adaptive.thrift import Thrift
from dflash_sglang.engine import widths as engine_widths
from tests.unit.width_batches import adaptive_width, batch_of, chain, request, verdict

_NODES = 16


class Chosen:
    """An adaptive width whose every look at the clock finds a millisecond gone, and more behind
    a forward: 13 where it was drafted for, 10 where not.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0  # milliseconds

        def look() -> float:
            self.now += 1.0
            return 1e-3 * self.now

        monkeypatch.setattr(engine_widths, "perf_counter", look)
        self.widths, limits = adaptive_width(_NODES)
        self.requests = [request(0), request(1)]
        limits.admit(self.requests)
        self.widths.admit(self.requests)
        self.plans = 0
        look_ahead = self.widths._policy.look_ahead

        def counted(*args: Any) -> Any:
            self.plans += 1
            return look_ahead(*args)

        monkeypatch.setattr(self.widths._policy, "look_ahead", counted)

    def step(self, requests: list[Any] | None = None) -> int:
        """Nodes that a drafted step verifies; 1 for a plain one."""
        batch = batch_of(requests or self.requests)
        bs = len(batch.reqs)
        drafted = self.widths.nodes(batch)
        if drafted == 1:
            self.now += 10
            while self.widths.goes_on(batch, torch.zeros(bs, dtype=torch.int64)):
                self.now += 10
            return 1
        self.now += 13
        verified = self.widths.cut(chain(bs, drafted)).tokens.shape[1]
        self.widths.learn(verdict(bs))
        return verified


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Chosen:
    found = Chosen(monkeypatch)
    for _ in range(3):  # from the second choice on it is known what choosing costs
        found.step()
    return found


def drafted_plan(chosen: Chosen) -> int:
    """Steps of the first plan that drafts, all but the last of which were made."""
    while True:
        chosen.step()
        plan = chosen.widths._plan
        if plan.drafts and plan.steps >= 3 and not plan.legs:
            break
    for _ in range(plan.steps - 2):
        chosen.step()
    return plan.steps


def decide(chosen: Chosen, monkeypatch: pytest.MonkeyPatch, **decision: int) -> None:
    """From now on the policy decides so, whatever it is asked."""
    look_ahead = chosen.widths._policy.look_ahead
    monkeypatch.setattr(
        chosen.widths._policy, "look_ahead", lambda *args: look_ahead(*args)._replace(**decision)
    )


def test_a_dear_plan_is_kept_for_some_steps(chosen: Chosen) -> None:
    steps, before = drafted_plan(chosen), chosen.plans
    assert steps >= 3
    chosen.step()
    assert chosen.plans == before
    chosen.step()
    assert chosen.plans == before + 1


def test_every_step_of_a_plan_has_the_width_that_its_own_tree_is_worth(chosen: Chosen) -> None:
    drafted_plan(chosen)
    batch = batch_of(chosen.requests)
    found = []
    for loss in (0.01, 5.0):
        chosen.widths.admit([])
        while chosen.widths.nodes(batch) == 1:
            chosen.widths.admit([])
        for _ in range(2):  # the first step of a plan, and one behind it
            tree = chain(2, chosen.widths._plan.nodes)
            tree = tree._replace(log_values=tree.log_values * loss / 0.2)
            found.append(chosen.widths.cut(tree).tokens.shape[1])
            chosen.widths.learn(verdict(2))
            chosen.widths._plan.steps = 9
            assert chosen.widths.nodes(batch) > 1
    good, poor = found[:2], found[2:]
    assert min(good) > max(poor)


def test_a_plan_whose_trees_are_worth_less_than_plain_decoding_is_given_up(
    chosen: Chosen, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafted_plan(chosen)
    decide(chosen, monkeypatch, rest=0, probes=False)
    taught: list[int] = []
    monkeypatch.setattr(chosen.widths._model, "learn", lambda *_: taught.append(1))
    batch = batch_of(chosen.requests)
    for _ in range(6):
        before = chosen.plans, len(taught)
        chosen.widths.admit([])
        tree = chain(2, chosen.widths.nodes(batch))
        chosen.widths.cut(tree._replace(log_values=tree.log_values * 50))
        chosen.widths.learn(verdict(2))
        chosen.now += 13
        assert chosen.widths._plan.steps == 1
        assert (chosen.plans, len(taught)) == (before[0] + 1, before[1] + 1)


def test_plans_are_short_as_long_as_little_was_learned(
    chosen: Chosen, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide(chosen, monkeypatch, rest=0, probes=False)
    steps: list[int] = []
    while len(steps) < 400:
        chosen.step()
        if not chosen.widths._plan.legs:
            steps.append(chosen.widths._plan.steps)
    assert max(steps[:4]) <= 2
    assert max(steps[:20]) <= 6
    assert steps[-1] == 16


def test_other_requests_are_planned_for_at_once(chosen: Chosen) -> None:
    drafted_plan(chosen)
    before = chosen.plans
    chosen.step(chosen.requests[:1])
    assert chosen.plans == before + 1
    assert chosen.widths._plan.rows == [0]


def test_nothing_is_kept_beyond_a_prefill_but_what_whole_steps_took(
    chosen: Chosen, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafted_plan(chosen)
    plan = chosen.widths._plan
    corrected: list[Any] = []
    monkeypatch.setattr(chosen.widths._costs, "correct", corrected.append)
    chosen.widths.admit([request(2)])
    assert chosen.widths._plan is None
    assert plan.legs
    for measured in corrected:
        alike = [leg for leg in plan.legs if leg.width.nodes == measured.step.nodes]
        took = sum(leg.milliseconds for leg in alike) / len(alike)
        assert measured.milliseconds == pytest.approx(took)
    widths = [measured.step.nodes for measured in corrected]
    assert sorted(widths) == sorted({leg.width.nodes for leg in plan.legs})


def test_plain_steps_that_the_host_must_see_are_decided_together_all_the_same(
    chosen: Chosen, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = batch_of(chosen.requests)
    watched.return_logprob = True
    decide(chosen, monkeypatch, rest=5)
    before = chosen.plans
    chosen.widths.admit([])
    for _ in range(10):
        assert chosen.widths.nodes(watched) == 1
        assert not chosen.widths.goes_on(watched, torch.zeros(2, dtype=torch.int64))
    assert chosen.plans == before + 2


def test_tokens_of_every_step_are_counted(chosen: Chosen) -> None:
    drafted_plan(chosen)
    plan = chosen.widths._plan
    assert [leg.tokens for leg in (*plan.legs, plan.leg)] == [2 * 2] * (len(plan.legs) + 1)


@pytest.mark.parametrize("step_ms", [3.0, 12.0, 60.0])
@pytest.mark.parametrize("plan_ms", [0.1, 0.8, 2.0])
@pytest.mark.parametrize("choice_ms", [0.0, 0.05])
def test_choosing_takes_one_per_cent_of_a_plans_steps_or_the_longest_time(
    plan_ms: float, choice_ms: float, step_ms: float
) -> None:
    thrift = Thrift()
    assert thrift.steps(step_ms) == 1  # nothing is known of the first
    for _ in range(3):
        thrift.plan(plan_ms / 2)
        thrift.plan(plan_ms / 2)
        thrift.choose(4 * choice_ms)
        assert thrift.settle(4, 4, drafted=True) == pytest.approx(plan_ms + 4 * choice_ms)
    steps = thrift.steps(step_ms)
    assert 1 <= steps <= 16

    def spent(steps: int) -> float:
        return plan_ms + steps * choice_ms

    assert spent(steps) <= 0.01 * steps * step_ms * 1.001 or steps == 16
    assert steps == 1 or spent(steps - 1) > 0.01 * (steps - 1) * step_ms


def test_plain_steps_say_nothing_of_what_choosing_among_drafts_costs() -> None:
    thrift = Thrift()
    thrift.plan(0.8)
    thrift.settle(4, 4, drafted=True)
    before = thrift.steps(12.0)
    for _ in range(20):
        thrift.plan(0.01)
        assert thrift.settle(8, 8, drafted=False) == pytest.approx(0.01)
    assert thrift.steps(12.0) == before


def test_plans_whose_requests_end_early_are_made_longer() -> None:
    whole, cut_short = Thrift(), Thrift()
    for _ in range(40):
        for thrift, steps in ((whole, 4), (cut_short, 2)):
            thrift.plan(0.8)
            thrift.settle(steps, 4, drafted=True)
    assert whole.steps(40.0) == 2
    assert cut_short.steps(40.0) == 4


def test_all_steps_of_a_plan_are_learned_from_in_turn(
    chosen: Chosen, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide(chosen, monkeypatch, rest=0, probes=False)
    taught: list[int] = []
    monkeypatch.setattr(
        chosen.widths._model, "learn", lambda *_: taught.append(len(chosen.widths._plan.legs))
    )
    while len(taught) < 40:
        chosen.step()
    assert set(range(4)) <= set(taught)


def test_what_a_request_gets_is_the_mean_of_its_plans_steps(
    chosen: Chosen, monkeypatch: pytest.MonkeyPatch
) -> None:
    remembered: list[Any] = []
    monkeypatch.setattr(
        chosen.widths._model, "remember", lambda _, curves, *__: remembered.append(curves)
    )
    drafted_plan(chosen)
    remembered.clear()
    drafted = [curves.numpy() for curves in chosen.widths._plan.curves]
    chosen.widths.admit([request(2)])  # the last of them is not over
    assert len(drafted) >= 2
    assert remembered[0] == pytest.approx(sum(drafted[:-1]) / (len(drafted) - 1))


def test_plans_that_a_prompt_cuts_off_at_once_are_chosen_and_learned_from(
    chosen: Chosen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short answers, one after another: no step is ever followed by another one's start."""
    taught: list[int] = []
    monkeypatch.setattr(chosen.widths._model, "learn", lambda *_: taught.append(1))
    for _ in range(8_000):
        chosen.widths.admit([])
        chosen.step()
    assert chosen.widths._plan.steps <= 16
    assert len(taught) > 400  # one in 16 steps


def test_a_probe_of_a_plain_batch_is_one_step(
    chosen: Chosen, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide(chosen, monkeypatch, rest=0, probes=True)
    chosen.widths.admit([])
    for _ in range(5):
        chosen.step()
        assert chosen.widths._plan.steps == 1


def test_nodes_beyond_a_requests_limits_teach_nothing(
    chosen: Chosen, monkeypatch: pytest.MonkeyPatch
) -> None:
    lessons: list[Any] = []
    monkeypatch.setattr(
        chosen.widths._model, "learn", lambda _, nodes, __: lessons.append(nodes.values)
    )
    bound = request(3)
    bound.sampling_params.custom_params = {"dflash2": {"nodes": 3}}
    chosen.widths._limits.admit([bound])
    chosen.widths.admit([bound])
    while not lessons:
        chosen.step([bound])
    assert (lessons[0][0, :3] > 0).all() and not lessons[0][0, 3:].any()
