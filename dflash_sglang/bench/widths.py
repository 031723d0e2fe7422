"""What a server that chooses its widths says of them on its /metrics page.

The server counts its decode steps by the nodes that they verified, the tokens and milliseconds that
its policy promised, those that came, and what every width would have brought had it been kept. A
round's figures are the differences of two readings.
"""

from __future__ import annotations

from dflash_sglang.bench.counters import Counters
from dflash_sglang.bench.records import WidthUse

_STEPS = "dflash2_steps_total"
_PROMISED_TOKENS = "dflash2_promised_tokens_total"
_PROMISED_MS = "dflash2_promised_milliseconds_total"
_TOKENS = "dflash2_tokens_total"
_MS = "dflash2_milliseconds_total"
_FIXED_TOKENS = "dflash2_fixed_tokens_total"
_FIXED_MS = "dflash2_fixed_milliseconds_total"
_CHOOSING_MS = "dflash2_choosing_milliseconds_total"


def width_use(counters: Counters | None) -> WidthUse | None:
    """The counts since the server started; None where it chooses no widths, or does not tell.

    Ranks count the same steps each; what is told of them are shares and rates.
    """
    if counters is None or _MS not in counters.sums:
        return None

    def by_nodes(name: str) -> dict[int, float]:
        return {int(nodes): value for nodes, value in counters.by_label.get(name, {}).items()}

    return WidthUse(
        steps={nodes: int(count) for nodes, count in sorted(by_nodes(_STEPS).items())},
        promised_tokens=counters.sums[_PROMISED_TOKENS],
        promised_ms=counters.sums[_PROMISED_MS],
        tokens=counters.sums[_TOKENS],
        ms=counters.sums[_MS],
        fixed_tokens=dict(sorted(by_nodes(_FIXED_TOKENS).items())),
        fixed_ms=dict(sorted(by_nodes(_FIXED_MS).items())),
        choosing_ms=counters.sums.get(_CHOOSING_MS),
    )


def between(before: WidthUse | None, after: WidthUse | None) -> WidthUse | None:
    """What was counted from one reading to the next; None without both, or if nothing was."""
    if before is None or after is None or after.ms <= before.ms:
        return None
    return _combined(after, before, -1)


def together(uses: list[WidthUse]) -> WidthUse:
    """Several rounds as one."""
    total, *others = uses
    for use in others:
        total = _combined(total, use, 1)
    return total


def shares(use: WidthUse) -> dict[int, float]:
    """Share of the steps at each width."""
    total = sum(use.steps.values())
    return {nodes: count / total for nodes, count in use.steps.items()} if total else {}


def mean_nodes(use: WidthUse) -> float | None:
    """Nodes that a step verified for each request, on average."""
    found = shares(use)
    return sum(nodes * share for nodes, share in found.items()) if found else None


def promised_per_s(use: WidthUse) -> float | None:
    """Tokens a second of decoding that the policy expected of its steps."""
    return _per_s(use.promised_tokens, use.promised_ms)


def observed_per_s(use: WidthUse) -> float | None:
    """Tokens a second of decoding that came; prefill is not in it."""
    return _per_s(use.tokens, use.ms)


def best_fixed(use: WidthUse) -> tuple[int, float] | None:
    """The width that was expected to be best if kept, and its tokens a second."""
    rates = {
        nodes: rate
        for nodes, tokens in use.fixed_tokens.items()
        if (rate := _per_s(tokens, use.fixed_ms.get(nodes, 0.0))) is not None
    }
    return max(rates.items(), key=lambda entry: entry[1], default=None)


def regret(use: WidthUse) -> float | None:
    """Percentage by which the best fixed width was expected to beat what the policy expected.

    Negative where choosing anew at every step was expected to beat every fixed width
    (``adaptive.telemetry.WidthLog`` defines it).
    """
    best, ours = best_fixed(use), promised_per_s(use)
    return None if best is None or ours is None or not best[1] else 100 * (1 - ours / best[1])


def choosing(use: WidthUse) -> float | None:
    """Percentage of the decoding time that choosing the widths took; None if it was not told."""
    return None if use.choosing_ms is None or not use.ms else 100 * use.choosing_ms / use.ms


def describe_shares(use: WidthUse) -> str:
    """Widths with at least one step in a hundred, such as ``1: 20 %, 8: 79 %``."""
    parts = [f"{n}: {share:.0%}" for n, share in shares(use).items() if share >= 0.01]
    return ", ".join(parts).replace("%", " %")


def _per_s(tokens: float, milliseconds: float) -> float | None:
    return 1000 * tokens / milliseconds if milliseconds > 0 else None


def _combined(first: WidthUse, second: WidthUse, sign: int) -> WidthUse:
    def merged(ours: dict[int, float], its: dict[int, float]) -> dict[int, float]:
        every = sorted({*ours, *its})
        return {n: ours.get(n, 0.0) + sign * its.get(n, 0.0) for n in every}

    choosing_ms = None
    if first.choosing_ms is not None and second.choosing_ms is not None:
        choosing_ms = first.choosing_ms + sign * second.choosing_ms
    steps = {n: first.steps.get(n, 0) + sign * second.steps.get(n, 0) for n in first.steps}
    steps |= {n: sign * count for n, count in second.steps.items() if n not in steps}
    return WidthUse(
        steps={nodes: count for nodes, count in sorted(steps.items()) if count},
        promised_tokens=first.promised_tokens + sign * second.promised_tokens,
        promised_ms=first.promised_ms + sign * second.promised_ms,
        tokens=first.tokens + sign * second.tokens,
        ms=first.ms + sign * second.ms,
        fixed_tokens=merged(first.fixed_tokens, second.fixed_tokens),
        fixed_ms=merged(first.fixed_ms, second.fixed_ms),
        choosing_ms=choosing_ms,
    )
