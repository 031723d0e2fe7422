"""Node values corrected by what nodes were accepted with, for all requests and for each."""

import numpy as np
import pytest
import torch

from dflash_sglang.adaptive.acceptance import AcceptModel, DraftedNodes
from dflash_sglang.adaptive.domain import DOMAINS

WIDTHS = (1, 2, 3, 4)
UNBOUND = np.array([[4, 3]])
CODE, PROSE = DOMAINS.index("code"), DOMAINS.index("prose")
NODES = DraftedNodes(np.array([[0, 1, 2, 1]]), np.array([[1.0, 0.8, 0.6, 0.1]]))
ALL, NONE = np.array([[True, True, True, False]]), np.array([[True, False, False, False]])


def kinds(model, row=0):
    return model.meet(np.array([row]))


def model_with(domains, sampled=(0, 0)):
    n = len(domains)
    model = AcceptModel(n, WIDTHS, max_depth=3)
    model.restart(np.arange(n), np.array(domains), np.array(sampled[:n]))
    return model


def decode(model, accepted, steps, **kind):
    for _ in range(steps):
        model.grow_older(kinds(model, **kind).rows, 1)
        model.learn(kinds(model, **kind), NODES, accepted)
        remember(model, curves_of(model, **kind), **kind)


def remember(model, curves, steps=1, **kind):
    model.remember(kinds(model, **kind), curves)
    model.remember_origins(kinds(model, **kind), curves, np.array([steps]))


def curves_of(model, bounds=UNBOUND, nodes=NODES, **kind):
    """[1, W] tokens that each width is expected to bring."""
    calibration = model.calibration(kinds(model, **kind), bounds)
    log_values = torch.from_numpy(np.log(nodes.values).astype(np.float32))
    return calibration.curves(log_values, torch.from_numpy(nodes.depths)).numpy()


def chances_of(model, **kind):
    """[1, N] of each node: there is a width for every one of them."""
    return np.diff(curves_of(model, **kind), prepend=0.0)


def test_before_anything_was_seen_unlikely_nodes_are_worth_less_than_their_value():
    worth = chances_of(model_with([CODE]))[0] / NODES.values[0]
    assert worth[0] == 1
    assert 1 > worth[1] > worth[2] > worth[3] > 0.4


def test_chances_follow_what_was_accepted_and_stay_chances():
    model = model_with([CODE])
    decode(model, ALL, 40)
    chances = chances_of(model)[0]
    assert chances[1] > 0.9 and chances[2] > 0.85
    assert chances[3] < 0.07  # the sibling that never held
    assert chances.max() <= 1


def test_a_request_that_goes_badly_does_not_spoil_another_of_its_own_history():
    model = model_with([CODE, CODE])
    decode(model, ALL, 40, row=0)
    decode(model, NONE, 10, row=1)
    good, bad = (chances_of(model, row=row)[0, 1] for row in (0, 1))
    assert bad < 0.75 * good


def test_greedy_and_sampled_requests_are_learned_apart():
    model = model_with([CODE, CODE], sampled=(1, 0))
    fresh = chances_of(model, row=1)
    decode(model, NONE, 40, row=0)
    assert chances_of(model, row=1) == pytest.approx(fresh)


def test_a_new_request_starts_from_its_origin():
    model = model_with([CODE, PROSE])
    decode(model, ALL, 40, row=0)
    decode(model, NONE, 40, row=1)
    model.restart(np.array([0, 1]), np.array([PROSE, CODE]), np.array([0, 0]))
    prose, code = (model.remembered(kinds(model, row=row))[0, -1] for row in (0, 1))
    assert code > prose + 0.5


def test_the_first_draft_of_a_request_says_more_than_a_later_one():
    model = model_with([CODE])
    poor = np.array([[1.0, 1.0, 1.0, 1.0]])
    moved = []
    for _ in range(3):
        before = model.remembered(kinds(model))[0, -1]
        model.grow_older(kinds(model).rows, 1)
        remember(model, poor)
        moved.append((before - model.remembered(kinds(model))[0, -1]) / (before - 1))
    assert moved[0] > 1.5 * moved[1]
    assert moved[1] == pytest.approx(moved[2])


def test_after_plain_steps_one_draft_says_most_of_what_a_request_gets():
    model = model_with([CODE])
    decode(model, ALL, 40)
    model.grow_older(kinds(model).rows, 30)
    remember(model, np.array([[1.0, 1.01, 1.02, 1.03]]))
    assert model.remembered(kinds(model))[0, -1] < 1.1


def test_a_request_with_limits_of_its_own_says_nothing_of_its_origin():
    model = model_with([CODE, CODE])
    before = model.remembered(kinds(model, row=1)).copy()
    for _ in range(40):
        model.grow_older(kinds(model).rows, 1)
        remember(model, np.array([[1.0, 1.0, 1.0, 1.0]]), steps=0)
    model.restart(np.array([1]), np.array([CODE]), np.array([0]))
    assert model.remembered(kinds(model, row=1)) == pytest.approx(before)


def test_nodes_that_were_not_verified_teach_nothing():
    model, other = model_with([CODE]), model_with([CODE])
    decode(model, ALL[:, :2], 20)
    decode(other, ALL[:, :2], 20)
    misled = DraftedNodes(NODES.depths, np.array([[1.0, 0.8, 0.0, 0.0]]))
    other.learn(kinds(other), misled, ALL[:, :2])
    model.learn(kinds(model), NODES, ALL[:, :2])
    assert chances_of(model) == pytest.approx(chances_of(other))


@pytest.mark.parametrize(
    ("bounds", "tokens"),
    [
        ([1, 3], [1, 1, 1, 1]),
        ([3, 3], [1, 2, 3, 3]),
        ([4, 1], [1, 2, 2, 3]),
        ([4, 3], [1, 2, 3, 4]),
    ],
)
def test_what_lies_beyond_a_requests_bounds_brings_nothing(bounds, tokens):
    model = model_with([CODE])
    sure = DraftedNodes(NODES.depths, np.ones((1, 4)))
    decode(model, np.ones((1, 4), dtype=bool), 200)
    found = curves_of(model, np.array([bounds]), sure)
    assert found[0] == pytest.approx(tokens, abs=0.1)


def test_a_width_of_more_nodes_than_were_drafted_brings_what_these_do():
    model = model_with([CODE])
    fewer = DraftedNodes(NODES.depths[:, :2], NODES.values[:, :2])
    assert curves_of(model, nodes=fewer)[0, 1:] == pytest.approx(curves_of(model)[0, 1])


def test_widths_that_do_not_ascend_from_one_are_refused():
    with pytest.raises(ValueError, match=r"ascend from 1, got \(2, 4\)"):
        AcceptModel(1, (2, 4), 3)
