"""Adaptive decoding against fixed widths, cell by cell and over the whole mix."""

import msgspec
import numpy as np
import pytest

from dflash_sglang.bench import charts, mix_charts, report, statistics
from dflash_sglang.bench.mix import Situation, mix_of, situation_of
from dflash_sglang.bench.mix_tables import situations_table
from dflash_sglang.bench.records import Case, Cell, Load
from tests.unit.bench_runs import plain_and_tree


def renamed(run, **names):
    """The run with other names for its modes."""
    cells = [msgspec.structs.replace(c, mode=names.get(c.mode, c.mode)) for c in run.cells]
    modes = {names.get(mode, mode): text for mode, text in run.setup.modes.items()}
    setup = msgspec.structs.replace(run.setup, modes=modes)
    return msgspec.structs.replace(run, cells=cells, setup=setup)


@pytest.fixture(scope="module")
def run():
    """Plain decoding, a fixed tree twice and adaptive thrice as fast as it."""
    fixed = renamed(plain_and_tree(tree_speed=2.0), tree="tree8")
    ours = renamed(plain_and_tree(tree_speed=3.0), tree="adaptive")
    cells = [*fixed.cells, *(cell for cell in ours.cells if cell.mode == "adaptive")]
    modes = {**fixed.setup.modes, **ours.setup.modes}
    setup = msgspec.structs.replace(fixed.setup, modes=modes)
    return msgspec.structs.replace(fixed, cells=cells, setup=setup)


def test_the_rate_of_a_whole_of_equal_parts_is_the_harmonic_mean():
    assert statistics.harmonic_mean([[1.0, 2.0], [3.0, 2.0]]) == pytest.approx([1.5, 2.0])


def test_adaptive_is_held_against_the_best_fixed_width_and_plain_decoding(run):
    mix = mix_of(run)
    assert len(mix.cells) == 4
    for found in (*mix.cells.values(), mix.whole):
        assert found.best_fixed == "tree8"
        assert 1.2 < found.over_best_fixed.value < 1.5 < found.over_plain.value < 3


def test_every_mode_is_held_against_plain_decoding(run):
    for found in (*mix_of(run).cells.values(), mix_of(run).whole):
        assert found.speedups["plain"].value == pytest.approx(1)
        assert 1 < found.speedups["tree8"].value < 2
        assert found.speedups["adaptive"] == found.over_plain


def test_cells_of_one_load_and_context_are_taken_together(run):
    long = [
        msgspec.structs.replace(
            cell,
            case=msgspec.structs.replace(cell.case, workload="builtin:code@800"),
        )
        for cell in run.cells
    ]
    short = [
        msgspec.structs.replace(
            cell, case=msgspec.structs.replace(cell.case, workload="builtin:code")
        )
        for cell in run.cells
    ]
    both = msgspec.structs.replace(run, cells=[*short, *long])
    situations = mix_of(both).situations
    loads = {case.load for case in run.cases}
    assert list(situations) == [
        Situation(text, load)
        for text in ("", "@800")
        for load in sorted(loads, key=lambda load: load.rank)
    ]
    table = situations_table(both, mix_of(both))
    assert len(table.rows) == len(situations) + 1
    for situation, found in situations.items():
        alike = [case for case in both.cases if situation_of(case) == situation]
        assert len(alike) > 1
        rates = [mix_of(both).cells[case].throughput["tree8"].value for case in alike]
        assert min(rates) <= found.throughput["tree8"].value <= max(rates)


def mix_with(rates):
    """Of one case: mode -> output tokens/s in each round."""
    case = Case(workload="builtin", temperature=0.0, load=Load(concurrency=1))
    base = plain_and_tree()
    (round_, *_), *_ = (cell.rounds for cell in base.cells)
    tokens = sum(answer.tokens for answer in round_.answers)
    cells = [
        Cell(
            mode=mode,
            case=case,
            rounds=[msgspec.structs.replace(round_, wall_s=tokens / rate) for rate in each],
        )
        for mode, each in rates.items()
    ]
    modes = dict.fromkeys(rates, "http://x")
    setup = msgspec.structs.replace(base.setup, modes=modes)
    return mix_of(msgspec.structs.replace(base, cells=cells, setup=setup))


def test_noise_does_not_choose_the_fixed_width_that_a_round_is_held_against():
    """Three fixed widths that are alike: the best of each round is ahead by noise alone."""
    rng = np.random.default_rng(0)
    modes = ("tree4", "tree8", "tree16", "adaptive")
    found = [
        mix_with({mode: np.exp(rng.normal(0, 0.1, 6)) for mode in modes}).whole.over_best_fixed
        for _ in range(100)
    ]
    assert abs(np.log([figure.value for figure in found]).mean()) < 0.02


def test_a_disturbed_round_is_no_part_of_the_comparison():
    calm = [100.0] * 6
    found = mix_with({"plain": calm, "tree8": calm, "adaptive": [25.0, *calm[1:]]}).whole
    assert found.over_best_fixed.value == found.over_plain.value == pytest.approx(1)


def test_cells_that_come_up_to_the_others_are_counted():
    even = [100.0 + at for at in range(6)]
    worse = [0.9 * rate for rate in even]
    for adaptive, expected in ((even, (1, 1, 0)), (worse, (0, 1, 1))):
        reach = mix_with({"plain": worse, "tree8": even, "adaptive": adaptive}).reach(0.98)
        assert (reach.best_fixed, reach.plain, reach.surely_short) == expected


def test_what_noise_would_leave_of_equals_is_what_it_leaves():
    """Two modes that are equally fast, many times: predicted and real shares are the same."""
    rng = np.random.default_rng(1)
    real, predicted = [], []
    for _ in range(300):
        ratios = np.exp(rng.normal(0, 0.1, 6))
        real.append(statistics.median(ratios).value >= 0.98)
        predicted.append(statistics.chance_of_reaching(0.98, ratios))
    assert 0.6 < np.mean(real) < 0.75
    assert abs(np.mean(predicted) - np.mean(real)) < 0.06


def test_without_noise_all_equals_come_up_and_few_rounds_say_nothing():
    assert statistics.chance_of_reaching(0.98, [0.8] * 6) == 1.0
    assert statistics.chance_of_reaching(0.98, [1.0] * 5) is None
    even = [100.0 + at for at in range(6)]
    reach = mix_with({"plain": even, "tree8": even, "adaptive": even}).reach(0.98)
    assert (reach.best_fixed_of_equals, reach.plain_of_equals) == (1.0, 1.0)
    short = mix_with({"tree8": even[:2], "adaptive": even[:2]}).reach(0.98)
    assert (short.best_fixed_of_equals, short.plain_of_equals) == (None, None)


def without(run, gone):
    """The run without some of its cells."""
    return msgspec.structs.replace(run, cells=[c for c in run.cells if not gone(c)])


def drawn(run):
    """Of the picture of a run: panel title -> its numbers, [rows, loads], and its frames."""
    found = {}
    for axes in mix_charts.over_plain(run).axes:
        (image,) = axes.images
        frames = [(round(p.get_y() + 0.44), round(p.get_x() + 0.46)) for p in axes.patches]
        found[axes.get_title().split("\n")[0]] = (2 ** image.get_array(), frames)
    return found


def test_the_picture_has_a_panel_a_mode_and_a_square_a_case(run):
    mix, panels = mix_of(run), drawn(run)
    assert list(panels) == ["tree8", "adaptive"]
    for mode, (ratios, _) in panels.items():
        expected = [cell.speedups[mode].value for cell in mix.cells.values()]
        assert ratios.reshape(-1).tolist() == pytest.approx(expected)


def test_the_picture_frames_the_fastest_mode_unless_plain_decoding_is(run):
    every = [(i, j) for i in range(2) for j in range(2)]
    assert [frames for _, frames in drawn(run).values()] == [[], every]
    slower = renamed(plain_and_tree(tree_speed=0.5), tree="adaptive")
    ours = [c for c in slower.cells if c.mode == "adaptive"]
    rest = without(run, lambda c: c.mode == "adaptive").cells
    panels = drawn(msgspec.structs.replace(run, cells=[*rest, *ours]))
    assert [frames for _, frames in panels.values()] == [every, []]
    slow = [msgspec.structs.replace(c, mode="tree8") for c in ours]
    plain = [c for c in rest if c.mode == "plain"]
    panels = drawn(msgspec.structs.replace(run, cells=[*plain, *slow, *ours]))
    assert [frames for _, frames in panels.values()] == [[], []]


def test_a_case_that_a_mode_lacks_is_an_empty_square_and_no_plain_decoding_no_picture(run):
    def gap(cell):
        return cell.case.temperature == 1 and cell.case.load.concurrency == 4

    ratios, _ = drawn(without(run, gap))["adaptive"]
    assert np.isnan(ratios.filled(np.nan)[1, 1]) and np.isfinite(ratios[0]).all()
    assert mix_charts.over_plain(without(run, lambda c: c.mode == "plain")) is None
    assert mix_charts.over_plain(plain_and_tree()) is None


def test_the_picture_of_a_mix_is_in_its_report(run, tmp_path):
    report.write_report(run, tmp_path)
    assert (tmp_path / "mix.png").stat().st_size > 5_000
    assert "Where which width pays</h2>\n<figure>" in (tmp_path / "report.html").read_text()


def test_without_a_fixed_width_there_is_no_mix():
    assert mix_of(plain_and_tree()) is None
    assert mix_of(renamed(plain_and_tree(), tree="adaptive")) is None


def test_a_workload_that_was_not_asked_at_a_temperature_leaves_its_panel_out(run, tmp_path):
    asked = [
        cell
        if cell.case.temperature == 0
        else msgspec.structs.replace(
            cell, case=msgspec.structs.replace(cell.case, workload="builtin:prose")
        )
        for cell in run.cells
    ]
    gaps = msgspec.structs.replace(run, cells=asked)
    assert charts.draw_all(gaps, tmp_path)
    assert "the whole mix" in report.as_markdown(gaps)
