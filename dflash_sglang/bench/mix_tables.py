"""Tables of adaptive decoding against fixed widths, and of the widths that it chose."""

from __future__ import annotations

from collections.abc import Sequence

from dflash_sglang.bench import widths
from dflash_sglang.bench.figures import metric_figure
from dflash_sglang.bench.metrics import METRICS
from dflash_sglang.bench.mix import Comparison, Mix, situation_of
from dflash_sglang.bench.modes import ADAPTIVE
from dflash_sglang.bench.records import Case, Cell, Run
from dflash_sglang.bench.tables import Row, Table

MIX_NOTE = (
    "Output tokens/s of all users, of the median round; for the whole mix, which has equally many "
    "tokens in each row, a round is the harmonic mean of its rows. Context is the mean length of "
    "the prompts in tokens. Ratios are medians of the rounds' ratios; from six rounds on an "
    "interval of 95 % follows, if each had servers of its own (--starts). The best fixed mode is "
    "the one of the row, in the last row the best single one for the whole mix; each round, unless "
    "it is the only one, is held against the one that was best in the other rounds, so that noise "
    "does not choose it."
)
WIDTHS_NOTE = (
    "Steps by the nodes that they verified for each request (1 is plain decoding), as the server "
    "counted them. Promised is what its policy expected of these steps, observed what came, "
    "without prefill. Regret is by how much the best fixed width was expected to beat what was "
    "expected of the chosen ones: below 0, no fixed width was. Choosing is what of the decoding "
    "time went into choosing."
)
SITUATIONS_NOTE = (
    "The same by load and context: output tokens/s over equally many tokens of each kind of text, "
    "a round being the harmonic mean of their rows above. Context is the shortest and longest of "
    "their prompts' mean lengths in tokens."
)
_SHARE = 0.98  # of another mode, that adaptive decoding should come to everywhere
_CASE = ("workload", "temperature", "load", "context")
_WHOLE = ("the whole mix", "", "", "")
_LabelledRow = tuple[tuple[str, ...], Comparison]
_WIDTH_COLUMNS = {
    "nodes": "nodes",
    "promised_per_s": "promised",
    "observed_per_s": "observed",
    "regret": "regret",
    "choosing": "choosing",
}


def mix_table(run: Run, mix: Mix, *, every_mode: bool = True) -> Table:
    """A row a cell and one for the whole mix.

    Args:
        every_mode: a column for each mode that was measured; else for adaptive alone.
    """
    modes = list(mix.whole.throughput) if every_mode else [str(ADAPTIVE)]
    rows = [(_labels(run, case), found) for case, found in mix.cells.items()]
    return _comparisons(_CASE, modes, [*rows, (_WHOLE, mix.whole)])


def situations_table(run: Run, mix: Mix) -> Table:
    """A row for the cells of each load and context, whatever their text, and one for the mix."""
    rows: list[_LabelledRow] = []
    for situation, found in mix.situations.items():
        lengths = [_context(run, case) for case in mix.cells if situation_of(case) == situation]
        span = f"{min(lengths):,.0f} to {max(lengths):,.0f}"
        rows.append(((span, str(situation.load)), found))
    labels, whole = ("context", "load"), (_WHOLE[:2], mix.whole)
    return _comparisons(labels, list(mix.whole.throughput), [*rows, whole])


def _comparisons(labels: tuple[str, ...], modes: list[str], rows: Sequence[_LabelledRow]) -> Table:
    """A row for each comparison, behind what stands in its first columns."""

    def row(texts: tuple[str, ...], found: Comparison) -> Row:
        figures = [found.throughput.get(mode) for mode in modes]
        return Row((*texts, found.best_fixed), (*figures, found.over_best_fixed, found.over_plain))

    return Table(
        (*labels, "best fixed"),
        (*modes, "over best fixed", "over plain"),
        [row(texts, found) for texts, found in rows],
        compared=2,
    )


def mix_sentences(mix: Mix) -> list[str]:
    """What the table comes to."""
    whole, worst = mix.whole, mix.least_over_best_fixed()
    lines = [
        f"Adaptive over the best fixed mode of each row: {mix.mean_over_best_fixed():.3f} on "
        f"average, least {mix.cells[worst].over_best_fixed.text()} "
        f"({_name(worst)}; {mix.cells[worst].best_fixed}).",
        _reach_sentence(mix),
        f"Over the best single fixed mode for the whole mix, {whole.best_fixed}: "
        f"{whole.over_best_fixed.text()}.",
    ]
    slowest = mix.least_over_plain()
    if slowest is not None and whole.over_plain is not None:
        least = mix.cells[slowest].over_plain
        assert least is not None
        lines.append(
            f"Over plain decoding: {whole.over_plain.text()} over the whole mix, least "
            f"{least.text()} ({_name(slowest)})."
        )
    return lines


def _reach_sentence(mix: Mix) -> str:
    reach, rows = mix.reach(_SHARE), len(mix.cells)
    plain = ""
    if mix.whole.over_plain:
        plain = f", {reach.plain} at {_SHARE} of plain decoding{_by_noise(reach.plain_of_equals)}"
    return (
        f"Of {rows} rows {reach.best_fixed} are at {_SHARE} of their best fixed mode or more"
        f"{_by_noise(reach.best_fixed_of_equals)}{plain}; {reach.surely_short} comparisons are "
        "below that with their whole interval."
    )


def _by_noise(rows: float | None) -> str:
    """How many rows would be there by the rounds' noise alone."""
    return "" if rows is None else f" (were both equally fast, noise would leave {rows:.0f} there)"


def widths_table(run: Run) -> Table | None:
    """The widths that an adaptive server chose in each case; None if none told."""
    rows = [
        row
        for case in run.cases
        if (cell := run.cell(str(ADAPTIVE), case)) is not None
        and (row := _widths_row(run, cell)) is not None
    ]
    labels = (*_CASE, "steps by nodes", "best fixed width")
    return Table(labels, tuple(_WIDTH_COLUMNS.values()), rows, compared=2) if rows else None


def _widths_row(run: Run, cell: Cell) -> Row | None:
    uses = [round_.widths for round_ in cell.rounds if round_.widths is not None]
    if not uses:
        return None
    pooled = widths.together(uses)
    best = widths.best_fixed(pooled)
    labels = (
        *_labels(run, cell.case),
        widths.describe_shares(pooled),
        str(best[0] if best else ""),
    )
    return Row(labels, tuple(metric_figure(run, cell, METRICS[name]) for name in _WIDTH_COLUMNS))


def _labels(run: Run, case: Case) -> tuple[str, ...]:
    return (case.workload, f"{case.temperature:g}", str(case.load), f"{_context(run, case):,.0f}")


def _context(run: Run, case: Case) -> float:
    """Mean length of a case's prompts in tokens, as the servers counted them."""
    cell = run.cell(str(ADAPTIVE), case)
    assert cell is not None
    lengths = [answer.prompt_tokens for round_ in cell.rounds for answer in round_.answers]
    return sum(lengths) / len(lengths)


def _name(case: Case) -> str:
    return f"{case.workload}, T={case.temperature:g}, {case.load}"
