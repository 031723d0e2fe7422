"""Shares, rates and regret of the widths that a server chose, from its counters."""

import msgspec
import pytest

from dflash_sglang.bench import widths
from dflash_sglang.bench.counters import parse_counters
from dflash_sglang.bench.records import WidthUse

# 10 plain steps and 30 of 8 nodes: 100 tokens were expected of them in 500 ms, 90 came in 600 ms.
USE = WidthUse(
    steps={1: 10, 8: 30},
    promised_tokens=100.0,
    promised_ms=500.0,
    tokens=90.0,
    ms=600.0,
    fixed_tokens={1: 40.0, 8: 110.0},
    fixed_ms={1: 400.0, 8: 440.0},
    choosing_ms=9.0,
)
NOTHING = WidthUse(
    steps={}, promised_tokens=0, promised_ms=0, tokens=0, ms=0, fixed_tokens={}, fixed_ms={},
    choosing_ms=0,
)  # fmt: skip

PAGE = """
# TYPE dflash2_steps_total counter
dflash2_steps_total{nodes="1",tp_rank="0"} 10.0
dflash2_steps_total{nodes="8",tp_rank="0"} 30.0
# TYPE dflash2_promised_tokens_total counter
dflash2_promised_tokens_total{tp_rank="0"} 100.0
# TYPE dflash2_promised_milliseconds_total counter
dflash2_promised_milliseconds_total{tp_rank="0"} 500.0
# TYPE dflash2_tokens_total counter
dflash2_tokens_total{tp_rank="0"} 90.0
# TYPE dflash2_milliseconds_total counter
dflash2_milliseconds_total{tp_rank="0"} 600.0
# TYPE dflash2_fixed_tokens_total counter
dflash2_fixed_tokens_total{nodes="1",tp_rank="0"} 40.0
dflash2_fixed_tokens_total{nodes="8",tp_rank="0"} 110.0
# TYPE dflash2_fixed_milliseconds_total counter
dflash2_fixed_milliseconds_total{nodes="1",tp_rank="0"} 400.0
dflash2_fixed_milliseconds_total{nodes="8",tp_rank="0"} 440.0
# TYPE dflash2_choosing_milliseconds_total counter
dflash2_choosing_milliseconds_total{tp_rank="0"} 9.0
# TYPE sglang:num_used_tokens gauge
sglang:num_used_tokens{tp_rank="0"} 7.0
"""


def read(page: str) -> WidthUse | None:
    return widths.width_use(parse_counters(page))


def test_a_page_is_read_and_a_strange_one_is_none():
    assert read(PAGE) == USE
    assert read("sglang:num_used_tokens 7.0\n") is None
    assert read("<html>not found") is None
    assert read('dflash2_steps_total{nodes="8"} 3\n') is None  # a server of one width


def test_shares_and_mean_nodes_count_steps():
    assert widths.shares(USE) == {1: 0.25, 8: 0.75}
    assert widths.mean_nodes(USE) == 0.25 * 1 + 0.75 * 8
    assert widths.describe_shares(USE) == "1: 25 %, 8: 75 %"


def test_rates_are_tokens_a_second():
    assert widths.promised_per_s(USE) == 200.0
    assert widths.observed_per_s(USE) == 150.0
    assert widths.best_fixed(USE) == (8, 250.0)


@pytest.mark.parametrize(("promised", "percent"), [(100.0, 20.0), (125.0, 0.0), (150.0, -20.0)])
def test_regret_is_the_share_of_the_best_fixed_width_that_was_not_expected(promised, percent):
    use = WidthUse(**{**{f: getattr(USE, f) for f in USE.__struct_fields__},
                      "promised_tokens": promised})  # fmt: skip
    assert widths.regret(use) == pytest.approx(percent)


def test_without_steps_there_is_nothing_to_tell():
    assert widths.shares(NOTHING) == {}
    for figure in (widths.mean_nodes, widths.promised_per_s, widths.observed_per_s,
                   widths.best_fixed, widths.regret, widths.choosing):  # fmt: skip
        assert figure(NOTHING) is None
    assert widths.describe_shares(NOTHING) == ""


def test_choosings_share_is_of_the_decoding_time_and_unknown_where_one_round_did_not_tell():
    assert widths.choosing(USE) == 1.5
    assert widths.choosing(widths.together([USE, USE])) == 1.5
    untold = msgspec.structs.replace(USE, choosing_ms=None)
    assert widths.choosing(untold) is None
    assert widths.choosing(widths.together([USE, untold])) is None


def test_a_round_is_the_difference_of_two_readings():
    twice = widths.together([USE, USE])
    assert twice.steps == {1: 20, 8: 60} and twice.fixed_ms == {1: 800.0, 8: 880.0}
    assert widths.between(USE, twice) == USE
    assert widths.between(NOTHING, USE) == USE
    assert widths.regret(twice) == pytest.approx(widths.regret(USE))


def test_a_round_without_steps_or_without_a_reading_is_none():
    assert widths.between(USE, USE) is None
    assert widths.between(None, USE) is None and widths.between(USE, None) is None


def test_ranks_that_count_the_same_steps_do_not_change_shares_or_rates():
    other = "\n".join(line for line in PAGE.splitlines() if "tp_rank" in line)
    both = read(PAGE + other.replace('tp_rank="0"', 'tp_rank="1"') + "\n")
    assert both is not None and both.steps == {1: 20, 8: 60}
    assert widths.shares(both) == widths.shares(USE)
    assert widths.observed_per_s(both) == widths.observed_per_s(USE)
