"""The picture of a mix: where which width wins, and where it loses against plain decoding."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Rectangle

from dflash_sglang.bench.mix import Mix, mix_of
from dflash_sglang.bench.modes import PLAIN
from dflash_sglang.bench.records import Case, Load, Run

_COLOURS = "PuOr"  # orange loses, violet wins; colour-blind readers can tell them apart
_LEAST_REACH = np.log2(1.25)  # of the colours, so that noise around 1 stays pale
_PALE = 1.2  # of the strongest ratio: its colour must leave a frame to be seen
_DARK = 0.6  # of the reach, from which letters are white
_SQUARE = 0.5  # inches
_LABELS = 2.4  # inches to the left of the squares

Kind = tuple[str, float]  # workload and temperature


def over_plain(run: Run) -> Canvas | None:
    """Throughput over plain decoding: a panel a mode, a row a kind of request, a column a load."""
    mix = mix_of(run)
    if mix is None:
        return None
    modes = [mode for mode in mix.whole.speedups if mode != str(PLAIN)]
    if not modes:
        return None
    kinds = list(dict.fromkeys((case.workload, case.temperature) for case in mix.cells))
    loads = sorted({case.load for case in mix.cells}, key=lambda load: load.rank)
    ratios = {mode: _ratios(mix, mode, kinds, loads) for mode in modes}  # [kinds, loads] each
    strongest = max(float(np.nanmax(np.abs(np.log2(grid)))) for grid in ratios.values())
    reach = max(_LEAST_REACH, _PALE * strongest)
    fastest = _fastest(np.stack(list(ratios.values())))

    width = max(1.6, _SQUARE * len(loads))
    canvas = Canvas(
        figsize=(_LABELS + (width + 0.2) * len(modes), max(3.4, 0.3 * len(kinds) + 1.8)),
        layout="constrained",
    )
    row = canvas.subplots(1, len(modes), squeeze=False, sharey=True)[0]
    for index, (mode, axes) in enumerate(zip(modes, row, strict=True)):
        _draw(axes, ratios[mode], reach)
        for place in np.argwhere(fastest == index):
            _frame(axes, *place)
        axes.set_xticks(np.arange(len(loads)), [load.short for load in loads], fontsize=8)
        axes.set_title(f"{mode}\nthe whole mix {mix.whole.speedups[mode].value:.2f}",
                       fontsize=9)  # fmt: skip
    row[0].set_yticks(
        np.arange(len(kinds)), [f"{workload}, T={t:g}" for workload, t in kinds], fontsize=8
    )
    canvas.suptitle("output over plain decoding's by users at once; framed: the fastest mode",
                    fontsize=9)  # fmt: skip
    return canvas


def _ratios(mix: Mix, mode: str, kinds: list[Kind], loads: list[Load]) -> np.ndarray:
    """[kinds, loads], not a number where the mode was not measured."""

    def ratio(workload: str, temperature: float, load: Load) -> float:
        found = mix.cells.get(Case(workload=workload, temperature=temperature, load=load))
        figure = found.speedups.get(mode) if found else None
        return figure.value if figure else np.nan

    return np.array([[ratio(*kind, load) for load in loads] for kind in kinds])


def _fastest(ratios: np.ndarray) -> np.ndarray:
    """[kinds, loads] of [modes, kinds, loads]: the fastest mode; -1 where plain decoding is."""
    best = np.where(np.isnan(ratios), 0.0, ratios).argmax(axis=0)
    return np.where(np.nan_to_num(ratios).max(axis=0) > 1, best, -1)


def _draw(axes: Axes, ratios: np.ndarray, reach: float) -> None:
    axes.imshow(np.log2(ratios), cmap=_COLOURS, vmin=-reach, vmax=reach, aspect="auto")
    axes.tick_params(length=0)
    for (i, j), ratio in np.ndenumerate(ratios):
        if np.isnan(ratio):
            continue
        dark = abs(np.log2(ratio)) > _DARK * reach
        axes.text(j, i, f"{ratio:.2f}", ha="center", va="center", fontsize=7,
                  color="white" if dark else "black")  # fmt: skip


def _frame(axes: Axes, i: int, j: int) -> None:
    axes.add_patch(
        Rectangle((j - 0.46, i - 0.44), 0.92, 0.88, fill=False, edgecolor="black", linewidth=1.2)
    )
