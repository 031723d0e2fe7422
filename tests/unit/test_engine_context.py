"""Hidden states of plain steps wait, and nothing is injected out of order."""

from __future__ import annotations

from itertools import chain
from types import SimpleNamespace

import pytest
import torch

from dflash_sglang.engine.context import DrafterContext, Features


class Drafter:
    """Notes what is injected."""

    def __init__(self):
        self.injected = []

    def inject(self, hidden, slots, positions):
        assert len(hidden) == len(slots) == len(positions)
        self.injected.append(slots.tolist())


@pytest.fixture
def drafter():
    return Drafter()


@pytest.fixture
def context(drafter):
    return DrafterContext(drafter, SimpleNamespace(tp_group=None))


def features(*slots):
    slots = torch.tensor(slots)
    return Features(torch.zeros(len(slots), 4), slots, slots + 100)


def batch(*requests):
    return SimpleNamespace(reqs=[SimpleNamespace(rid=rid) for rid in requests])


def test_plain_steps_are_injected_together_when_a_draft_needs_them(context, drafter):
    for slot in (3, 4, 5):
        context.append_later(batch("a"), features(slot))
    assert drafter.injected == []
    context.catch_up()
    context.catch_up()
    assert drafter.injected == [[3, 4, 5]]


def test_what_waits_goes_in_before_what_comes_at_once(context, drafter):
    context.append_later(batch("a"), features(3))
    context.append(features(7, 8))
    assert drafter.injected == [[3], [7, 8]]


@pytest.mark.parametrize("after", [("a",), ("b", "a"), ("a", "b", "c"), ("a", "c")])
def test_what_waits_goes_in_before_slots_of_an_ended_request_are_written_again(
    context, drafter, after
):
    context.append_later(batch("a", "b"), features(3, 4))
    context.append_later(batch(*after), features(4))
    context.catch_up()
    assert drafter.injected == [[3, 4], [4]]


def test_no_more_than_a_bounded_number_of_steps_wait(context, drafter):
    for slot in range(1, 50):
        context.append_later(batch("a"), features(slot))
    assert 16 <= min(map(len, drafter.injected)) <= max(map(len, drafter.injected)) <= 32
    context.catch_up()
    assert list(chain(*drafter.injected)) == list(range(1, 50))
