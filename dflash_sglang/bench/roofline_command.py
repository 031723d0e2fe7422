"""The command ``dflash2 roofline``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from dflash_sglang.bench.devices import Device

_DEVICE = "The device"
_MODEL = "The model and its speculation"
_DTYPES = {16.0: "bfloat16", 32.0: "float32"}


def roofline(
    device: Annotated[
        str,
        typer.Option(help="arc-pro-b70, a100, h100, h200, b200 or b300.", rich_help_panel=_DEVICE),
    ] = "arc-pro-b70",
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Measure this machine and use it as the device.",
            rich_help_panel=_DEVICE,
        ),
    ] = False,
    bandwidth: Annotated[
        float | None,
        typer.Option(help="GB/s, instead of the device's.", rich_help_panel=_DEVICE),
    ] = None,
    compute: Annotated[
        float | None,
        typer.Option(help="TFLOP/s, instead of the device's.", rich_help_panel=_DEVICE),
    ] = None,
    weights: Annotated[
        float,
        typer.Option(
            help="GB of weights read in a step: parameters in billions times bits / 8.",
            rich_help_panel=_MODEL,
        ),
    ] = 38.5,
    bits: Annotated[float, typer.Option(help="Bits of a weight.", rich_help_panel=_MODEL)] = 4.0,
    tau: Annotated[
        float,
        typer.Option(
            help="Tokens per verify step, bonus included: the accept length of `dflash2 bench` or "
            "`dflash2 evaluate`.",
            rich_help_panel=_MODEL,
        ),
    ] = 4.15,
    draft_ms: Annotated[float, typer.Option(help="Time of a draft.", rich_help_panel=_MODEL)] = 3.2,
    verify_ms: Annotated[
        float | None,
        typer.Option(help="Time of a verification; else from the device.", rich_help_panel=_MODEL),
    ] = None,
    verify_tokens: Annotated[
        int,
        typer.Option(help="Tokens verified in a step, root included.", rich_help_panel=_MODEL),
    ] = 6,
    acceptance: Annotated[
        str | None,
        typer.Option(
            help="Find the best depth and width. By position: 0.9,0.8; with the chance that the "
            "token is among the best 1, 2, .. candidates: 0.9/0.95,0.8/0.9.",
            rich_help_panel=_MODEL,
        ),
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write the figures to this file.")] = None,
) -> None:
    """Project what speculation can bring, from bandwidth, weights and tau.

    Every figure is a projection and says by which formula from which inputs.
    What speculation does bring on your machine, `dflash2 bench` measures.
    Without options it is the example of docs/roofline.md: a 70B model in 4
    bits on an Arc Pro B70.

    Example: dflash2 roofline --device h200 --weights 16 --bits 16 --tau 4

    Example: dflash2 roofline --measure --bits 32 --weights 1.1 --tau 3
    """
    import msgspec
    from rich.console import Console

    from dflash_sglang.bench import projection
    from dflash_sglang.bench.devices import choose_device
    from dflash_sglang.bench.errors import BenchError
    from dflash_sglang.bench.provenance import describe

    question = projection.Question(weights * 1e9, bits / 8, tau, draft_ms, verify_ms, verify_tokens)
    projection.check(question)
    curve = projection.parse_acceptance(acceptance) if acceptance is not None else None
    console = Console()
    if measure:
        known = _measured_device(bits, console)
    else:
        known = choose_device(device, bandwidth, compute)
    console.print(
        f"{known.name}: {known.bandwidth / 1e9:.4g} GB/s, {known.compute / 1e12:.4g} TFLOP/s "
        f"({describe(known.provenance)})"
    )
    table = projection.project(known, question)
    console.print(projection.show(table, provenance=True))
    if curve is not None:
        windows = projection.windows(known, question, curve)
        console.print(projection.show(windows, provenance=True, title="Best depth up to a width"))
    if json is not None:
        figures = {row.labels[0]: row.figures[0] for row in table.rows}
        try:
            json.write_bytes(msgspec.json.format(msgspec.json.encode(figures)) + b"\n")
        except OSError as error:
            raise BenchError(f"cannot write --json {json}: {error.strerror}.") from error


def _measured_device(bits: float, console: Console) -> Device:
    """This machine, with its cost curve printed."""
    import torch

    from dflash_sglang.bench import cost_curve, machine
    from dflash_sglang.bench.errors import BenchError
    from dflash_sglang.bench.projection import show

    if bits not in _DTYPES:
        raise BenchError(
            f"--measure multiplies weights of 16 or 32 bits: give --bits 16 or --bits 32, "
            f"got {bits:g}."
        )
    curve = cost_curve.measure(getattr(torch, _DTYPES[bits]), machine.command_line())
    console.print(show(curve.table(), title="Cost curve (measured)"))
    return curve.device()
