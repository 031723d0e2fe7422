"""What a rehearsal found is kept for the next start, and taken only for what it was."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from dflash_sglang.adaptive.costs import Measured
from dflash_sglang.engine import rehearsal
from dflash_sglang.engine.rehearsal import rehearsal_file, rehearsed_steps, remembered

STEPS = rehearsed_steps(rows=4, most_nodes=8, longest=500)
FOUND = [Measured(step, 1.5 + i) for i, step in enumerate(STEPS)]


@pytest.fixture
def file(tmp_path):
    remembered(tmp_path / "steps.json", STEPS, lambda: FOUND, bool)
    return tmp_path / "steps.json"


def replayed(file, steps=STEPS):
    """What comes of a second start, and how often it rehearsed."""
    again = [Measured(step, 9.0) for step in steps]
    plays = []
    got = remembered(file, steps, lambda: plays.append(1) or again, bool)
    assert got == (again if plays else FOUND)
    return len(plays)


def test_a_second_start_takes_what_the_first_found(file):
    assert replayed(file) == 0


@pytest.mark.parametrize(
    "spoilt",
    [
        "",
        "[]",
        "null",
        json.dumps(FOUND)[:-20],
        json.dumps(FOUND[:-1]),
        json.dumps([[*FOUND[0][:1], -1.0], *FOUND[1:]]),
        json.dumps([[FOUND[0].step, "fast"], *FOUND[1:]]),
        json.dumps([[FOUND[0].step, float("nan")], *FOUND[1:]]),
        json.dumps([[FOUND[0].step[:2], 1.0], *FOUND[1:]]),
    ],
    ids=[
        "empty",
        "no steps",
        "null",
        "cut",
        "a step less",
        "negative",
        "word",
        "nan",
        "no context",
    ],
)
def test_a_spoilt_file_is_played_and_written_anew(file, spoilt):
    file.write_text(spoilt)
    assert replayed(file) == 1
    assert replayed_from(file) == {9.0}


def replayed_from(file):
    return {row.milliseconds for row in remembered(file, STEPS, pytest.fail, bool)}


def test_bytes_that_are_no_text_are_played_anew(file):
    file.write_bytes(b"\xff\xfe[")
    assert replayed(file) == 1


def test_steps_of_fewer_nodes_or_requests_are_not_taken_for_more(file):
    assert replayed(file, rehearsed_steps(rows=4, most_nodes=16, longest=500)) == 1
    file.write_text(json.dumps(FOUND))
    assert replayed(file, rehearsed_steps(rows=16, most_nodes=8, longest=500)) == 1


def test_servers_of_other_windows_keep_files_of_their_own(monkeypatch, tmp_path):
    monkeypatch.setenv("DFLASH2_CACHE_DIR", str(tmp_path))
    server = SimpleNamespace(
        model_path="target", speculative_draft_model_path="drafter", dtype="float32", tp_size=1
    )

    def name(**window):
        options = {"num_nodes": 8, "max_depth": 7, "slots_per_step": 8, "draft_vocabulary": None}
        return rehearsal_file(server, SimpleNamespace(**(options | window)))

    assert name() == name()
    others = ({"num_nodes": 16}, {"max_depth": 3}, {"slots_per_step": 16}, {"draft_vocabulary": 99})
    assert len({name(), *(name(**other) for other in others)}) == 5


def test_a_rehearsal_stays_below_the_ceiling_and_the_request_table():
    assert {step.nodes for step in STEPS} == {1, 4, 8}
    assert {step.requests for step in STEPS} == {1, 4}


@pytest.mark.parametrize(("longest", "contexts"), [(100, []), (500, [128]), (2_000, [128, 1024])])
def test_a_rehearsal_has_long_contexts_where_a_request_may_have_them(longest, contexts):
    """Otherwise the fit cannot tell what a cached token costs from what a request does."""
    steps = rehearsed_steps(rows=4, most_nodes=8, longest=longest)
    assert sorted({step.context // step.requests for step in steps}) == contexts


def test_a_disturbed_turn_spoils_no_time(monkeypatch):
    """Each step is disturbed in all of its turns but one, and one of them in all."""
    clock, turns = SimpleNamespace(now=0.0), {}

    def play(kind, milliseconds):
        def turn(stage, step):
            at = turns[kind, step] = turns.get((kind, step), 0) + 1
            is_quiet = at == 1 + step.nodes % 3 and (kind, step.nodes) != ("verify", 4)
            clock.now += 1e-3 * milliseconds(step) * (1 if is_quiet else 9)

        return turn

    monkeypatch.setattr(rehearsal, "perf_counter", lambda: clock.now)
    monkeypatch.setattr(rehearsal, "_draft", play("draft", lambda step: 5.0))
    monkeypatch.setattr(rehearsal, "_verify", play("verify", lambda step: 10.0 + step.nodes))
    found = {row.step: row.milliseconds for row in rehearsal.rehearse(None, STEPS)}
    for step in STEPS:
        expected = {1: 11.0, 4: 5.0 + 18.0, 8: 5.0 + 18.0}[step.nodes]
        assert found[step] == pytest.approx(expected)


def test_all_ranks_rehearse_if_the_first_one_must(file):
    """Each of them takes part in the steps of the others."""
    again = [Measured(step, 9.0) for step in STEPS]
    assert remembered(file, STEPS, lambda: again, agree=lambda fits: False) == again


def test_no_rank_rehearses_if_the_first_one_need_not(tmp_path):
    assert remembered(tmp_path / "none.json", STEPS, pytest.fail, agree=lambda fits: True) == []
