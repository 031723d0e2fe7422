"""Intervals cover the truth as often as they say, and drift of the machine cancels."""

import numpy as np
import pytest

from dflash_sglang.bench.statistics import change, mean, median, paired_ratio


def test_mean_of_three_has_students_interval():
    estimate = mean([9.0, 10.0, 11.0])
    assert estimate.value == 10.0
    # t(0.975, 2) = 4.303; standard error 1 / sqrt(3)
    assert estimate.interval == pytest.approx((10 - 4.303 / 3**0.5, 10 + 4.303 / 3**0.5), abs=1e-3)


def test_one_repetition_has_no_interval():
    assert mean([3.0]).interval is None
    assert change([3.0], [4.0]).beyond_noise is None


def test_no_repetition_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        mean([])


def test_drift_cancels_from_a_paired_ratio():
    baselines = [100.0, 80.0, 40.0]
    estimate = paired_ratio([2.0 * value for value in baselines], baselines)
    assert estimate.value == pytest.approx(2.0)
    assert estimate.interval == pytest.approx((2.0, 2.0))
    assert mean(baselines).interval[0] < 0 < 2 * min(baselines)


def test_intervals_cover_the_mean_as_often_as_they_say():
    rng = np.random.default_rng(0)
    covered = sum(
        low <= 5.0 <= high
        for low, high in (mean(rng.normal(5.0, 1.0, 4)).interval for _ in range(2000))
    )
    assert 0.93 < covered / 2000 < 0.97


def test_changes_without_a_change_are_rarely_called_one():
    rng = np.random.default_rng(1)
    called = sum(
        change(np.exp(rng.normal(0, 0.1, 3)), np.exp(rng.normal(0, 0.1, 5))).beyond_noise
        for _ in range(2000)
    )
    assert called / 2000 < 0.07


def test_a_change_beyond_noise_is_called_one():
    found = change([100, 101, 99], [110, 111, 109])
    assert found.beyond_noise
    assert found.ratio == pytest.approx(1.1, rel=1e-3)
    assert found.interval[0] < 1.1 < found.interval[1]


def test_equal_repetitions_without_spread_are_judged_by_their_ratio():
    assert change([2.0, 2.0], [2.0, 2.0]).beyond_noise is False
    assert change([2.0, 2.0], [3.0, 3.0]).beyond_noise is True


def test_one_disturbed_round_hardly_moves_a_median():
    calm = [1.0, 1.01, 1.02, 1.03, 1.04, 1.05]
    disturbed = [0.25, *calm[1:]]
    assert median(calm).value == pytest.approx(median(disturbed).value)
    assert median(calm).interval == (1.0, 1.05)


def test_a_median_has_an_interval_from_six_repetitions_on():
    assert [median([1.0] * count).interval is None for count in (1, 5, 6)] == [True, True, False]
    with pytest.raises(ValueError, match="at least one"):
        median([])


@pytest.mark.parametrize("repetitions", [6, 9, 12])
def test_the_intervals_of_medians_cover_them_whatever_the_distribution(repetitions):
    rng = np.random.default_rng(2)
    covered = sum(
        low <= 0 <= high
        for low, high in (median(rng.standard_cauchy(repetitions)).interval for _ in range(2000))
    )
    assert covered / 2000 > 0.94
