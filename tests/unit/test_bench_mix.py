"""Adaptive decoding against fixed widths, cell by cell and over the whole mix."""

import msgspec
import pytest

from dflash_sglang.bench import charts, report, statistics
from dflash_sglang.bench.mix import mix_of
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
