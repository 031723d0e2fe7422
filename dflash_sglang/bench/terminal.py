"""What a run found, for a terminal of eighty columns."""

from __future__ import annotations

from collections.abc import Iterator

import rich.box
import rich.table
from rich.markup import escape

from dflash_sglang.bench import figures
from dflash_sglang.bench.mix import Mix, mix_of
from dflash_sglang.bench.mix_tables import mix_sentences, mix_table
from dflash_sglang.bench.provenance import describe
from dflash_sglang.bench.records import Case, Load, Run
from dflash_sglang.bench.tables import Row, Table, layout

_COLUMNS = {
    "tokens_per_s": "output",
    "speedup": "speedup",
    "over_native": "over native",
    "accept_length": "accept length",
    "step_ms": "step",
}


def summary(run: Run) -> Iterator[rich.table.Table | str]:
    """Where the figures are from, what was refused, and a small table for each kind of request."""
    yield f"{describe(run.measured)}; {run.setup.rounds} rounds, ± is half the 95 % interval."
    for mode, reason in run.refused.items():
        yield f"[yellow]{mode} was not measured:[/] {escape(reason)}"
    kinds = dict.fromkeys((case.workload, case.temperature) for case in run.cases)
    for workload, temperature in kinds:
        cases = [c for c in run.cases if (c.workload, c.temperature) == (workload, temperature)]
        yield _shown(_throughput(run, cases), f"{workload}, temperature {temperature:g}")
    mix = mix_of(run)
    if mix is not None:
        yield _shown(_short_mix(run, mix), "adaptive against fixed widths")
        yield from mix_sentences(mix)


def _throughput(run: Run, cases: list[Case]) -> Table:
    found = {(e.case, e.mode, e.metric): e.figure for e in figures.entries(run) if e.case in cases}
    reported = {metric for _, _, metric in found}
    columns = {metric: heading for metric, heading in _COLUMNS.items() if metric in reported}
    rows = [
        Row((_short(case.load), mode), tuple(found.get((case, mode, metric)) for metric in columns))
        for case in cases
        for mode in run.modes
        if run.cell(mode, case) is not None
    ]
    return Table(("load", "mode"), tuple(columns.values()), rows)


def _short_mix(run: Run, mix: Mix) -> Table:
    """Workload and temperature as one label, so that eighty columns suffice."""
    whole = mix_table(run, mix, every_mode=False)
    rows = [
        Row((f"{row.labels[0]} T={row.labels[1]}" if row.labels[1] else row.labels[0],
             row.labels[2].removeprefix("concurrency "), *row.labels[4:]), row.figures)
        for row in whole.rows
    ]  # fmt: skip
    return Table(("requests", "users", "best"), whole.figure_columns, rows)


def _short(load: Load) -> str:
    if load.concurrency is None:
        return f"{load.rate:g}/s"
    return "1 user" if load.concurrency == 1 else f"{load.concurrency} users"


def _shown(table: Table, title: str) -> rich.table.Table:
    grid = layout(table, provenance=False)
    shown = rich.table.Table(title=title, box=rich.box.SIMPLE, padding=(0, 1, 0, 0))
    for column, name in enumerate(grid.header):
        names = column < grid.labels
        shown.add_column(name, justify="left" if names else "right", no_wrap=names)
    above = ""
    for line in grid.lines:
        load, *others = line
        # Each load is named once, in front of its modes.
        shown.add_row("" if load == above else load, *others)
        above = load
    return shown
