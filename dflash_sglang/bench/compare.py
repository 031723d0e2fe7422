"""``dflash2 bench compare``: what changed between two runs, and whether beyond noise."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from dflash_sglang.bench import metrics, statistics
from dflash_sglang.bench.errors import BenchError
from dflash_sglang.bench.metrics import METRICS, Metric
from dflash_sglang.bench.records import Case, Run
from dflash_sglang.bench.statistics import Change

_SETUP = (
    *("target", "drafter", "max_tokens", "prompts", "prompts_per_user", "least_prompts"),
    *("rounds", "seed", "keeps_cache", "starts"),
)
COMPARED = ("tokens_per_s", "tokens_per_s_per_user", "accept_length", "ttft_p50", "itl_p95")


class Difference(NamedTuple):
    """One metric of one cell in both runs."""

    mode: str
    case: Case
    metric: Metric
    change: Change

    @property
    def verdict(self) -> str:
        """``better``, ``worse``, ``within noise`` or, after a single round, ``unknown``."""
        if self.change.beyond_noise is None:
            return "unknown"
        if not self.change.beyond_noise:
            return "within noise"
        grew = self.change.ratio > 1
        return "better" if grew == self.metric.higher_is_better else "worse"


def differences(before: Run, after: Run) -> list[Difference]:
    """Every metric that both runs have.

    Raises:
        BenchError: the runs have no case and mode in common.
    """
    found = list(_differences(before, after))
    if not found:
        raise BenchError(
            "the two runs have no mode in common in any case (workload, temperature, load): "
            f"{_contents(before)} against {_contents(after)}."
        )
    return found


def conditions(before: Run, after: Run) -> list[str]:
    """What is not alike beside the figures, a sentence each: machine, versions, setup."""
    lines = []
    if before.measured.machine != after.measured.machine:
        lines.append(f"machine: {before.measured.machine} -> {after.measured.machine}")
    old, new = before.measured.versions, after.measured.versions
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            lines.append(f"{name}: {old.get(name)} -> {new.get(name)}")
    for field in _SETUP:
        values = getattr(before.setup, field), getattr(after.setup, field)
        if values[0] != values[1]:
            lines.append(f"{field}: {values[0]} -> {values[1]}")
    for mode in dict.fromkeys((*before.setup.modes, *after.setup.modes)):
        old_server, new_server = before.setup.modes.get(mode), after.setup.modes.get(mode)
        if old_server is None or new_server is None:
            lines.append(f"mode {mode}: only in the {'second' if new_server else 'first'} run")
        elif _flags(old_server) != _flags(new_server):
            lines.append(f"mode {mode}: {_flags(old_server)} -> {_flags(new_server)}")
    return lines


def _differences(before: Run, after: Run) -> Iterator[Difference]:
    for case in after.cases:
        for mode in after.modes:
            old, new = before.cell(mode, case), after.cell(mode, case)
            if old is None or new is None:
                continue
            for name in COMPARED:
                samples = [metrics.samples(cell, METRICS[name]) for cell in (old, new)]
                if all(samples):
                    yield Difference(mode, case, METRICS[name], statistics.change(*samples))


def _flags(server: str) -> str:
    """A server's command without what differs at every start."""
    return re.sub(r" --port \S+", "", server)


def _contents(run: Run) -> str:
    workloads = {case.workload for case in run.cases}
    return f"{', '.join(run.modes)} on {', '.join(sorted(workloads))}"
