"""The width policy against brute force, on simulated servers."""

from __future__ import annotations

import numpy as np
import pytest

from dflash_sglang.adaptive.costs import CostModel, Measured, Step
from dflash_sglang.adaptive.policy import WidthPolicy
from tests.unit.adaptive_simulator import CONTEXT, WIDTHS, Device, Text, best_rate, serve

CPU = Device(fixed=8.0, row=0.45, draft=1.5)
CARD = Device(fixed=10.0, row=0.05, draft=1.0, free_rows=64)
CODE, CHAT, PROSE = Text(0.92), Text(0.75), Text(0.35)
BOAST = Text(0.55, claims=0.4)


@pytest.mark.parametrize("device", [CPU, CARD], ids=["cpu", "card"])
@pytest.mark.parametrize("bs", [1, 8])
@pytest.mark.parametrize("mix", [[CODE], [CODE, PROSE], [BOAST]], ids=["code", "mixed", "boast"])
def test_the_policy_is_within_3_percent_of_the_best_fixed_width(device, bs, mix):
    texts = [mix[i % len(mix)] for i in range(bs)]
    best, _ = best_rate(device, texts)
    served = serve(device, texts, steps=500)
    print(
        best_rate(device, texts),
        served.rate(0, 200) / best,
        served.rate(200) / best,
        np.bincount(served.widths[200:]),
    )
    assert served.rate(0, 200) >= 0.9 * best  # it learns without losing much
    assert served.rate(200) >= 0.97 * best


def test_it_switches_off_where_speculation_loses():
    device = Device(fixed=2.0, row=1.0, draft=2.0)
    texts = [Text(0.1)] * 8
    assert best_rate(device, texts)[1] == 1
    served = serve(device, texts, steps=800)
    assert (served.widths[200:] == 1).mean() > 0.97


def test_it_comes_back_when_the_text_becomes_easy():
    device = Device(fixed=8.0, row=0.9, draft=6.0)
    hard, easy = [Text(0.05)], [CODE]
    assert best_rate(device, hard)[1] == 1
    best, width = best_rate(device, easy)
    assert width >= 6
    served = serve(device, hard, steps=1600, then=easy)
    assert np.median(served.widths[200:800]) == 1
    assert served.rate(1200) >= 0.97 * best


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("bs", [1, 8])
def test_a_wrong_cost_model_recovers_within_200_steps(seed, bs):
    rng = np.random.default_rng(seed)
    steps = [Step(b, n, CONTEXT * b) for b in (1, 4, 8, 16) for n in WIDTHS]
    wrong = [Measured(step, CPU.milliseconds(step) * rng.uniform(0.3, 3.0)) for step in steps]
    costs = CostModel.fit(WIDTHS, wrong)
    texts = [CHAT] * bs
    served = serve(CPU, texts, steps=400, costs=costs, seed=seed)
    assert served.rate(200) >= 0.97 * best_rate(CPU, texts)[0]


@pytest.mark.parametrize("bs", [1, 8])
def test_an_assumed_cost_model_of_another_scale_recovers_within_200_steps(bs):
    device = Device(fixed=60.0, row=4.0, draft=20.0)
    texts = [CHAT] * bs
    served = serve(device, texts, steps=400, costs=CostModel.assumed(WIDTHS))
    assert served.rate(200) >= 0.97 * best_rate(device, texts)[0]


def test_a_width_of_unknown_cost_is_tried_only_beside_the_best():
    """Trying every width at every batch size would cost short answers more than it teaches."""
    costs = CPU.cost_model()
    policy = WidthPolicy(WIDTHS, costs)
    chances = 0.75 ** np.arange(32.0)[None]
    outlook = policy.look_ahead(np.full((1, len(WIDTHS)), 3.0), context=CONTEXT)
    outlook = outlook._replace(ceiling=WIDTHS[-1])
    tokens = chances.cumsum()[np.array(WIDTHS) - 1]
    best = WIDTHS[int((tokens - outlook.rate * np.array(outlook.times)).argmax())]
    assert best == 6
    chosen = []
    for _ in range(128):
        outlook = outlook._replace(counts=costs.counts(1, CONTEXT).tolist())
        step = Step(1, policy.choose(tokens.tolist(), outlook).nodes, CONTEXT)
        costs.correct(Measured(step, CPU.milliseconds(step)))
        chosen.append(step.nodes)
    assert set(chosen) == {4, 6, 8}
    assert chosen.count(best) >= 120


def test_plain_decoding_that_seems_dear_is_tried_and_found_to_be_cheap():
    """A server that drafts would otherwise never learn what a plain step takes."""
    device = Device(fixed=8.0, row=0.9, draft=6.0)
    steps = [Step(bs, n, CONTEXT * bs) for bs in (1, 4, 8) for n in (1, 4, 16)]
    wrong = [
        Measured(step, device.milliseconds(step) * (2.5 if step.nodes == 1 else 1.0))
        for step in steps
    ]
    texts = [Text(0.05)] * 4
    assert best_rate(device, texts)[1] == 1
    served = serve(device, texts, steps=100, costs=CostModel.fit(WIDTHS, wrong))
    assert (served.widths[:8] > 1).any()
    assert (served.widths[40:] == 1).mean() > 0.9


@pytest.mark.parametrize(("step_ms", "in_a_row"), [(3.0, 8), (25.0, 4), (60.0, 2), (300.0, 1)])
def test_plain_steps_in_a_row_take_no_longer_than_a_reader_notices(step_ms, in_a_row):
    device = Device(fixed=step_ms, row=0.0, draft=10 * step_ms)
    costs = device.cost_model()
    drafted = Step(1, 8, CONTEXT)  # of a known time, so that it need not be tried soon
    for _ in range(2):
        costs.correct(Measured(drafted, device.milliseconds(drafted)))
    policy = WidthPolicy(WIDTHS, costs)
    alone = np.ones((1, len(WIDTHS)))
    assert policy.look_ahead(alone, CONTEXT).rest == in_a_row


def test_a_draft_has_room_for_two_widths_beyond_the_best_one():
    policy = WidthPolicy(WIDTHS, CPU.cost_model())
    curve = np.minimum(np.array(WIDTHS, dtype=float), 6.0)[None]  # nothing is gained beyond 6
    outlook = policy.look_ahead(curve, CONTEXT)
    assert outlook.rest == 0  # it drafts
    assert outlook.ceiling == WIDTHS[WIDTHS.index(6) + 2]


def test_a_measured_time_bounds_those_of_widths_that_were_not():
    """Fewer nodes take no longer; without that, times from a disturbed start stay believed."""
    steps = [Step(1, n, CONTEXT) for n in WIDTHS]
    dear = {2: 5.0, 3: 5.0, 4: 5.0}
    spoilt = [Measured(s, CPU.milliseconds(s) * dear.get(s.nodes, 1.0)) for s in steps]
    costs = CostModel.fit(WIDTHS, spoilt)
    true = CPU.milliseconds(Step(1, 8, CONTEXT))
    for _ in range(10):
        costs.correct(Measured(Step(1, 8, CONTEXT), true))
    times = costs.milliseconds(1, CONTEXT)
    at = WIDTHS.index(8)
    assert times[at] == pytest.approx(true, rel=0.1)
    assert (times[: at + 1] <= times[at]).all()
    assert (times[at:] >= times[at]).all()


def test_a_step_that_was_interrupted_says_nothing_but_two_in_a_row_do():
    costs = CPU.cost_model()
    step = Step(1, 8, CONTEXT)
    true = CPU.milliseconds(step)
    for took in [*[true] * 10, 50 * true]:
        costs.correct(Measured(step, took))
    at = WIDTHS.index(8)
    assert costs.milliseconds(1, CONTEXT)[at] == pytest.approx(true, rel=0.05)
    for _ in range(60):
        costs.correct(Measured(step, 50 * true))
    assert costs.milliseconds(1, CONTEXT)[at] > 25 * true


def test_a_slow_moment_of_the_machine_is_not_put_down_to_the_width_of_that_moment():
    costs = CPU.cost_model()
    narrow, wide = WIDTHS.index(6), WIDTHS.index(12)

    def decode(width, times, slowness=1.0):
        step = Step(1, WIDTHS[width], CONTEXT)
        for _ in range(times):
            costs.correct(Measured(step, slowness * CPU.milliseconds(step)))

    for _ in range(20):
        decode(narrow, 2)
        decode(wide, 2)
    true = costs.milliseconds(1, CONTEXT)
    decode(wide, 25, slowness=1.3)
    slow = costs.milliseconds(1, CONTEXT)
    assert slow[wide] / slow[narrow] == pytest.approx(true[wide] / true[narrow], rel=0.09)
    assert slow[narrow] > 1.15 * true[narrow]


def test_a_place_that_was_slow_once_is_believed_again_in_time():
    costs = CPU.cost_model()
    at = WIDTHS.index(16)
    fresh = costs.milliseconds(1, CONTEXT)[at]
    for _ in range(3):
        costs.correct(Measured(Step(1, 16, CONTEXT), 2 * fresh))
    assert costs.milliseconds(1, CONTEXT)[at] > 1.4 * fresh
    usual = Step(1, 4, CONTEXT)
    for _ in range(3_000):
        costs.correct(Measured(usual, CPU.milliseconds(usual)))
    assert costs.milliseconds(1, CONTEXT)[at] < 1.1 * fresh


def test_times_of_long_contexts_are_learned_apart_from_those_of_short_ones():
    costs = CPU.cost_model()
    short, long = costs.milliseconds(4, 1_200), costs.milliseconds(4, 8_000)
    at = WIDTHS.index(8)
    for _ in range(20):
        costs.correct(Measured(Step(4, 8, 8_000), 3 * long[at]))
    assert costs.milliseconds(4, 8_000)[at] > 2.5 * long[at]
    assert costs.milliseconds(4, 1_200)[at] < 1.5 * short[at]
    assert costs.counts(4, 8_000)[at] == 20
    assert not costs.counts(4, 1_200).any()


def test_noise_does_not_blur_how_the_times_of_widths_differ():
    """A few per cent between two widths decide; single measurements are off by more."""
    device = Device(fixed=6.0, row=0.14, draft=4.0)
    rng, costs = np.random.default_rng(0), device.cost_model()
    tried = [4, 6, 8, 12, 16, 24]
    places = [WIDTHS.index(width) for width in tried]
    errors = []
    for at in range(900):
        step = Step(1, int(rng.choice(tried)), CONTEXT)
        drift = 0.15 * np.sin(at / 80)
        disturbed = 0.7 * (rng.random() < 0.03)
        took = device.milliseconds(step) * np.exp(0.15 * rng.standard_normal() + drift + disturbed)
        costs.correct(Measured(step, took))
        ratios = np.log(costs.milliseconds(1, CONTEXT) / device.times(1))[places]
        errors.append(ratios - ratios.mean())
    assert np.sqrt(np.mean(np.square(errors[100:]))) < 0.015


def test_a_width_that_is_dearer_than_the_fit_says_is_found_out():
    """Kernels have steps. Part of this one is believed, where the fit had seemed to be perfect."""
    rng, costs = np.random.default_rng(0), CPU.cost_model()
    for at in range(400):
        nodes = (4, 6, 8, 12)[at % 4]
        step = Step(1, nodes, CONTEXT)
        took = CPU.milliseconds(step) * (1.3 if nodes >= 8 else 1.0)
        costs.correct(Measured(step, took * np.exp(0.1 * rng.standard_normal())))
    found = costs.milliseconds(1, CONTEXT) / CPU.times(1)
    four, six, eight, twelve = (found[WIDTHS.index(nodes)] for nodes in (4, 6, 8, 12))
    assert min(eight, twelve) / max(four, six) > 1.12


def test_a_fit_through_too_few_points_is_not_trusted():
    """A server of one request rehearses few steps, and the fit goes through all of them."""
    steps = [Step(1, nodes, CONTEXT) for nodes in (1, 4)]
    costs = CostModel.fit(WIDTHS, [Measured(step, CPU.milliseconds(step)) for step in steps])
    for at in range(20):
        step = Step(1, (2, 4)[at % 2], CONTEXT)
        costs.correct(Measured(step, CPU.milliseconds(step)))
    found = (costs.milliseconds(1, CONTEXT) / CPU.times(1))[[1, 3]]
    assert found == pytest.approx([1, 1], rel=0.05)


def test_a_cold_first_step_says_nothing_against_its_width():
    costs = CPU.cost_model()
    before = costs.milliseconds(2, CONTEXT)[3]
    step = Step(2, 4, CONTEXT)
    costs.correct(Measured(step, 20 * CPU.milliseconds(step)))
    assert costs.milliseconds(2, CONTEXT)[3] == pytest.approx(before, rel=0.02)
    costs.correct(Measured(step, 2 * CPU.milliseconds(step)))
    assert costs.milliseconds(2, CONTEXT)[3] > 1.05 * before
