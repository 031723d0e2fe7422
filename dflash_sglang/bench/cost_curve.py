"""This machine's cost curve: the time of a stack of matrix products over the tokens of a step.

Decoding is matrix products whose weights are read from memory once a step, so their time over the
number of rows is what a verification costs; attention and everything small is left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from dflash_sglang.bench.devices import Device
from dflash_sglang.bench.machine import measured_now
from dflash_sglang.bench.provenance import Figure, Measured
from dflash_sglang.bench.tables import Row, Table

ROWS = (1, 2, 4, 8, 16, 32, 64)

_WIDTH = 2048
_STACK_BYTES = 512 * 2**20  # far beyond any cache, so that every pass reads memory
_REPEATS = 5


class CostCurve(NamedTuple):
    """Measured times and the line through them."""

    weights: int  # bytes read in a step
    weight_bytes: int  # of one weight
    step_ms: dict[int, float]  # rows -> time, the median of the repeats
    base_ms: float  # of the line base + per_row n
    per_row_ms: float
    measured: Measured

    def device(self) -> Device:
        """What a roofline needs: bandwidth from one row, compute from the line's slope."""
        parameters = self.weights / self.weight_bytes
        return Device(
            "this machine",
            bandwidth=self.weights / self.step_ms[1] * 1e3,
            compute=2 * parameters / self.per_row_ms * 1e3,
            provenance=self.measured,
        )

    def table(self) -> Table:
        """The times, and each in steps of one row."""
        rows = [
            Row(
                (str(n),),
                (
                    Figure(value=ms, unit="ms", provenance=self.measured),
                    Figure(value=ms / self.step_ms[1], unit="x", provenance=self.measured),
                ),
            )
            for n, ms in self.step_ms.items()
        ]
        return Table(("tokens in a step",), ("step", "plain steps"), rows)


def measure(dtype: torch.dtype, command: str) -> CostCurve:
    """Measure the default device of this machine.

    Args:
        dtype: of the weights.
        command: for the provenance.
    """
    device = _device()
    stack = _stack(dtype, device)
    product = _product(device)
    step_ms = {n: _median_ms(stack, n, product) for n in ROWS}
    per_row, base = np.polyfit(list(step_ms), list(step_ms.values()), 1)
    return CostCurve(
        weights=sum(weight.nbytes for weight in stack),
        weight_bytes=dtype.itemsize,
        step_ms=step_ms,
        base_ms=float(base),
        per_row_ms=float(per_row),
        measured=measured_now(command),
    )


def _device() -> torch.device:
    # A build for an accelerator names it even on a machine that has none.
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found or torch.device("cpu")


def _stack(dtype: torch.dtype, device: torch.device) -> list[torch.Tensor]:
    """Square weights, [_WIDTH, _WIDTH] each; scaled so that products keep their size."""
    count = _STACK_BYTES // (_WIDTH * _WIDTH * dtype.itemsize)
    scale = _WIDTH**-0.5
    return [torch.randn(_WIDTH, _WIDTH, device=device).mul_(scale).to(dtype) for _ in range(count)]


def _product(device: torch.device) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    if device.type != "cpu":
        return torch.nn.functional.linear
    from dflash_sglang.kernels import library
    from dflash_sglang.kernels.linear import linear

    library.load()
    return linear  # the product that a CPU server uses


def _median_ms(
    stack: list[torch.Tensor],
    rows: int,
    product: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> float:
    x = torch.randn(rows, _WIDTH, device=stack[0].device).to(stack[0].dtype)
    times = []
    for _ in range(_REPEATS + 1):
        start = time.perf_counter()
        y = x  # [rows, _WIDTH]
        for weight in stack:
            y = product(y, weight)
        if y.device.type != "cpu":
            torch.accelerator.synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    return float(np.median(times[1:]))  # the first one warmed up
