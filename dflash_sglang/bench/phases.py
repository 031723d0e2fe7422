"""Where the time of a dflash2 server's decode steps went: draft, verify, commit.

``engine.step_clock`` says what belongs to which. A round's figures are the differences of two
readings of the server's counters.
"""

from __future__ import annotations

from dflash_sglang.bench.counters import Counters
from dflash_sglang.bench.records import PhaseUse

PHASES = ("draft", "verify", "commit")
_STEPS = "dflash2_steps_total"
_MS = "dflash2_phase_milliseconds_total"


def phase_use(counters: Counters | None) -> PhaseUse | None:
    """Steps and times since the server started; None where it does not tell."""
    if counters is None or any(phase not in counters.by_label.get(_MS, {}) for phase in PHASES):
        return None
    return PhaseUse(
        steps=int(sum(counters.by_label[_STEPS].values())),
        ms={phase: counters.by_label[_MS][phase] for phase in PHASES},
    )


def between(before: PhaseUse | None, after: PhaseUse | None) -> PhaseUse | None:
    """What was counted from one reading to the next; None if nothing was."""
    if after is None:
        return None
    if before is None:  # its counters appear with its first step
        before = PhaseUse(steps=0, ms=dict.fromkeys(PHASES, 0.0))
    if after.steps <= before.steps:
        return None
    return PhaseUse(
        steps=after.steps - before.steps,
        ms={phase: after.ms[phase] - before.ms[phase] for phase in PHASES},
    )


def step_share_ms(use: PhaseUse, phase: str) -> float:
    """Milliseconds of a phase in a step, on average."""
    return use.ms[phase] / use.steps
