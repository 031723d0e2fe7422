"""The figures of a round, from answers whose times are known."""

import msgspec
import numpy as np
import pytest

from dflash_sglang.bench import metrics
from dflash_sglang.bench.metrics import METRICS
from dflash_sglang.bench.records import Case, Cell, Load, Round
from tests.unit.bench_runs import answer, plain_and_tree

CASE = Case(workload="builtin", temperature=0.0, load=Load(concurrency=1))


def test_rates_of_a_round():
    round_ = Round(answers=[answer(10, 3, 0.02), answer(10, 3, 0.02)], wall_s=0.6)
    assert metrics.tokens_per_s(round_) == pytest.approx(62 / 0.6)
    assert metrics.tokens_per_s_per_user(round_) == pytest.approx(3 / 0.02)
    assert METRICS["ttft_p50"].of(round_) == pytest.approx(100)


def test_accept_length_counts_the_bonus_and_not_the_prefill():
    round_ = Round(answers=[answer(10, 3, 0.02)], wall_s=1.0)
    assert metrics.accept_length(round_) == pytest.approx(3.0)


def test_without_speculation_there_is_no_accept_length():
    round_ = Round(answers=[answer(30, 1, 0.01, speculative=False)], wall_s=1.0)
    assert metrics.accept_length(round_) is None
    assert metrics.step_ms(round_) == pytest.approx(10.0)


def test_step_time_counts_verify_steps():
    assert metrics.step_ms(Round(answers=[answer(10, 3, 0.02)], wall_s=1.0)) == pytest.approx(20)


def test_tokens_of_a_chunk_share_its_wait():
    answers = [answer(2, 4, 0.02)]
    assert metrics.token_gaps_ms(answers) == pytest.approx([5.0] * 8)
    assert metrics.chunk_gaps_ms(answers) == pytest.approx([20.0, 20.0])


def test_latency_of_single_token_answers_is_unknown():
    round_ = Round(answers=[answer(0, 1, 0.01, speculative=False)], wall_s=1.0)
    assert METRICS["itl_p95"].of(round_) is None
    assert metrics.tokens_per_s_per_user(round_) is None


def test_acceptance_by_position_is_the_share_that_reached_it():
    # 4 steps accepted nothing, 3 one token, 2 two, 1 three.
    shares = metrics.accept_by_position(np.array([4, 3, 2, 1]))
    assert shares == pytest.approx([0.6, 0.3, 0.1])


def test_by_position_and_histogram_agree_on_the_accept_length():
    histogram = np.array([5, 1, 7, 2])
    mean = (histogram * np.arange(4)).sum() / histogram.sum()
    assert metrics.accept_by_position(histogram).sum() == pytest.approx(mean)


def test_histograms_of_different_lengths_add_up():
    rounds = [Round(answers=[answer(2, 2, 0.1), answer(3, 4, 0.1)], wall_s=1.0)]
    assert metrics.accept_histogram(rounds).tolist() == [0, 2, 0, 3]


def test_unreported_histogram_is_empty():
    rounds = [Round(answers=[answer(2, 1, 0.1, speculative=False)], wall_s=1.0)]
    assert metrics.accept_histogram(rounds).size == 0
    assert metrics.accept_by_position(metrics.accept_histogram(rounds)).size == 0


def test_equal_answers_are_counted_round_by_round():
    mine = [answer(2, 1, 0.1), answer(2, 1, 0.1, text="other")]
    theirs = [answer(2, 1, 0.1), answer(2, 1, 0.1)]
    cells = [
        Cell(mode=mode, case=CASE, rounds=[Round(answers=answers, wall_s=1.0)])
        for mode, answers in (("tree", mine), ("plain", theirs))
    ]
    assert metrics.equal_answers(*cells) == (1, 2)


def test_a_metric_that_one_round_lacks_has_no_samples():
    with_energy = Round(answers=[answer(2, 1, 0.1)], wall_s=1.0, energy_j=6.0)
    without = Round(answers=[answer(2, 1, 0.1)], wall_s=1.0)
    cell = Cell(mode="tree", case=CASE, rounds=[with_energy, without])
    assert metrics.samples(cell, METRICS["joules_per_token"]) == []
    alone = Cell(mode="tree", case=CASE, rounds=[with_energy])
    assert metrics.samples(alone, METRICS["joules_per_token"]) == [2.0]


def test_a_metric_of_zero_is_kept():
    idle = Round(answers=[answer(2, 1, 0.1)], wall_s=1.0, energy_j=0.0)
    cell = Cell(mode="tree", case=CASE, rounds=[idle])
    assert metrics.samples(cell, METRICS["joules_per_token"]) == [0.0]


def test_cases_sort_by_users_and_then_by_rate():
    loads = [Load(rate=2.0), Load(concurrency=4), Load(rate=0.5), Load(concurrency=1)]
    run = plain_and_tree()
    cells = [
        Cell(mode="plain", case=Case(workload="w", temperature=0.0, load=load), rounds=[])
        for load in loads
    ]
    cases = msgspec.structs.replace(run, cells=cells).cases
    assert [str(case.load) for case in cases] == [
        "concurrency 1",
        "concurrency 4",
        "0.5 requests/s",
        "2 requests/s",
    ]


def test_speedup_of_a_made_up_run_is_what_was_put_in():
    from dflash_sglang.bench.figures import category_speedup, speedup

    run = plain_and_tree(tree_speed=2.0)
    cell = run.cell("tree", run.cases[0])
    figure = speedup(run, cell, metrics.tokens_per_s_per_user)
    assert figure.value == pytest.approx(2.0)
    assert category_speedup(run, cell, "chat").value == pytest.approx(
        speedup(run, cell).value, rel=1e-6
    )
    assert speedup(run, run.cell("plain", run.cases[0])) is None
