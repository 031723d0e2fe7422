"""Where a figure comes from. No figure exists without it, so that kinds are never mixed unseen.

Three kinds: *measured* here, *published* by somebody, *projected* by a formula. They are types, not
labels: a :class:`Figure` cannot be constructed, decoded from JSON or drawn without one of them.
"""

from __future__ import annotations

import msgspec

from dflash_sglang.bench.errors import ProvenanceError

_LOPSIDED = 0.25  # of half an interval, that its middle may be off the value


class Measured(msgspec.Struct, frozen=True, tag="measured", tag_field="kind", kw_only=True):
    """Observed on a machine by a command that can be run again."""

    machine: str  # processor, cores, accelerators
    versions: dict[str, str]  # package -> version
    command: str
    date: str  # ISO 8601, UTC

    def __post_init__(self) -> None:
        _require("a measured figure", machine=self.machine, command=self.command)


class Published(msgspec.Struct, frozen=True, tag="published", tag_field="kind", kw_only=True):
    """Quoted from a document; the measuring, if any, was its authors'."""

    source: str

    def __post_init__(self) -> None:
        _require("a published figure", source=self.source)


class Projected(msgspec.Struct, frozen=True, tag="projected", tag_field="kind", kw_only=True):
    """Computed from a formula; true as far as its inputs and its assumptions are."""

    formula: str
    inputs: dict[str, float]

    def __post_init__(self) -> None:
        _require("a projected figure", formula=self.formula)


Provenance = Measured | Published | Projected


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A number that may be shown to somebody."""

    value: float
    unit: str  # "" for a pure number
    provenance: Provenance
    interval: tuple[float, float] | None = None  # 95 % confidence

    def text(self, digits: int = 3) -> str:
        """The value to ``digits`` significant digits, with half the interval's width.

        Or with its ends, where the value lies far from the middle.
        """
        if self.interval is None:
            return significant(self.value, digits)
        low, high = self.interval
        value, half = significant(self.value, digits), (high - low) / 2
        if abs((high + low) / 2 - self.value) > _LOPSIDED * half:
            return f"{value} ({significant(low, digits)} to {significant(high, digits)})"
        return f"{value} ± {significant(half, 2)}"


def kind_of(provenance: Provenance) -> str:
    """``measured``, ``published`` or ``projected``."""
    return str(type(provenance).__struct_config__.tag)


def describe(provenance: Provenance) -> str:
    """One line that stands beside a figure."""
    match provenance:
        case Measured():
            return f"measured {provenance.date[:10]} on {provenance.machine}"
        case Published():
            return f"published: {provenance.source}"
        case Projected():
            inputs = ", ".join(f"{name} = {x:.6g}" for name, x in provenance.inputs.items())
            return f"projected: {provenance.formula}; {inputs}"


def significant(value: float, digits: int) -> str:
    """Decimal notation with at least ``digits`` significant digits, without an exponent."""
    if value == 0:
        return "0"
    magnitude = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    if magnitude:
        return f"{value:.{max(0, digits - magnitude)}f}"
    return f"{float(f'{value:.{digits}g}'):.{digits + 3}f}".rstrip("0").rstrip(".")


def _require(what: str, **fields: str) -> None:
    for name, value in fields.items():
        if not value.strip():
            raise ProvenanceError(f"{what} needs its {name}; it was empty.")
