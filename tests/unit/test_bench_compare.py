"""What changed between two runs, and whether beyond noise."""

import msgspec
import pytest

from dflash_sglang.bench.compare import COMPARED, conditions, differences
from dflash_sglang.bench.errors import BenchError
from tests.unit.bench_runs import plain_and_tree


def verdicts(before, after, metric="tokens_per_s", mode="tree") -> set[str]:
    found = differences(before, after)
    return {d.verdict for d in found if (d.mode, d.metric.name) == (mode, metric)}


def test_a_run_against_itself_is_within_noise():
    run = plain_and_tree()
    assert {difference.verdict for difference in differences(run, run)} == {"within noise"}


def test_every_metric_of_every_cell_is_compared():
    run = plain_and_tree()
    found = differences(run, run)
    # Plain has no accept length.
    assert len(found) == len(run.cases) * (2 * len(COMPARED) - 1)


def test_a_faster_tree_is_better_and_plain_is_not():
    before, after = plain_and_tree(tree_speed=2.0), plain_and_tree(tree_speed=4.0)
    assert verdicts(before, after) == {"better"}
    assert verdicts(before, after, mode="plain") == {"within noise"}
    assert verdicts(after, before) == {"worse"}


def test_lower_latency_is_better():
    before, after = plain_and_tree(tree_speed=2.0), plain_and_tree(tree_speed=4.0)
    assert verdicts(before, after, "itl_p95") == {"better"}


def test_a_single_round_says_nothing_about_noise():
    single = plain_and_tree(plain_step_s=(0.01,))
    assert verdicts(single, single) == {"unknown"}


def test_changed_conditions_are_named():
    before = plain_and_tree()
    measured = msgspec.structs.replace(
        before.measured, machine="another machine", versions={"sglang": "0.5.24"}
    )
    after = msgspec.structs.replace(
        before, measured=measured, setup=msgspec.structs.replace(before.setup, max_tokens=5)
    )
    servers = {"plain": "python -m sglang.launch_server --port 5 --dtype float32"}
    after = msgspec.structs.replace(
        after, setup=msgspec.structs.replace(after.setup, modes=servers)
    )
    lines = conditions(before, after)
    assert (
        "mode plain: python -m sglang.launch_server -> "
        "python -m sglang.launch_server --dtype float32"
    ) in lines
    assert "mode tree: only in the first run" in lines
    assert "machine: a machine, 2 cores -> another machine" in lines
    assert "sglang: 0.5.23 -> 0.5.24" in lines
    assert "max_tokens: 31 -> 5" in lines
    assert conditions(before, before) == []


def test_runs_without_common_ground_are_refused():
    before = plain_and_tree()
    after = msgspec.structs.replace(
        before,
        cells=[
            msgspec.structs.replace(cell, case=msgspec.structs.replace(cell.case, workload="gsm8k"))
            for cell in before.cells
        ],
    )
    with pytest.raises(BenchError, match="no mode in common"):
        differences(before, after)
