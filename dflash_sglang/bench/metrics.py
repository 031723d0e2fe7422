"""Figures of a round, computed from its answers alone.

Every definition stands here once. A *step* is one decode forward of the target; with speculation it
verifies a draft and commits several tokens, which reach the client together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from dflash_sglang.bench import phases, widths
from dflash_sglang.bench.records import Answer, Cell, Round, WidthUse

_MS = 1000.0


class Metric(NamedTuple):
    """One figure of a round; None where the server did not report what it needs."""

    name: str
    unit: str
    meaning: str
    higher_is_better: bool
    of: Callable[[Round], float | None]


def tokens_per_s(round_: Round) -> float:
    """Output tokens of all requests per second of wall time, prefill included."""
    return sum(answer.tokens for answer in round_.answers) / round_.wall_s


def tokens_per_s_per_user(round_: Round) -> float | None:
    """Mean over the requests of the rate behind the first chunk: what one reader sees."""
    rates = [
        sum(answer.chunk_tokens[1:]) / (answer.chunk_s[-1] - answer.chunk_s[0])
        for answer in round_.answers
        if len(answer.chunk_s) > 1
    ]
    return float(np.mean(rates)) if rates else None


def accept_length(round_: Round) -> float | None:
    """Tokens committed per verify step, bonus token included; the first token is the prefill's."""
    speculated = [answer for answer in round_.answers if answer.verify_steps]
    steps = sum(answer.verify_steps for answer in speculated)
    return sum(answer.tokens - 1 for answer in speculated) / steps if steps else None


def step_ms(round_: Round) -> float | None:
    """Mean time of a decode step: time behind the first chunk over the steps in it."""
    seconds = sum(answer.chunk_s[-1] - answer.chunk_s[0] for answer in round_.answers)
    # Without speculation a step is a token; the first chunk came from the prefill.
    steps = sum(answer.verify_steps or answer.tokens - 1 for answer in round_.answers)
    return _MS * seconds / steps if steps and seconds > 0 else None


def token_gaps_ms(answers: Iterable[Answer]) -> np.ndarray:
    """Inter-token latency of every token behind the first chunk.

    The tokens of a chunk arrive together; each is charged an equal share of the wait for the chunk,
    so that the mean is the reader's pace. :func:`chunk_gaps_ms` has the waits themselves.
    """
    gaps = [
        np.repeat(np.diff(answer.chunk_s) / answer.chunk_tokens[1:], answer.chunk_tokens[1:])
        for answer in answers
        if len(answer.chunk_s) > 1
    ]
    return _MS * np.concatenate(gaps) if gaps else np.empty(0)


def chunk_gaps_ms(answers: Iterable[Answer]) -> np.ndarray:
    """Waits between chunks: how long the text stands still."""
    gaps = [np.diff(answer.chunk_s) for answer in answers if len(answer.chunk_s) > 1]
    return _MS * np.concatenate(gaps) if gaps else np.empty(0)


def accept_histogram(rounds: Sequence[Round]) -> np.ndarray:
    """[j]: verify steps that accepted j drafted tokens, over all requests; empty if unreported."""
    histograms = [answer.accept_histogram for round_ in rounds for answer in round_.answers]
    total = np.zeros(max(map(len, histograms), default=0), dtype=np.int64)
    for histogram in histograms:
        total[: len(histogram)] += np.asarray(histogram, dtype=np.int64)
    return total


def accept_by_position(histogram: np.ndarray) -> np.ndarray:
    """[j - 1]: share of verify steps that accepted at least j drafted tokens."""
    at_least = histogram[::-1].cumsum()[::-1]
    return at_least[1:] / at_least[0] if histogram.sum() else np.empty(0)


def equal_answers(cell: Cell, reference: Cell) -> tuple[int, int]:
    """How many answers have the reference's text, of how many that both gave.

    In the same round, to the same prompt and turn, with the same seed.
    """
    pairs = [
        (mine.digest, theirs.digest)
        for ours, other in zip(cell.rounds, reference.rounds, strict=False)
        for mine, theirs in zip(ours.answers, other.answers, strict=True)
    ]
    return sum(mine == theirs for mine, theirs in pairs), len(pairs)


def _percentile(
    values: Callable[[Sequence[Answer]], np.ndarray], percent: float
) -> Callable[[Round], float | None]:
    def of(round_: Round) -> float | None:
        sample = values(round_.answers)
        return float(np.percentile(sample, percent)) if sample.size else None

    return of


def _first_token_ms(answers: Sequence[Answer]) -> np.ndarray:
    return _MS * np.array([answer.first_token_s for answer in answers])


def _joules_per_token(round_: Round) -> float | None:
    tokens = sum(answer.tokens for answer in round_.answers)
    return None if round_.energy_j is None else round_.energy_j / tokens


def _of_widths(figure: Callable[[WidthUse], float | None]) -> Callable[[Round], float | None]:
    return lambda round_: None if round_.widths is None else figure(round_.widths)


def _of_phase(phase: str) -> Metric:
    def of(round_: Round) -> float | None:
        return None if round_.phases is None else phases.step_share_ms(round_.phases, phase)

    return Metric(f"{phase}_ms", "ms", f"{phase} in a decode step, server's count", False, of)


def _kv_tokens(round_: Round) -> float | None:
    return None if round_.kv_tokens is None else float(round_.kv_tokens)


def _percentiles(
    prefix: str, meaning: str, values: Callable[[Sequence[Answer]], np.ndarray]
) -> list[Metric]:
    return [
        Metric(f"{prefix}_p{p}", "ms", f"{meaning}, p{p}", False, _percentile(values, p))
        for p in (50, 95, 99)
    ]


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("tokens_per_s", "tok/s", "output tokens of all users", True, tokens_per_s),
        Metric("tokens_per_s_per_user", "tok/s", "pace of one reader", True, tokens_per_s_per_user),
        Metric("accept_length", "", "tokens per verify step", True, accept_length),
        Metric("step_ms", "ms", "mean time of a decode step", False, step_ms),
        *(_of_phase(phase) for phase in phases.PHASES),
        *_percentiles("ttft", "time to first token", _first_token_ms),
        *_percentiles("itl", "inter-token latency", token_gaps_ms),
        *_percentiles("gap", "wait between chunks", chunk_gaps_ms),
        Metric("joules_per_token", "J", "energy of the machine", False, _joules_per_token),
        Metric("kv_tokens", "slots", "most KV slots in use", False, _kv_tokens),
        Metric(
            "nodes", "", "verified for a request in a step", False, _of_widths(widths.mean_nodes)
        ),
        Metric(
            "promised_per_s",
            "tok/s",
            "decoding, as the width policy expected it",
            True,
            _of_widths(widths.promised_per_s),
        ),
        Metric(
            "observed_per_s",
            "tok/s",
            "decoding, as the server counted it",
            True,
            _of_widths(widths.observed_per_s),
        ),
        Metric(
            "regret",
            "%",
            "of the chosen widths against the best fixed one, expected",
            False,
            _of_widths(widths.regret),
        ),
        Metric(
            "choosing", "%", "of decoding, for choosing widths", False, _of_widths(widths.choosing)
        ),
    )
}


def samples(cell: Cell, metric: Metric) -> list[float]:
    """The metric in each round of a cell; empty if any round lacks it."""
    values = [metric.of(round_) for round_ in cell.rounds]
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) else []
