"""A run's report: one HTML page, pictures, Markdown tables, and every figure as JSON."""

from __future__ import annotations

import base64
import os
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import jinja2
import msgspec
from markupsafe import Markup

from dflash_sglang.bench import charts, figures
from dflash_sglang.bench.errors import BenchError
from dflash_sglang.bench.mix import mix_of
from dflash_sglang.bench.mix_tables import (
    MIX_NOTE,
    SITUATIONS_NOTE,
    WIDTHS_NOTE,
    mix_sentences,
    mix_table,
    situations_table,
    widths_table,
)
from dflash_sglang.bench.phases import PHASES
from dflash_sglang.bench.records import Run, write_run
from dflash_sglang.bench.tables import Row, Table, as_html, markdown

BUDGET_NOTE = (
    "A step as the client sees it, and the server's own count of what is in it: the drafter with "
    "lattice and tree, the target's forward with its draws, and the commit (walk, KV moves, "
    "injection). The rest is scheduling, the way to the client, and prefills of other requests."
)
_LABELS = ("workload", "temperature", "load", "mode")
_LATENCIES = {  # the other percentiles stand in figures.json
    "ttft_p50": "TTFT p50",
    "ttft_p99": "TTFT p99",
    "itl_p50": "ITL p50",
    "itl_p95": "ITL p95",
    "itl_p99": "ITL p99",
    "gap_p50": "gap p50",
    "gap_p99": "gap p99",
}


class Section(NamedTuple):
    """A table with its heading."""

    heading: str
    note: str
    table: Table


def make_folder(folder: Path) -> None:
    """Make the folder of a report.

    Raises:
        BenchError: it cannot be made or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BenchError(
            f"cannot write a report to {folder}: {error.strerror}; give another --out."
        ) from error
    if not os.access(folder, os.W_OK):
        raise BenchError(f"cannot write a report to {folder}: not allowed; give another --out.")


def write_report(run: Run, folder: Path) -> list[Path]:
    """Write run.json, figures.json, report.md, report.html and the pictures; returns the files."""
    make_folder(folder)
    files = {
        name: folder / name for name in ("run.json", "figures.json", "report.md", "report.html")
    }
    write_run(run, files["run.json"])  # first: whatever fails below, nothing measured is lost
    pictures = charts.draw_all(run, folder)
    encoded = msgspec.json.encode(list(figures.entries(run)))
    files["figures.json"].write_bytes(msgspec.json.format(encoded) + b"\n")
    files["report.md"].write_text(as_markdown(run), encoding="utf-8")
    files["report.html"].write_text(as_page(run, pictures), encoding="utf-8")
    return [*files.values(), *pictures.values()]


def sections(run: Run) -> list[Section]:
    """The tables of a report."""
    return [
        Section(
            "Throughput",
            "Speedup is over plain decoding in the same round, over native over SGLang's chain. "
            "Equal answers have the very text of plain decoding; sampled ones can only be equal if "
            "the servers honour seeds.",
            _table(
                run,
                {
                    "tokens_per_s": "output",
                    "speedup": "speedup",
                    "over_native": "over native",
                    "tokens_per_s_per_user": "output per user",
                    "accept_length": "accept length",
                    "step_ms": "step",
                    "equal_answers": "equal answers",
                },
            ),
        ),
        Section(
            "Latency",
            f"Time to first token (TTFT) on {_cache(run)} prefix cache. Inter-token latency (ITL) "
            "shares a wait among the tokens that it brought; the gap is the wait itself.",
            _table(run, _LATENCIES),
        ),
        *_budget(run),
        *_adaptive(run),
        *_resources(run),
    ]


def as_markdown(run: Run) -> str:
    """The report without pictures."""
    measured = run.measured
    versions = ", ".join(f"{name} {version}" for name, version in measured.versions.items())
    parts = [
        f"Measured {measured.date} on {measured.machine}; {versions}; {run.setup.rounds} rounds, "
        f"± is half the 95 % interval.\n\n    {measured.command}\n"
    ]
    parts += [f"Not measured: {mode}: {reason}\n" for mode, reason in run.refused.items()]
    for section in sections(run):
        parts += [f"## {section.heading}\n", f"{section.note}\n", markdown(section.table)]
    return "\n".join(parts)


def as_page(run: Run, pictures: dict[str, Path]) -> str:
    """The report as one HTML page that needs nothing beside it.

    Args:
        pictures: title -> PNG file, embedded.
    """
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    source = resources.files("dflash_sglang.bench").joinpath("page.html").read_text("utf-8")
    return environment.from_string(source).render(
        title=f"dflash2 bench: {Path(run.setup.target).name}",
        measured=run.measured,
        setup=run.setup,
        refused=run.refused,
        tables=[(s.heading, s.note, Markup(as_html(s.table))) for s in sections(run)],
        pictures=[
            (title, base64.b64encode(path.read_bytes()).decode())
            for title, path in pictures.items()
        ],
    )


def _table(run: Run, columns: dict[str, str]) -> Table:
    """Rows of cases and modes; columns are metric -> heading, those that have a figure."""
    found = {(e.case, e.mode, e.metric): e.figure for e in figures.entries(run)}
    reported = {metric for _, _, metric in found}
    columns = {metric: heading for metric, heading in columns.items() if metric in reported}
    rows = [
        Row(
            (case.workload, f"{case.temperature:g}", str(case.load), mode),
            tuple(found.get((case, mode, metric)) for metric in columns),
        )
        for case in run.cases
        for mode in run.modes
        if run.cell(mode, case) is not None
    ]
    return Table(_LABELS, tuple(columns.values()), rows)


def _cache(run: Run) -> str:
    return "a kept" if run.setup.keeps_cache else "an empty"


def _adaptive(run: Run) -> list[Section]:
    found = []
    mix = mix_of(run)
    if mix is not None:
        note = " ".join([*mix_sentences(mix), MIX_NOTE])
        found.append(Section("Adaptive against fixed widths", note, mix_table(run, mix)))
        by_load = situations_table(run, mix)
        found.append(Section("Adaptive by load and context", SITUATIONS_NOTE, by_load))
    chosen = widths_table(run)
    if chosen is not None:
        found.append(Section("Widths chosen", WIDTHS_NOTE, chosen))
    return found


def _budget(run: Run) -> list[Section]:
    columns = {f"{phase}_ms": phase for phase in PHASES}
    if not _table(run, columns).figure_columns:
        return []
    return [
        Section("Time budget of a step", BUDGET_NOTE, _table(run, {"step_ms": "step", **columns}))
    ]


def _resources(run: Run) -> list[Section]:
    table = _table(run, {"kv_tokens": "KV in use", "joules_per_token": "energy per token"})
    if not table.figure_columns:
        return []
    note = "Most KV slots in use, asked once a second; energy of the whole machine, where it tells."
    return [Section("Resources", note, table)]
