"""What an audit found: one value, shown as text, JSON or a page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from dflash_sglang.audit.endpoint import Endpoint
from dflash_sglang.audit.identity import Comparison, Difference
from dflash_sglang.audit.law import BIAS, DISTANCE, POWER, LawAudit
from dflash_sglang.audit.tracing import DEFECT


@dataclass(frozen=True)
class ServerFacts:
    """One of the two servers, as it describes itself."""

    url: str
    model: str
    dtype: str
    device: str
    algorithm: str | None
    draft_tokens: int | None
    is_deterministic: bool
    sglang: str

    @classmethod
    def of(cls, server: Endpoint) -> ServerFacts:
        """Ask the server."""
        info = server.info
        return cls(
            url=server.url,
            model=str(info.get("model_path")),
            dtype=server.dtype,
            device=str(info.get("device")),
            algorithm=server.algorithm,
            draft_tokens=info.get("speculative_num_draft_tokens"),
            is_deterministic=server.is_deterministic,
            sglang=str(info.get("version")),
        )

    @property
    def mode(self) -> str:
        """How it decodes, in a few words."""
        if self.algorithm is None:
            return "plain decoding"
        return f"{self.algorithm.lower()}, {self.draft_tokens} nodes a step"


@dataclass(frozen=True)
class Report:
    """Everything an audit found.

    Attributes:
        tolerance: what was taken for rounding, in nats.
        comparisons: levels one and two, a pass over the prompts each.
        law: level three, None if it was not asked for.
        skipped: what was not checked and why, a sentence each.
    """

    baseline: ServerFacts
    candidate: ServerFacts
    tolerance: float
    prompts: tuple[str, ...]
    comparisons: tuple[Comparison, ...]
    law: LawAudit | None
    skipped: tuple[str, ...]

    @property
    def defects(self) -> int:
        """Differences that rounding does not explain, and a failed law test."""
        found = sum(comparison.defects for comparison in self.comparisons)
        return found + (self.law is not None and not self.law.passes)

    @property
    def ties(self) -> int:
        return sum(comparison.ties for comparison in self.comparisons)

    @property
    def verdict(self) -> str:
        """The outcome in one sentence."""
        if self.defects:
            return f"DEFECT: {_count(self.defects, 'finding')} that rounding does not explain."
        if self.ties:
            return f"Lossless: {_count(self.ties, 'difference')}, each a tie within rounding."
        return "Lossless: no difference was found."

    def as_json(self) -> str:
        """The report as JSON, with the verdict and the counts of every comparison."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        for entry, comparison in zip(fields["comparisons"], self.comparisons, strict=True):
            entry["label"] = comparison.condition.label
            entry["identical"] = comparison.identical
            entry["ties"] = comparison.ties
            entry["defects"] = comparison.defects
        if self.law is not None:
            fields["law"]["passes"] = self.law.passes
        summary = {"verdict": self.verdict, "defects": self.defects, "ties": self.ties}
        return msgspec.json.format(msgspec.json.encode({**summary, **fields})).decode() + "\n"

    def print_to(self, console: Console) -> None:
        """The report as text."""
        for role, facts in (("baseline", self.baseline), ("candidate", self.candidate)):
            console.print(
                f"{role}: {facts.model}, {facts.mode}, {facts.dtype} on {facts.device} at "
                f"{facts.url}",
                highlight=False,
            )
        if self.comparisons:
            console.print(_identity_table(self.comparisons))
        for comparison, difference in self.differences():
            console.print(f"- {describe(comparison, difference)}", highlight=False)
        if self.law is not None:
            console.print(_law_table(self.law))
            console.print(describe_power(self.law), highlight=False)
        for sentence in self.skipped:
            console.print(f"Not checked: {sentence}", highlight=False)
        console.print(self.verdict, style="bold red" if self.defects else "bold green")

    def differences(self) -> list[tuple[Comparison, Difference]]:
        """Every difference that was followed, defects first."""
        found = [
            (comparison, difference)
            for comparison in self.comparisons
            for difference in comparison.differences
        ]
        return sorted(found, key=lambda pair: pair[1].cause.verdict != DEFECT)


def write(report: Report, json: Path | None, html: Path | None) -> None:
    """Write the report to the files that were asked for."""
    from dflash_sglang.audit.page import render

    if json is not None:
        json.write_text(report.as_json(), encoding="utf-8")
    if html is not None:
        html.write_text(render(report), encoding="utf-8")


def describe(comparison: Comparison, difference: Difference) -> str:
    """One difference in one line."""
    cause = difference.cause
    where = (
        f"{cause.verdict}: prompt {difference.prompt}, token {difference.position} "
        f"({comparison.condition.label}, concurrency {comparison.concurrency})"
    )
    if cause.baseline_gap is None or cause.candidate_gap is None:
        return f"{where}: {cause.reason}"
    return (
        f"{where}: baseline {difference.baseline_token}, candidate {difference.candidate_token}; "
        f"logit gap {cause.baseline_gap:+.3g} as the baseline has it, {cause.candidate_gap:+.3g} "
        f"as the candidate has it; {cause.reason}"
    )


def describe_power(law: LawAudit) -> str:
    """What the law test could have found."""
    seeds = "a seed of its own for each" if law.own_seeds else "no seeds"
    return (
        f"{law.generations} generations a server, {seeds}. Servers of one law fail this level with "
        f"chance {law.error_rate:g}. An engine that accepts drafted tokens which were not drawn is "
        f"found with chance {POWER:g} from a bias of {law.smallest_bias:.1%} on, if the drafted "
        f"tokens' chi-square distance from the target's law is {DISTANCE:g} (aim: {BIAS:.0%})."
    )


def _identity_table(comparisons: tuple[Comparison, ...]) -> Table:
    table = Table("condition", title="The same tokens")
    for name in ("concurrency", "tokens", "accept length", "identical", "ties", "defects"):
        table.add_column(name, justify="right")
    for row in identity_rows(comparisons):
        table.add_row(*row)
    return table


def identity_rows(comparisons: tuple[Comparison, ...]) -> list[tuple[str, ...]]:
    """Cells of the table of levels one and two."""
    return [
        (
            comparison.condition.label,
            str(comparison.concurrency),
            str(comparison.tokens),
            "" if comparison.accept_length is None else f"{comparison.accept_length:.2f}",
            f"{comparison.identical}/{comparison.prompts}",
            str(comparison.ties),
            str(comparison.defects),
        )
        for comparison in comparisons
    ]


def _law_table(law: LawAudit) -> Table:
    table = Table("test", title="The same law")
    for name in ("bins", "observations", "chi-square", "freedom", "p", "fails below", "verdict"):
        table.add_column(name, justify="right")
    for row in law_rows(law):
        table.add_row(*row)
    return table


def law_rows(law: LawAudit) -> list[tuple[str, ...]]:
    """Cells of the table of level three."""
    return [
        (
            test.name,
            str(test.result.bins),
            str(sum(test.result.observations)),
            f"{test.result.statistic:.1f}",
            f"{test.result.freedom:.1f}",
            f"{test.result.p_value:.3g}",
            f"{test.threshold:.2g}",
            "pass" if test.passes else "FAIL",
        )
        for test in law.tests
    ]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
