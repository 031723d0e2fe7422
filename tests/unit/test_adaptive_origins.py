"""What is assumed of a new request, from what others of its origin and its length showed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_sglang.adaptive.domain import DOMAINS, LENGTHS, NUM_ORIGINS, Domain, origin
from dflash_sglang.adaptive.origins import OriginHistory, Places

FIRST = np.array([1.0, 1.8, 2.4])
POOR, GOOD = np.array([1.0, 1.1, 1.2]), np.array([1.0, 2.0, 2.9])
SHORT, LONG = 30, LENGTHS[1] + 1


def place(name, tokens, sampled=0):
    found = origin(Domain(DOMAINS.index(name), ""), tokens)
    return Places.of(np.array([found]), np.array([sampled]))


def showed(history, where, curve, steps):
    for _ in range(steps):
        history.remember(where, curve[None], np.array([1]))


def test_before_anything_was_seen_every_origin_is_taken_for_the_same():
    history = OriginHistory(FIRST)
    everywhere = Places.of(np.arange(NUM_ORIGINS), np.zeros(NUM_ORIGINS, dtype=np.int64))
    assert history.curves(everywhere) == pytest.approx(np.tile(FIRST, (NUM_ORIGINS, 1)))
    assert history.ratios(everywhere) == pytest.approx(np.ones(NUM_ORIGINS))


def test_few_steps_tell_an_origin():
    history, where = OriginHistory(FIRST), place("code", LONG)
    showed(history, where, POOR, steps=16)
    assert history.curves(where)[0] == pytest.approx(POOR, abs=0.1)


def test_an_origin_that_was_not_seen_is_taken_for_others_of_its_length():
    history = OriginHistory(FIRST)
    showed(history, place("code", LONG), POOR, steps=40)
    assert history.curves(place("json", LONG))[0] == pytest.approx(POOR, abs=0.15)
    assert history.curves(place("json", SHORT))[0] == pytest.approx(FIRST)
    assert history.curves(place("json", LONG, sampled=1))[0] == pytest.approx(FIRST)


def test_an_origin_that_was_seen_differs_from_others_of_its_length():
    history = OriginHistory(FIRST)
    showed(history, place("code", SHORT), GOOD, steps=40)
    showed(history, place("prose", SHORT), POOR, steps=40)
    assert history.curves(place("code", SHORT))[0, -1] > 2.7
    assert history.curves(place("prose", SHORT))[0, -1] < 1.4


def test_longer_plans_say_more():
    history = OriginHistory(FIRST)
    where = place("chat", SHORT)
    for curve, steps in ((POOR, 1), (GOOD, 16)) * 10:
        history.remember(where, curve[None], np.array([steps]))
    assert history.curves(where)[0] == pytest.approx((POOR + 16 * GOOD) / 17, abs=0.1)


def test_what_an_origin_showed_is_forgotten_for_what_it_shows():
    history, where = OriginHistory(FIRST), place("chat", SHORT)
    showed(history, where, GOOD, steps=800)
    showed(history, where, POOR, steps=200)
    assert history.curves(where)[0] == pytest.approx(POOR, abs=0.3)


def test_ratios_start_from_those_of_the_length():
    history, seen = OriginHistory(FIRST), place("code", LONG)
    for _ in range(40):
        history.learn(seen, np.array([2.0]), np.array([0.8]))
    assert history.ratios(seen)[0] == pytest.approx(0.4, abs=0.05)
    assert history.ratios(place("math", LONG))[0] == pytest.approx(0.4, abs=0.1)
    assert history.ratios(place("math", SHORT))[0] == 1.0


@given(
    st.lists(
        st.tuples(
            st.integers(0, NUM_ORIGINS - 1), st.integers(0, 1), st.floats(1, 8), st.integers(0, 16)
        ),
        max_size=30,
    )
)
def test_what_is_assumed_lies_among_what_was_seen(plans):
    history = OriginHistory(FIRST)
    seen = [FIRST[-1]]
    for where, sampled, tokens, steps in plans:
        curve = np.array([1.0, 1.0, tokens])
        places = Places.of(np.array([where]), np.array([sampled]))
        history.remember(places, curve[None], np.array([steps]))
        seen += [tokens] * (steps > 0)
    for sampled in (0, 1):
        everywhere = Places.of(np.arange(NUM_ORIGINS), np.full(NUM_ORIGINS, sampled))
        assumed = history.curves(everywhere)[:, -1]
        assert min(seen) - 1e-9 <= assumed.min() and assumed.max() <= max(seen) + 1e-9
