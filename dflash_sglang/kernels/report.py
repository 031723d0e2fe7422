"""What ``dflash2 kernels`` tells: which operator runs where, is it right, how fast it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from dflash_sglang.kernels import build, cuda, device, examples, library, xpu

TOLERANCE = 1e-5  # of float32 results; integers must be equal


class Backend(NamedTuple):
    """Where operators can be run, or why not."""

    name: str
    run: Callable[..., Any] | None  # (operator's name, *arguments)
    operators: frozenset[str]
    reason: str  # why there is no ``run``
    place: str = "cpu"  # where PyTorch keeps the tensors


class Outcome(NamedTuple):
    """An operator that was run on a backend."""

    operator: str
    backend: str
    error: float | None  # greatest relative difference from the reference; None for integers
    is_right: bool


def backends() -> list[Backend]:
    """Every backend, opened if this machine has it; compiles what was not compiled before."""
    return [_cpu(), _cuda(), _xpu(), _sycl_on_cpu()]


def print_list() -> None:
    """Print operator x backend."""
    found = backends()
    table = Table("operator", *(backend.name for backend in found))
    for name in library.operator_names():
        cells = (_cell(backend, name) for backend in found)
        table.add_row(name, *cells)
    console = Console()
    console.print(table)
    for backend in found:
        if backend.run is None:
            console.print(f"{backend.name}: {backend.reason}", highlight=False)


def print_check(sizes: examples.Sizes) -> bool:
    """Run every operator of a decode step on every backend; True if all equal the references."""
    table = Table("operator", "backend", "greatest error", "result")
    outcomes = [outcome for backend in backends() for outcome in check(backend, sizes)]
    for outcome in outcomes:
        error = "exact" if outcome.error is None else f"{outcome.error:.1e}"
        result = "equals the reference" if outcome.is_right else "[red]DIFFERS[/red]"
        table.add_row(outcome.operator, outcome.backend, error, result)
    Console().print(table)
    return all(outcome.is_right for outcome in outcomes)


def print_bench(sizes: examples.Sizes, repeats: int) -> None:
    """Time every operator of a decode step against its PyTorch reference on the same device."""
    console = Console()
    console.print(f"{sizes}, {torch.get_num_threads()} CPU threads", highlight=False)
    table = Table("operator", "backend", "kernel", "reference", "ratio")
    for backend in backends():
        if backend.run is None or backend.name == "sycl on cpu":  # copies would be timed
            continue
        for name, call in examples.calls(sizes, device=backend.place).items():
            if name not in backend.operators:
                continue
            kernel = _seconds(partial(backend.run, name, *call), backend.place, repeats)
            reference = partial(library.reference(name), *call)
            slow = _seconds(reference, backend.place, repeats)
            ratio = f"{slow / kernel:.1f}"
            table.add_row(name, backend.name, _micro(kernel), _micro(slow), ratio)
    console.print(table)


def check(backend: Backend, sizes: examples.Sizes) -> list[Outcome]:
    """Compare a backend's results with the references' on the CPU."""
    outcomes: list[Outcome] = []
    if backend.run is None:
        return outcomes
    placed = examples.calls(sizes, device=backend.place)
    for name, call in examples.calls(sizes).items():
        if name not in backend.operators:
            continue
        actual = _tensors(backend.run(name, *placed[name]))
        expected = _tensors(library.reference(name)(*call))
        error = max(_error(a.cpu(), b) for a, b in zip(actual, expected, strict=True))
        is_exact = not any(b.is_floating_point() for b in expected)
        outcomes.append(
            Outcome(name, backend.name, None if is_exact else error, error <= TOLERANCE)
        )
    return outcomes


def _cpu() -> Backend:
    names = frozenset(library.operator_names())
    try:
        mode = library.load()
    except build.KernelBuildError as error:
        return Backend("cpu", None, names, str(error))
    if mode == "reference":
        return Backend("cpu", None, names, f"{build.MODE_VARIABLE}=reference asks for PyTorch")
    return Backend("cpu", lambda name, *call: library.operator(name)(*call), names, "")


def _cuda() -> Backend:
    if not torch.cuda.is_available():
        return _missing("cuda", "this machine has no CUDA device")
    return _opened("cuda", cuda.current_device)


def _xpu() -> Backend:
    if not torch.xpu.is_available():
        return _missing("xpu", "this machine has no XPU device")
    return _opened("xpu", xpu.current_device)


def _sycl_on_cpu() -> Backend:
    return _opened("sycl on cpu", xpu.StagedSyclDevice)


def _opened(name: str, open_device: Callable[[], device.Device]) -> Backend:
    try:
        opened = open_device()
    except (build.KernelError, OSError) as error:
        return _missing(name, str(error))
    place = name if name in ("cuda", "xpu") else "cpu"
    return Backend(
        name,
        lambda operator, *call: device.OPERATORS[operator](opened, *call),
        frozenset(device.OPERATORS),
        "",
        place,
    )


def _missing(name: str, reason: str) -> Backend:
    return Backend(name, None, frozenset(device.OPERATORS), reason)


def _cell(backend: Backend, operator: str) -> str:
    if operator not in backend.operators:
        return "-"
    return "not here" if backend.run is None else "built"


def _tensors(result: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else tuple(result)


def _error(actual: Tensor, expected: Tensor) -> float:
    """Greatest difference in units of the expected magnitude, at least 1; wrong integers: inf."""
    if not expected.is_floating_point():
        return 0.0 if torch.equal(actual, expected) else float("inf")
    same = actual == expected  # infinities
    difference = (actual - expected).abs() / expected.abs().clamp(min=1.0)
    return float(difference.masked_fill(same, 0.0).max())


def _seconds(action: Callable[[], object], place: str, repeats: int) -> float:
    """The fastest of five series."""
    action()
    best = float("inf")
    for _ in range(5):
        _wait(place)
        start = time.perf_counter()
        for _ in range(repeats):
            action()
        _wait(place)
        best = min(best, (time.perf_counter() - start) / repeats)
    return best


def _wait(place: str) -> None:
    if place != "cpu":
        torch.get_device_module(place).synchronize()


def _micro(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us"
