"""From a run to figures: each metric of each cell, and its speedup over plain decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from dflash_sglang.bench import metrics, statistics
from dflash_sglang.bench.metrics import METRICS, Metric
from dflash_sglang.bench.mix import Mix, mix_of
from dflash_sglang.bench.modes import ADAPTIVE, NATIVE, PLAIN, Mode
from dflash_sglang.bench.provenance import Figure
from dflash_sglang.bench.records import Case, Cell, Round, Run
from dflash_sglang.bench.statistics import Estimate


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A figure and what it is a figure of."""

    mode: str
    case: Case | None  # None: all cases together
    metric: str
    figure: Figure


def entries(run: Run) -> Iterator[Entry]:
    """Every figure of a run; what a server did not report has none."""
    for case in run.cases:
        for mode in run.modes:
            cell = run.cell(mode, case)
            if cell is None:
                continue
            found = {name: metric_figure(run, cell, metric) for name, metric in METRICS.items()}
            found["speedup"] = speedup(run, cell)
            if mode != str(PLAIN):
                found["over_native"] = speedup(run, cell, over=NATIVE)
            found["equal_answers"] = equal_answers(run, cell)
            for name, figure in found.items():
                if figure is not None:
                    yield Entry(mode=mode, case=case, metric=name, figure=figure)
    mix = mix_of(run)
    if mix is not None:
        yield from _mix_entries(mix)


def _mix_entries(mix: Mix) -> Iterator[Entry]:
    """Adaptive decoding against fixed widths; the throughput of all modes over the whole mix."""

    def entry(case: Case | None, metric: str, figure: Figure, mode: str = str(ADAPTIVE)) -> Entry:
        return Entry(mode=mode, case=case, metric=metric, figure=figure)

    for case, cell in mix.cells.items():
        yield entry(case, "over_best_fixed", cell.over_best_fixed)
    for mode, figure in mix.whole.throughput.items():
        yield entry(None, "tokens_per_s", figure, mode)
    yield entry(None, "over_best_fixed", mix.whole.over_best_fixed)
    if mix.whole.over_plain is not None:
        yield entry(None, "speedup", mix.whole.over_plain)


def metric_figure(run: Run, cell: Cell, metric: Metric) -> Figure | None:
    """Mean of a metric over the rounds."""
    values = metrics.samples(cell, metric)
    return _figure(run, statistics.mean(values), metric.unit) if values else None


def speedup(
    run: Run,
    cell: Cell,
    pace: Callable[[Round], float | None] = metrics.tokens_per_s,
    over: Mode = PLAIN,
) -> Figure | None:
    """Rate over another mode's, round by round; None for that mode itself or without it.

    Args:
        pace: the rate of a round that is compared.
        over: the mode that counts as 1.
    """
    other = run.cell(str(over), cell.case)
    if other is None or cell.mode == str(over):
        return None
    pairs = [(pace(mine), pace(its)) for mine, its in zip(cell.rounds, other.rounds, strict=True)]
    known = [(mine, its) for mine, its in pairs if mine and its]
    if len(known) < len(pairs):
        return None
    return _figure(run, statistics.paired_ratio(*zip(*known, strict=True)), "x")


def category_speedup(run: Run, cell: Cell, category: str) -> Figure | None:
    """Speedup on the prompts of one category: tokens over the time that they were waited for."""

    def pace(round_: Round) -> float | None:
        answers = [answer for answer in round_.answers if answer.category == category]
        seconds = sum(answer.total_s for answer in answers)
        return sum(answer.tokens for answer in answers) / seconds if seconds else None

    return speedup(run, cell, pace)


def equal_answers(run: Run, cell: Cell) -> Figure | None:
    """Percentage of answers whose text is plain decoding's."""
    plain = run.cell(str(PLAIN), cell.case)
    if plain is None or cell.mode == str(PLAIN):
        return None
    same, of = metrics.equal_answers(cell, plain)
    return _figure(run, Estimate(100.0 * same / of, None), "%")


def _figure(run: Run, estimate: Estimate, unit: str) -> Figure:
    return Figure(
        value=estimate.value, unit=unit, provenance=run.measured, interval=estimate.interval
    )
