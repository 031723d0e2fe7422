"""``dflash2 audit``: the three levels, against running servers or servers of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from dflash_sglang.audit.conditions import GREEDY, Condition, seeded_conditions
from dflash_sglang.audit.endpoint import AuditError, Endpoint
from dflash_sglang.audit.identity import Comparison, IdentityAudit
from dflash_sglang.audit.law import LawAudit, audit_law, default_generations
from dflash_sglang.audit.prompts import OPEN_QUESTIONS, prompts
from dflash_sglang.audit.report import Report, ServerFacts
from dflash_sglang.audit.scope import Level, Scope
from dflash_sglang.audit.tracing import tolerance_for
from dflash_sglang.bench.server import Server, cpu_arguments, running
from dflash_sglang.demo.run import PAIR

_DETERMINISTIC = "--enable-deterministic-inference"


@dataclass(frozen=True)
class Sides:
    """Which servers are compared: two that run, or a pair to start."""

    baseline: str | None = None  # URL
    candidate: str | None = None  # URL
    target: str | None = None  # folder or name of a repository
    drafter: str | None = None
    arguments: list[str] = field(default_factory=list)  # SGLang's, for servers that are started


def audit(sides: Sides, scope: Scope, console: Console) -> Report:
    """Hold the audit on whatever servers were named; the demo pair if none were.

    Raises:
        AuditError: the servers named do not make two sides, or cannot be compared.
    """
    if sides.baseline or sides.candidate:
        if not (sides.baseline and sides.candidate):
            raise AuditError("give both --baseline and --candidate, a server's URL each.")
        if sides.target or sides.drafter or sides.arguments:
            raise AuditError(
                "--baseline and --candidate name servers that run already: expected no --target, "
                f"no --drafter and no flags of SGLang's beside them, got "
                f"{' '.join([*filter(None, (sides.target, sides.drafter)), *sides.arguments])}."
            )
        return audit_running(sides.baseline, sides.candidate, scope, console)
    if bool(sides.target) != bool(sides.drafter):
        raise AuditError("give both --target and --drafter, or neither for the demo pair.")
    if not sides.target and not (PAIR / "target" / "config.json").is_file():
        raise AuditError(
            "nothing to audit: name two running servers with --baseline and --candidate, or a pair "
            "to start with --target and --drafter."
        )
    target, drafter = sides.target or str(PAIR / "target"), sides.drafter or str(PAIR / "drafter")
    return audit_started(target, drafter, [*default_arguments(), *sides.arguments], scope, console)


def audit_running(baseline_url: str, candidate_url: str, scope: Scope, console: Console) -> Report:
    """Audit two servers that somebody else started.

    Raises:
        AuditError: one of them does not answer, or they serve different targets.
    """
    baseline, candidate = Endpoint(baseline_url, "baseline"), Endpoint(candidate_url, "candidate")
    check_comparable(baseline, candidate)
    skipped = []
    levels = scope.levels
    if Level.SEEDED in levels and not (baseline.is_deterministic and candidate.is_deterministic):
        skipped.append(
            f"seeded identity; SGLang honours seeds only if both servers run with {_DETERMINISTIC}."
        )
        levels = tuple(level for level in levels if level is not Level.SEEDED)
    comparisons = _same_tokens(baseline, candidate, levels, scope, console)
    law = _same_law(baseline, candidate, scope, console) if Level.LAW in levels else None
    return _report(baseline, candidate, scope, comparisons, law, skipped)


def audit_started(
    target: str, drafter: str, arguments: list[str], scope: Scope, console: Console
) -> Report:
    """Start the servers, audit them, stop them.

    The first two levels run on deterministic servers, whose seeds count; the law test runs on a
    pair without that flag, as most servers are.

    Args:
        target: the target's checkpoint.
        drafter: the drafter's.
        arguments: further flags of SGLang's, for both servers.
    """
    tokens = tuple(level for level in scope.levels if level is not Level.LAW)
    comparisons: list[Comparison] = []
    law = None
    if tokens:
        with _pair(target, drafter, [*arguments, _DETERMINISTIC], console) as (ours, theirs):
            comparisons = _same_tokens(ours, theirs, tokens, scope, console)
            report = _report(ours, theirs, scope, comparisons, None, [])
    if Level.LAW in scope.levels:
        with _pair(target, drafter, arguments, console) as (ours, theirs):
            law = _same_law(ours, theirs, scope, console)
            report = _report(ours, theirs, scope, comparisons, law, [])
    return report


@contextmanager
def _pair(
    target: str, drafter: str, arguments: list[str], console: Console
) -> Iterator[tuple[Endpoint, Endpoint]]:
    base = ["--model-path", target, *arguments]
    plain = Server(base)
    speculative = Server(
        [*base, "--speculative-algorithm", "dflash2", "--speculative-draft", drafter]
    )
    console.print("Starting two servers, one without speculation and one with dflash2 ...")
    with running(plain, speculative):
        yield Endpoint(plain.url, "baseline"), Endpoint(speculative.url, "candidate")


def default_arguments() -> list[str]:
    """Flags that go before the user's: float32 on the CPU where there is no accelerator."""
    import torch

    if torch.cuda.is_available() or torch.xpu.is_available():
        return []
    return ["--dtype", "float32", *cpu_arguments()]


def check_comparable(baseline: Endpoint, candidate: Endpoint) -> None:
    """Refuse servers whose answers cannot be expected to be the same.

    Raises:
        AuditError: they serve different targets or compute in different dtypes.
    """
    for name in ("model_path", "dtype"):
        ours, theirs = baseline.info.get(name), candidate.info.get(name)
        if ours != theirs:
            raise AuditError(
                f"both servers must run with the same {name.replace('_', ' ')}: the baseline at "
                f"{baseline.url} has {ours!r}, the candidate at {candidate.url} has {theirs!r}."
            )


def _same_tokens(
    baseline: Endpoint,
    candidate: Endpoint,
    levels: tuple[Level, ...],
    scope: Scope,
    console: Console,
) -> list[Comparison]:
    conditions: list[Condition] = []
    if Level.GREEDY in levels:
        conditions.append(GREEDY)
    if Level.SEEDED in levels:
        conditions += seeded_conditions(scope.temperatures)
    if not conditions:
        return []
    encoded = [baseline.encode(text) for text in prompts(scope.prompts)]
    total = len(conditions) * len(scope.concurrencies) * len(encoded)
    found: list[Comparison] = []
    with _progress(console, "Comparing tokens", total) as advance:
        audit = IdentityAudit(
            baseline,
            candidate,
            encoded,
            scope.max_tokens,
            _tolerance(baseline, candidate, scope),
            lambda: advance(1),
        )
        for condition in conditions:
            found += audit.compare(condition, scope.concurrencies)
    return found


def _same_law(baseline: Endpoint, candidate: Endpoint, scope: Scope, console: Console) -> LawAudit:
    generations = scope.generations or default_generations()
    encoded = [baseline.encode(text) for text in OPEN_QUESTIONS]
    with _progress(console, "Sampling both", generations) as advance:
        return audit_law(baseline, candidate, encoded, generations, advance)


def _report(
    baseline: Endpoint,
    candidate: Endpoint,
    scope: Scope,
    comparisons: list[Comparison],
    law: LawAudit | None,
    skipped: list[str],
) -> Report:
    return Report(
        baseline=ServerFacts.of(baseline),
        candidate=ServerFacts.of(candidate),
        tolerance=_tolerance(baseline, candidate, scope),
        prompts=tuple(prompts(scope.prompts)),
        comparisons=tuple(comparisons),
        law=law,
        skipped=tuple(skipped),
    )


def _tolerance(baseline: Endpoint, candidate: Endpoint, scope: Scope) -> float:
    return scope.tolerance or tolerance_for((baseline.dtype, candidate.dtype))


@contextmanager
def _progress(console: Console, what: str, total: int) -> Iterator[Callable[[int], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)
