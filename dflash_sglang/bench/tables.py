"""Tables of figures, as Markdown and as HTML, that cannot hide where a figure comes from."""

from __future__ import annotations

import html
from typing import NamedTuple

from dflash_sglang.bench.errors import ProvenanceError
from dflash_sglang.bench.provenance import Figure, describe, kind_of

_MISSING = "–"  # noqa: RUF001, an empty cell


class Row(NamedTuple):
    """What is compared, and its figures; None where there is none."""

    labels: tuple[str, ...]
    figures: tuple[Figure | None, ...]

    @property
    def kinds(self) -> set[str]:
        """Kinds of provenance among the figures."""
        return {kind_of(figure.provenance) for figure in self.figures if figure is not None}


class Table(NamedTuple):
    """Rows of one meaning; ``units`` are read off the figures."""

    label_columns: tuple[str, ...]
    figure_columns: tuple[str, ...]
    rows: list[Row]
    compared: int | None = None  # leading labels that rows share which are compared; all but one


class Grid(NamedTuple):
    """A table as text."""

    header: list[str]
    lines: list[list[str]]
    labels: int  # leading columns that name a row


def markdown(table: Table, *, provenance: bool = False) -> str:
    """The table in Markdown; ``provenance`` adds the column that says where each row is from.

    Raises:
        ProvenanceError: see :func:`layout`.
    """
    grid = layout(table, provenance=provenance)
    rule = ["---"] * grid.labels + ["---:"] * (len(grid.header) - grid.labels)
    if provenance:
        rule[-1] = "---"
    lines = [grid.header, rule, *grid.lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def as_html(table: Table, *, provenance: bool = False) -> str:
    """The table as an HTML element; ``provenance`` as for :func:`markdown`."""
    grid = layout(table, provenance=provenance)
    last = len(grid.header) - 1

    def cell(tag: str, column: int, text: str) -> str:
        names = column < grid.labels or (provenance and column == last)
        return f"<{tag}{'' if names else ' class=number'}>{html.escape(text)}</{tag}>"

    def row(tag: str, line: list[str], first: bool = False) -> str:
        cells = "".join(cell(tag, i, text) for i, text in enumerate(line))
        return f"<tr{' class=first' if first else ''}>{cells}</tr>"

    lines = []
    above: list[str] = []
    for line in grid.lines:
        # A rule stands between comparisons, whose rows mostly differ in the last label only.
        compared = line[: grid.labels - 1 if table.compared is None else table.compared]
        lines.append(row("td", line, first=compared != above))
        above = compared
    body = "\n".join(lines)
    return (
        f"<table>\n<thead>{row('th', grid.header)}</thead>\n<tbody>\n{body}\n</tbody>\n</table>\n"
    )


def layout(table: Table, *, provenance: bool) -> Grid:
    """Cells as text.

    Raises:
        ProvenanceError: a row mixes measured, published and projected figures, or the rows differ
            in that and ``provenance`` is off.
    """
    for row in table.rows:
        if len(row.kinds) > 1:
            raise ProvenanceError(
                f"the row {' / '.join(row.labels)} mixes {' and '.join(sorted(row.kinds))} "
                "figures: give each kind a row of its own."
            )
    kinds = {kind for row in table.rows for kind in row.kinds}
    if len(kinds) > 1 and not provenance:
        raise ProvenanceError(
            f"the table mixes {' and '.join(sorted(kinds))} figures: draw it with its provenance "
            "column."
        )
    columns = [_column(table, index) for index in range(len(table.figure_columns))]
    header = [*table.label_columns, *columns, *(["provenance"] if provenance else [])]
    lines = [
        [
            *row.labels,
            *(_MISSING if figure is None else figure.text() for figure in row.figures),
            *([_origin(row)] if provenance else []),
        ]
        for row in table.rows
    ]
    return Grid(header, lines, len(table.label_columns))


def _column(table: Table, index: int) -> str:
    units = {row.figures[index].unit for row in table.rows if row.figures[index] is not None}  # type: ignore[union-attr]
    name = table.figure_columns[index]
    if len(units) > 1:
        raise ValueError(f"the column {name} mixes the units {sorted(units)}")
    unit = units.pop() if units else ""
    return f"{name} ({unit})" if unit else name


def _origin(row: Row) -> str:
    origins = {describe(figure.provenance): None for figure in row.figures if figure is not None}
    return "; ".join(origins)
