"""No figure without an origin, and no table that hides a difference of origin."""

import msgspec
import pytest

from dflash_sglang.bench.errors import ProvenanceError
from dflash_sglang.bench.provenance import (
    Figure,
    Measured,
    Projected,
    Published,
    describe,
    significant,
)
from dflash_sglang.bench.tables import Row, Table, as_html, markdown
from tests.unit.bench_runs import MEASURED

PUBLISHED = Published(source="a paper, table 2")
PROJECTED = Projected(formula="W / M", inputs={"W": 608e9, "M": 38.5e9})


def figure(provenance, value: float = 15.79) -> Figure:
    return Figure(value=value, unit="tok/s", provenance=provenance)


def table(*rows: tuple) -> Table:
    return Table(
        ("model",),
        ("rate",) * len(rows[0]),
        [Row((f"row {i}",), figures) for i, figures in enumerate(rows)],
    )


def test_a_figure_cannot_be_made_without_provenance():
    with pytest.raises(TypeError, match="provenance"):
        Figure(value=1.0, unit="")  # type: ignore[call-arg]


@pytest.mark.parametrize("lost", ["provenance", "kind", "machine", "command"])
def test_a_figure_that_lost_its_provenance_cannot_be_read(lost):
    document = msgspec.json.decode(msgspec.json.encode(figure(MEASURED)))
    if lost == "provenance":
        del document["provenance"]
    else:
        del document["provenance"][lost]
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(document, Figure)


@pytest.mark.parametrize("provenance", [MEASURED, PUBLISHED, PROJECTED])
def test_a_figure_survives_json(provenance):
    made = figure(provenance)
    assert msgspec.json.decode(msgspec.json.encode(made), type=Figure) == made


def test_an_empty_source_is_refused():
    with pytest.raises(ProvenanceError, match="source"):
        Published(source=" ")
    with pytest.raises(ProvenanceError, match="command"):
        Measured(machine="m", versions={}, command="", date="2026-01-01")


def test_a_table_of_one_kind_needs_no_column():
    assert "15.8" in markdown(table((figure(MEASURED),), (figure(MEASURED),)))


@pytest.mark.parametrize("draw", [markdown, as_html])
def test_mixed_kinds_are_refused_without_their_column(draw):
    mixed = table((figure(MEASURED),), (figure(PUBLISHED),), (figure(PROJECTED),))
    with pytest.raises(ProvenanceError, match="provenance column"):
        draw(mixed)
    drawn = draw(mixed, provenance=True)
    for provenance in (MEASURED, PUBLISHED, PROJECTED):
        assert describe(provenance) in drawn


def test_a_row_that_mixes_kinds_is_always_refused():
    mixed = table((figure(MEASURED), figure(PROJECTED)))
    with pytest.raises(ProvenanceError, match="row of its own"):
        markdown(mixed, provenance=True)


def test_a_column_has_one_unit():
    rows = table((figure(MEASURED),), (Figure(value=1.0, unit="ms", provenance=MEASURED),))
    with pytest.raises(ValueError, match="units"):
        markdown(rows)


def test_html_is_escaped():
    rows = Table(("model",), ("rate",), [Row(("<b>",), (figure(MEASURED),))])
    assert "<b>" not in as_html(rows)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1234.5, "1234"),
        (61.66, "61.7"),
        (3.9049, "3.90"),
        (0.01234, "0.0123"),
        (-2.5, "-2.50"),
    ],
)
def test_numbers_have_three_significant_digits(value, text):
    assert significant(value, 3) == text


def test_an_interval_is_shown_as_half_its_width():
    shown = Figure(value=100.0, unit="", provenance=MEASURED, interval=(95.0, 105.0))
    assert shown.text() == "100 ± 5.0"


def test_an_interval_that_lies_to_one_side_of_its_value_is_told_by_its_ends():
    shown = Figure(value=1.0, unit="x", provenance=MEASURED, interval=(0.25, 1.02))
    assert shown.text() == "1.00 (0.25 to 1.02)"
