"""A choice of width at every step against each fixed width, cell by cell and over all cells.

A cell is a case: a workload at a temperature under a load. The mix of all cells has the same number
of tokens in each, so a mode's throughput over it is the harmonic mean of its throughputs in the
cells, and a mode that is slow somewhere pays for it with the time of the whole.

Of several rounds the median counts: a cell takes seconds, and whatever else the machine does in
them can slow a single round of a single mode down several times.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dflash_sglang.bench import metrics, statistics
from dflash_sglang.bench.modes import ADAPTIVE, PLAIN, parse_mode
from dflash_sglang.bench.provenance import Figure
from dflash_sglang.bench.records import Case, Load, Run
from dflash_sglang.bench.statistics import Estimate
from dflash_sglang.bench.workloads import text_before

Rates = dict[str, list[float]]
"""Mode -> output tokens/s in each round."""


class Comparison(NamedTuple):
    """Adaptive decoding against the others, in one cell or over all."""

    throughput: dict[str, Figure]  # mode -> output tokens/s
    speedups: dict[str, Figure]  # mode -> output over plain decoding's; none without that
    best_fixed: str  # the fixed mode with the most
    over_best_fixed: Figure  # each round against the mode that was best in the others
    rounds_over_best_fixed: list[float]
    rounds_over_plain: list[float]  # none without plain decoding

    @property
    def over_plain(self) -> Figure | None:
        """Adaptive decoding's speedup."""
        return self.speedups.get(str(ADAPTIVE))


class Situation(NamedTuple):
    """What cells of several kinds of text have in common."""

    context: str  # the text before their prompts, as the workload names it; nothing: none
    load: Load


def situation_of(case: Case) -> Situation:
    """The situation that a case is one of."""
    return Situation(text_before(case.workload), case.load)


class Reach(NamedTuple):
    """How many cells adaptive decoding comes to some share of the others in.

    Noise alone puts some of the cells below it where both are equally fast: ``*_of_equals`` is how
    many would be expected to come to it then; None with too few rounds to tell.
    """

    best_fixed: int
    best_fixed_of_equals: float | None
    plain: int
    plain_of_equals: float | None
    surely_short: int  # comparisons with either that lie below it with their whole interval


class Mix(NamedTuple):
    """Comparisons of a run."""

    cells: dict[Case, Comparison]
    situations: dict[Situation, Comparison]  # over the cells of each
    whole: Comparison

    def least_over_best_fixed(self) -> Case:
        """Where adaptive does worst against the best fixed mode of the cell."""
        return min(self.cells, key=lambda case: self.cells[case].over_best_fixed.value)

    def least_over_plain(self) -> Case | None:
        """Where adaptive does worst against plain decoding; None if that was not measured."""
        ratios = {case: c.over_plain.value for case, c in self.cells.items() if c.over_plain}
        return min(ratios, key=lambda case: ratios[case], default=None)

    def mean_over_best_fixed(self) -> float:
        """Geometric mean over the cells, each against the best fixed mode of its own."""
        logs = [np.log(cell.over_best_fixed.value) for cell in self.cells.values()]
        return float(np.exp(np.mean(logs)))

    def reach(self, share: float) -> Reach:
        """How many cells come to ``share`` of their best fixed mode and of plain decoding."""
        cells = list(self.cells.values())
        ratios = [cell.over_best_fixed for cell in cells]
        plain = [cell.over_plain for cell in cells if cell.over_plain]
        return Reach(
            best_fixed=sum(ratio.value >= share for ratio in ratios),
            best_fixed_of_equals=_of_equals(share, [c.rounds_over_best_fixed for c in cells]),
            plain=sum(ratio.value >= share for ratio in plain),
            plain_of_equals=_of_equals(share, [c.rounds_over_plain for c in cells]),
            surely_short=sum(
                ratio.interval is not None and ratio.interval[1] < share
                for ratio in (*ratios, *plain)
            ),
        )


def _of_equals(share: float, cells: list[list[float]]) -> float | None:
    """How many cells would be at ``share`` if their rounds' ratios only scattered around 1."""
    chances = [statistics.chance_of_reaching(share, rounds) for rounds in cells if rounds]
    known = [chance for chance in chances if chance is not None]
    return sum(known) if known and len(known) == len(chances) else None


def mix_of(run: Run) -> Mix | None:
    """The comparisons of a run; None without adaptive decoding or without a fixed width."""
    if str(ADAPTIVE) not in run.modes or not any(parse_mode(m).is_fixed for m in run.modes):
        return None
    rates = {case: _rates(run, case) for case in run.cases}
    cells = {case: _compare(run, by_mode) for case, by_mode in rates.items() if _whole(by_mode)}
    if not cells:
        return None
    over_all = _together([rates[case] for case in cells])
    if not _whole(over_all):
        return None
    alike: dict[Situation, list[Rates]] = {}
    for case in cells:
        alike.setdefault(situation_of(case), []).append(rates[case])
    situations = {key: _compare(run, _together(alike[key])) for key in sorted(alike, key=_rank)}
    return Mix(cells, situations, _compare(run, over_all))


def _rank(situation: Situation) -> tuple[int, str, tuple[float, float]]:
    """Sorts longer numbers of words behind shorter ones, and loads within them."""
    return len(situation.context), situation.context, situation.load.rank


def _together(rates: list[Rates]) -> Rates:
    """Over equally many tokens of each; of the modes that all of them have."""
    modes = [mode for mode in rates[0] if all(mode in cell for cell in rates)]
    return {mode: statistics.harmonic_mean([cell[mode] for cell in rates]) for mode in modes}


def _rates(run: Run, case: Case) -> Rates:
    """Mode -> its throughput in each round."""
    cells = {mode: run.cell(mode, case) for mode in run.modes}
    return {
        mode: [metrics.tokens_per_s(round_) for round_ in cell.rounds]
        for mode, cell in cells.items()
        if cell is not None
    }


def _whole(rates: Rates) -> bool:
    return str(ADAPTIVE) in rates and any(parse_mode(mode).is_fixed for mode in rates)


def _compare(run: Run, rates: Rates) -> Comparison:
    fixed = [mode for mode in rates if parse_mode(mode).is_fixed]
    adaptive, plain = rates[str(ADAPTIVE)], rates.get(str(PLAIN))
    # In the other rounds, so that noise that makes a mode the best of a round is no part of it.
    bests = [_fastest(rates, fixed, without=index) for index in range(len(adaptive))]
    over_best = _ratios(adaptive, [rates[best][index] for index, best in enumerate(bests)])
    over_plain = (
        {} if plain is None else {mode: _ratios(samples, plain) for mode, samples in rates.items()}
    )
    return Comparison(
        throughput={
            mode: _figure(run, statistics.median(samples), "tok/s")
            for mode, samples in rates.items()
        },
        speedups={
            mode: _figure(run, statistics.median(ratios), "x")
            for mode, ratios in over_plain.items()
        },
        best_fixed=_fastest(rates, fixed),
        over_best_fixed=_figure(run, statistics.median(over_best), "x"),
        rounds_over_best_fixed=over_best,
        rounds_over_plain=over_plain.get(str(ADAPTIVE), []),
    )


def _fastest(rates: Rates, modes: list[str], without: int | None = None) -> str:
    """The mode with the most in a median round; ``without`` one, if there are more."""

    def typical(mode: str) -> float:
        samples = rates[mode]
        others = [rate for index, rate in enumerate(samples) if index != without]
        return statistics.median(others or samples).value

    return max(modes, key=typical)


def _ratios(samples: list[float], baselines: list[float]) -> list[float]:
    return [rate / base for rate, base in zip(samples, baselines, strict=True)]


def _figure(run: Run, estimate: Estimate, unit: str) -> Figure:
    return Figure(
        value=estimate.value, unit=unit, provenance=run.measured, interval=estimate.interval
    )
