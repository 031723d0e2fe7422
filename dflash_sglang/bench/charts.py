"""Pictures of a run, one function a picture; each carries where its figures come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from dflash_sglang.bench import figures, metrics, mix_charts
from dflash_sglang.bench.metrics import METRICS
from dflash_sglang.bench.modes import PLAIN
from dflash_sglang.bench.phases import PHASES
from dflash_sglang.bench.provenance import describe
from dflash_sglang.bench.records import Case, Cell, Run
from dflash_sglang.bench.styles import PHASE_COLOURS, UNTIMED, style

_DPI = 120


def draw_all(run: Run, folder: Path) -> dict[str, Path]:
    """Draw every picture that the run has figures for; title -> file."""
    drawn = {}
    for name, (title, draw) in _PICTURES.items():
        canvas = draw(run)
        if canvas is None:
            continue
        canvas.supxlabel(describe(run.measured), fontsize=7, color="#666666")
        path = folder / f"{name}.png"
        FigureCanvasAgg(canvas)
        canvas.savefig(path, dpi=_DPI)
        drawn[title] = path
    return drawn


def pareto(run: Run) -> Canvas:
    """Throughput against interactivity, a line a mode, a point a load."""
    canvas, panels = _panels(run, [(case.workload, case.temperature) for case in run.cases])
    for (workload, temperature), axes in panels.items():
        cases = [c for c in run.cases if (c.workload, c.temperature) == (workload, temperature)]
        for mode in run.modes:
            cells = [cell for case in cases if (cell := run.cell(mode, case)) is not None]
            x = [_mean(cell, "tokens_per_s_per_user") for cell in cells]
            y = [_mean(cell, "tokens_per_s") for cell in cells]
            axes.plot(x, y, style(mode).line, label=mode, color=style(mode).colour)
            for cell, across, up in zip(cells, x, y, strict=True):
                axes.annotate(cell.case.load.short, (across, up), fontsize=7, xytext=(4, 4),
                              textcoords="offset points")  # fmt: skip
        axes.set(title=f"{workload}, temperature {temperature:g}", ylabel="tokens/s of all users",
                 xlabel="tokens/s of one user (beside a point: users at once)")  # fmt: skip
        axes.margins(0.1)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
    return _finished(canvas, panels.values())


def accept_by_position(run: Run) -> Canvas | None:
    """Share of verify steps that accepted at least j drafted tokens."""

    def draw(axes: Axes, mode: str, histogram: np.ndarray, _: int) -> None:
        shares = metrics.accept_by_position(histogram)
        positions = np.arange(1, len(shares) + 1)
        axes.plot(positions, shares, style(mode).line, label=mode, color=style(mode).colour)
        axes.set(xlabel="draft position", ylabel="share of steps that accepted it", ylim=(0, 1.05))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))

    return _acceptance(run, draw)


def accept_histogram(run: Run) -> Canvas | None:
    """Share of verify steps by the number of drafted tokens that they accepted."""
    modes = [mode for mode in run.modes if mode != str(PLAIN)]
    width = 0.8 / max(1, len(modes))

    def draw(axes: Axes, mode: str, histogram: np.ndarray, index: int) -> None:
        places = np.arange(len(histogram)) + (index - (len(modes) - 1) / 2) * width
        axes.bar(places, histogram / histogram.sum(), width, label=mode,
                 color=style(mode).colour)  # fmt: skip
        axes.set(xlabel="drafted tokens accepted in a step", ylabel="share of steps")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))

    return _acceptance(run, draw)


def step_budget(run: Run) -> Canvas | None:
    """What a step costs and what it brings; speculation pays where it brings more plain steps."""
    canvas, panels = _panels(run, [(case.workload, case.temperature) for case in run.cases])
    for (workload, temperature), axes in panels.items():
        case = _lightest(run, workload, temperature)
        plain = run.cell(str(PLAIN), case)
        cells = [cell for mode in run.modes if (cell := run.cell(mode, case)) is not None]
        costs = [_mean(cell, "step_ms") for cell in cells]
        brings = [_mean(cell, "accept_length") if _speculates(cell) else 1.0 for cell in cells]
        places = np.arange(len(cells))
        _stack_phases(axes, cells, np.array(costs))
        axes.set_xticks(places, [cell.mode for cell in cells])
        for place, cost, length in zip(places, costs, brings, strict=True):
            axes.annotate(f"{cost:.1f} ms\n{length:.2f} tokens", (place, cost), ha="center",
                          va="bottom", fontsize=8)  # fmt: skip
        if plain is not None:
            axes.axhline(_mean(plain, "step_ms"), color="#555555", linewidth=0.8, linestyle=":")
        axes.set(title=f"{workload}, temperature {temperature:g}, {case.load}",
                 ylabel="ms of a decode step")  # fmt: skip
        axes.margins(y=0.2)
    return _finished(canvas, panels.values())


def _stack_phases(axes: Axes, cells: list[Cell], costs: np.ndarray) -> None:
    """Bars of steps, one phase on the other; what the server did not time stands on top."""
    places, below = np.arange(len(cells)), np.zeros(len(cells))
    for phase in PHASES:
        times = np.nan_to_num([_mean(cell, f"{phase}_ms") for cell in cells])
        if times.any():
            axes.bar(places, times, 0.6, bottom=below, label=phase, color=PHASE_COLOURS[phase])
        below += times
    axes.bar(places, np.maximum(costs - below, 0), 0.6, bottom=below, label=UNTIMED,
             color=PHASE_COLOURS[UNTIMED])  # fmt: skip


def speedup_by_category(run: Run) -> Canvas | None:
    """Speedup over plain decoding for each category of prompts, at the lightest load."""
    modes = [mode for mode in run.modes if mode != str(PLAIN)]
    if str(PLAIN) not in run.modes or not modes:
        return None
    canvas, panels = _panels(run, [(case.workload, case.temperature) for case in run.cases])
    width = 0.8 / len(modes)
    for (workload, temperature), axes in panels.items():
        case = _lightest(run, workload, temperature)
        for index, mode in enumerate(modes):
            cell = run.cell(mode, case)
            if cell is None:
                continue
            categories = sorted({answer.category for answer in cell.rounds[0].answers})
            found = [figures.category_speedup(run, cell, category) for category in categories]
            heights = [figure.value if figure else np.nan for figure in found]
            reach = [
                (f.interval[1] - f.interval[0]) / 2 if f and f.interval else 0.0 for f in found
            ]
            places = np.arange(len(categories)) + (index - (len(modes) - 1) / 2) * width
            axes.bar(places, heights, width, yerr=reach, label=mode, color=style(mode).colour,
                     error_kw={"linewidth": 0.8})  # fmt: skip
            axes.set_xticks(np.arange(len(categories)), categories, rotation=20)
        axes.axhline(1.0, color="#555555", linewidth=0.8, linestyle=":")
        axes.set_ylim(bottom=0)
        axes.set(title=f"{workload}, temperature {temperature:g}, {case.load}",
                 ylabel="times plain decoding")  # fmt: skip
    return _finished(canvas, panels.values())


def latency(run: Run) -> Canvas:
    """Inter-token latency: median as a bar, p95 and p99 as marks above it."""
    canvas, panels = _panels(run, [(case.workload, case.temperature) for case in run.cases])
    width = 0.8 / len(run.modes)
    for (workload, temperature), axes in panels.items():
        cases = [c for c in run.cases if (c.workload, c.temperature) == (workload, temperature)]
        for index, mode in enumerate(run.modes):
            cells = [run.cell(mode, case) for case in cases]
            places = np.arange(len(cases)) + (index - (len(run.modes) - 1) / 2) * width
            colour = style(mode).colour
            axes.bar(places, [_mean(cell, "itl_p50") for cell in cells], width, label=mode,
                     color=colour)  # fmt: skip
            for name, marker in (("itl_p95", "_"), ("itl_p99", "^")):
                axes.scatter(places, [_mean(cell, name) for cell in cells], marker=marker, s=24,
                             color="black", linewidth=0.8)  # fmt: skip
        axes.set_xticks(np.arange(len(cases)), [str(case.load) for case in cases])
        axes.set(title=f"{workload}, temperature {temperature:g}: bar p50, – p95, ▲ p99",  # noqa: RUF001
                 ylabel="ms between tokens")  # fmt: skip
    return _finished(canvas, panels.values())


def _acceptance(run: Run, draw: Callable[[Axes, str, np.ndarray, int], None]) -> Canvas | None:
    """A panel a temperature; acceptance does not depend on the load, so loads are pooled."""
    canvas, panels = _panels(run, [("all", case.temperature) for case in run.cases])
    drawn = False
    for (_, temperature), axes in panels.items():
        for index, mode in enumerate(mode for mode in run.modes if mode != str(PLAIN)):
            rounds = [
                round_
                for cell in run.cells
                if (cell.mode, cell.case.temperature) == (mode, temperature)
                for round_ in cell.rounds
            ]
            histogram = metrics.accept_histogram(rounds)
            if histogram.sum():
                draw(axes, mode, histogram, index)
                drawn = True
        axes.set_title(f"temperature {temperature:g}")
    return _finished(canvas, panels.values()) if drawn else None


_Panel = tuple[str, float]


def _panels(run: Run, wanted: list[_Panel]) -> tuple[Canvas, dict[_Panel, Axes]]:
    """A grid of axes: a row a workload, a column a temperature."""
    rows = list(dict.fromkeys(workload for workload, _ in wanted))
    columns = list(dict.fromkeys(temperature for _, temperature in wanted))
    canvas = Canvas(figsize=(5.2 * len(columns), 3.9 * len(rows)), layout="constrained")
    grid = canvas.subplots(len(rows), len(columns), squeeze=False)
    panels = {}
    for i, workload in enumerate(rows):
        for j, temperature in enumerate(columns):
            if (workload, temperature) in wanted:
                panels[workload, temperature] = grid[i][j]
            else:  # this workload was not asked at this temperature
                grid[i][j].set_visible(False)
    return canvas, panels


def _finished(canvas: Canvas, panels: Iterable[Axes], *, legend: bool = True) -> Canvas:
    named: dict[str, Artist] = {}
    for axes in panels:
        axes.grid(alpha=0.3)
        axes.set_axisbelow(True)
        handles, labels = axes.get_legend_handles_labels()
        named |= dict(zip(labels, handles, strict=True))
    if legend and named:
        # One for all panels and above them, where it hides no mark.
        canvas.legend(list(named.values()), list(named), loc="outside upper center",
                      ncols=len(named), fontsize=8)  # fmt: skip
    return canvas


def _mean(cell: Cell | None, metric: str) -> float:
    values = metrics.samples(cell, METRICS[metric]) if cell is not None else []
    return float(np.mean(values)) if values else float("nan")


def _speculates(cell: Cell) -> bool:
    return bool(metrics.samples(cell, METRICS["accept_length"]))


def _lightest(run: Run, workload: str, temperature: float) -> Case:
    cases = [c for c in run.cases if (c.workload, c.temperature) == (workload, temperature)]
    return min(cases, key=lambda case: case.rank)


_PICTURES: dict[str, tuple[str, Callable[[Run], Canvas | None]]] = {
    "mix": ("Where which width pays", mix_charts.over_plain),
    "pareto": ("Throughput against interactivity", pareto),
    "speedup_by_category": ("Speedup by kind of prompt", speedup_by_category),
    "accept_by_position": ("Acceptance by draft position", accept_by_position),
    "accept_histogram": ("Accepted tokens of a step", accept_histogram),
    "step_budget": ("What a step costs and brings", step_budget),
    "latency": ("Inter-token latency", latency),
}
