"""``dflash2 roofline``: the formulas applied to one model on one device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import rich.table

from dflash_sglang.bench import roofline
from dflash_sglang.bench.devices import Device
from dflash_sglang.bench.errors import BenchError
from dflash_sglang.bench.provenance import Figure
from dflash_sglang.bench.tables import Row, Table, layout

PREFILL_TOKENS = 2048


class Question(NamedTuple):
    """A model, and what is known of its speculation."""

    weights: float  # bytes read in a decode step
    bytes_per_weight: float
    tau: float  # tokens committed per verify step, bonus included
    draft_ms: float
    verify_ms: float | None  # None: from bandwidth and compute
    verify_tokens: int  # tokens verified in a step


def project(device: Device, question: Question) -> Table:
    """Every projected figure, a row each, with its formula and inputs."""
    check(question)
    parameters = question.weights / question.bytes_per_weight

    def step_ms(tokens: int) -> Figure:
        return roofline.STEP_MS(
            M=question.weights, W=device.bandwidth, P=parameters, n=tokens, F=device.compute
        )

    plain_ms = step_ms(1).value
    verify = step_ms(question.verify_tokens) if question.verify_ms is None else None
    verify_ms = verify.value if verify else float(question.verify_ms or 0.0)
    times = {"T_draft": question.draft_ms, "T_verify": verify_ms, "tau": question.tau}
    b = question.bytes_per_weight
    figures = {
        "arithmetic intensity, prefill": roofline.PREFILL_INTENSITY(N=PREFILL_TOKENS, b=b),
        "arithmetic intensity, decode": roofline.DECODE_INTENSITY(n=1, b=b),
        "saturation intensity": roofline.SATURATION_INTENSITY(F=device.compute, W=device.bandwidth),
        "plain decoding": roofline.BASELINE_RATE(W=device.bandwidth, M=question.weights),
        "plain step": step_ms(1),
        **({"verify step": verify} if verify else {}),
        "time of a token": roofline.TOKEN_MS(**times),
        "speculative decoding": roofline.RATE(**times),
        "speedup": roofline.SPEEDUP(T_plain=plain_ms, **times),
    }
    rows = [Row((name, figure.unit), (_pure(figure),)) for name, figure in figures.items()]
    return Table(("figure", "unit"), ("value",), rows)


def windows(device: Device, question: Question, acceptance: Sequence[Sequence[float]]) -> Table:
    """The best depth for drafts up to each width, and what it is projected to bring.

    Args:
        acceptance: as for :func:`roofline.expected_tau`.
    """
    parameters = question.weights / question.bytes_per_weight

    def verify_ms(tokens: int) -> float:
        return roofline.STEP_MS.compute(
            question.weights, device.bandwidth, parameters, tokens, device.compute
        )

    rows = []
    for width in range(1, len(acceptance[0]) + 1):
        curve = [row[:width] for row in acceptance]
        best = roofline.best_window(curve, verify_ms, question.draft_ms)
        times = {"T_draft": question.draft_ms if best.depth else 0.0}
        times |= {"T_verify": verify_ms(best.nodes), "tau": best.tau}
        shape = (str(width), str(best.depth), str(best.nodes))
        rows.append(Row(shape, (roofline.RATE(**times),)))
    return Table(("width up to", "best depth", "nodes"), ("rate",), rows)


def parse_acceptance(text: str) -> list[list[float]]:
    """``0.9/0.95,0.8/0.9`` -> a row a position, a column a number of candidates.

    Raises:
        BenchError: not numbers, or not chances.
    """
    try:
        curve = [[float(x) for x in row.split("/")] for row in text.split(",")]
    except ValueError:
        raise BenchError(
            f"--acceptance expects chances such as 0.9,0.8 or 0.9/0.95,0.8/0.9, got {text!r}."
        ) from None
    roofline.check_acceptance(curve)
    return curve


def show(table: Table, *, provenance: bool = False, title: str | None = None) -> rich.table.Table:
    """A table for the terminal."""
    grid = layout(table, provenance=provenance)
    shown = rich.table.Table(*grid.header, title=title)
    for line in grid.lines:
        shown.add_row(*line)
    return shown


def check(question: Question) -> None:
    """Refuse what no model has.

    Raises:
        BenchError: which flag, and what it expects.
    """
    if question.weights <= 0:
        raise BenchError(f"--weights must be above 0, got {question.weights / 1e9:g}.")
    if question.bytes_per_weight <= 0:
        raise BenchError(f"--bits must be above 0, got {8 * question.bytes_per_weight:g}.")
    if question.tau < 1:
        raise BenchError(
            f"--tau counts the bonus token, so a step brings at least 1; got {question.tau:g}."
        )
    for flag, value in (("--draft-ms", question.draft_ms), ("--verify-ms", question.verify_ms)):
        if value is not None and value < 0:
            raise BenchError(f"{flag} must not be negative, got {value:g}.")
    if question.verify_tokens < 1:
        raise BenchError(
            f"--verify-tokens must be 1 or more, the root is one; got {question.verify_tokens}."
        )


def _pure(figure: Figure) -> Figure:
    # The unit has a column of its own, since the rows have different ones.
    return Figure(value=figure.value, unit="", provenance=figure.provenance)
