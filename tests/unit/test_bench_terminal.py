"""What a run found fits a terminal of eighty columns, and says where it is from."""

import io
import re

import msgspec
import pytest
from rich.console import Console

from dflash_sglang.bench import terminal
from dflash_sglang.bench.records import Run
from tests.unit.bench_runs import plain_and_tree


def shown(run: Run) -> str:
    console = Console(width=80, file=io.StringIO())
    for part in terminal.summary(run):
        console.print(part)
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def run() -> Run:
    """Plain decoding, and behind the first token a chain 1.5 times, a tree twice as fast."""
    made = plain_and_tree()
    chains = [
        msgspec.structs.replace(cell, mode="native")
        for cell in plain_and_tree(tree_speed=1.5).cells
        if cell.mode == "tree"
    ]
    modes = {**made.setup.modes, "native": "http://127.0.0.1:2"}
    return msgspec.structs.replace(
        made, cells=made.cells + chains, setup=msgspec.structs.replace(made.setup, modes=modes)
    )


def test_nothing_is_cut_off(run):
    text = shown(run)
    assert "…" not in text
    for word in ("plain", "native", "tree", "1 user", "4 users", "output", "speedup", "accept"):
        assert word in text


def test_the_gain_over_the_native_chain_stands_beside_that_over_plain(run):
    line = next(line for line in shown(run).splitlines() if line.split()[:1] == ["tree"])
    _output, speedup, over_native, *_ = re.findall(r"([\d.]+)(?: ± [\d.]+)?", line)
    assert float(speedup) == pytest.approx(0.43 / 0.265, abs=0.02)
    assert float(over_native) == pytest.approx(0.32 / 0.265, abs=0.02)


def test_a_run_without_the_native_chain_has_no_column_for_it():
    assert "over" not in shown(plain_and_tree())


def test_origin_and_refusals_are_told():
    text = shown(plain_and_tree())
    assert "measured 2026-01-02 on a machine" in text
    assert "native was not measured: DFLASH is not supported" in text
