"""The measured cost curve, and the device that a roofline makes of it."""

import pytest
import torch

from dflash_sglang.bench import cost_curve
from dflash_sglang.bench.cost_curve import CostCurve
from dflash_sglang.bench.provenance import kind_of
from tests.unit.bench_runs import MEASURED

CURVE = CostCurve(
    weights=1_000_000,
    weight_bytes=2,
    step_ms={1: 2.0, 2: 2.1, 4: 2.3},
    base_ms=1.9,
    per_row_ms=0.1,
    measured=MEASURED,
)


def test_one_row_gives_the_bandwidth_and_the_slope_the_compute():
    device = CURVE.device()
    assert device.bandwidth == pytest.approx(1e6 / 2e-3)
    assert device.compute == pytest.approx(2 * 5e5 / 0.1e-3)
    assert device.provenance == MEASURED


def test_the_table_counts_in_steps_of_one_row():
    figures = [row.figures for row in CURVE.table().rows]
    assert [steps.value for _, steps in figures] == pytest.approx([1.0, 1.05, 1.15])
    assert {kind_of(figure.provenance) for pair in figures for figure in pair} == {"measured"}


def test_this_machine_is_measured(monkeypatch):
    monkeypatch.setattr(cost_curve, "_WIDTH", 256)
    monkeypatch.setattr(cost_curve, "_STACK_BYTES", 4 * 256 * 256 * 4)
    monkeypatch.setattr(cost_curve, "ROWS", (1, 512))
    curve = cost_curve.measure(torch.float32, "a command")
    assert curve.weights == 4 * 256 * 256 * 4
    assert curve.measured.command == "a command"
    assert 0 < curve.step_ms[1] < curve.step_ms[512]
    assert curve.device().compute > 0
