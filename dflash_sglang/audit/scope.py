"""How much an audit asks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dflash_sglang.audit.conditions import CONCURRENCIES, TEMPERATURES
from dflash_sglang.audit.endpoint import AuditError
from dflash_sglang.audit.prompts import DEFAULT_COUNT


class Level(StrEnum):
    """What is compared."""

    GREEDY = "greedy"
    SEEDED = "seeded"
    LAW = "law"


@dataclass(frozen=True)
class Scope:
    """How much is asked.

    Attributes:
        levels: which of the three.
        prompts: number of prompts of the first two levels.
        max_tokens: greatest length of their answers.
        temperatures: of the seeded level.
        concurrencies: requests at a time that the candidate is asked.
        generations: of the law test; None for as many as find a bias of 2 %.
        tolerance: nats that count as rounding; None for the servers' dtype's.

    Raises:
        AuditError: a temperature that does not sample.
    """

    levels: tuple[Level, ...] = tuple(Level)
    prompts: int = DEFAULT_COUNT
    max_tokens: int = 48
    temperatures: tuple[float, ...] = TEMPERATURES
    concurrencies: tuple[int, ...] = CONCURRENCIES
    generations: int | None = None
    tolerance: float | None = None

    def __post_init__(self) -> None:
        for temperature in self.temperatures:
            if temperature <= 0:
                raise AuditError(f"--temperature expects a number above 0, got {temperature:g}.")


def make_scope(
    *,
    levels: list[str] | None,
    temperatures: list[float] | None,
    concurrencies: list[int] | None,
    **further: Any,
) -> Scope:
    """A scope in the command line's terms: None where a repeatable option was left out.

    Raises:
        AuditError: a level that does not exist, or a temperature that does not sample.
    """
    known = [level.value for level in Level]
    for level in levels or ():
        if level not in known:
            raise AuditError(f"--level expects one of {', '.join(known)}, got {level!r}.")
    return Scope(
        levels=tuple(Level(level) for level in levels or known),
        temperatures=tuple(temperatures or TEMPERATURES),
        concurrencies=tuple(concurrencies or CONCURRENCIES),
        **further,
    )
