"""Level three: without a common seed, both servers' output follows one law."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random

import numpy as np

from dflash_sglang.audit.conditions import Condition
from dflash_sglang.audit.endpoint import Answer, Endpoint, Question
from dflash_sglang.audit.homogeneity import (
    Homogeneity,
    compare_samples,
    detectable_bias,
    observations_for,
)

ERROR_RATE = 1e-3
POWER = 0.99
BIAS = 0.02
DISTANCE = 3.0  # D of homogeneity.py
TOKENS = 16  # of one generation
_CONDITION = Condition(temperature=1.0)
_CALL = 64  # generations asked for at once
_SURPRISE_BINS = 16


@dataclass(frozen=True)
class LawTest:
    """One table of counts, compared."""

    name: str
    result: Homogeneity
    threshold: float

    @property
    def passes(self) -> bool:
        return self.result.p_value > self.threshold


@dataclass(frozen=True)
class LawAudit:
    """Outcome of level three.

    Attributes:
        generations: of each server.
        own_seeds: the servers are deterministic, so every request brought a seed of its own.
        error_rate: chance that servers of one law fail, all tests together.
        smallest_bias: chance of accepting a token that was not drawn which this sample reveals, if
            the drafted tokens' law is ``DISTANCE`` away from the target's; with chance ``POWER``.
    """

    generations: int
    own_seeds: bool
    error_rate: float
    smallest_bias: float
    tests: tuple[LawTest, ...]

    @property
    def passes(self) -> bool:
        return all(test.passes for test in self.tests)


class Sample:
    """Generations of one server behind a few prompts.

    Args:
        answers: n generations of each prompt, prompt after prompt.
        prompts: number of prompts.
    """

    def __init__(self, answers: list[Answer], prompts: int) -> None:
        self.prompts = np.repeat(np.arange(prompts), len(answers) // prompts)  # [n]
        self.tokens = _padded([answer.token_ids for answer in answers], -1).astype(np.int64)
        self.log_probs = _padded([answer.log_probs for answer in answers], np.nan)

    def first_tokens(self, width: int) -> np.ndarray:
        """[n, 2] prompt, place and token, of the prefill's token and the first one verified."""
        start = self.tokens[:, :2]
        places = self.prompts[:, None] * 2 + np.arange(2)
        return np.where(start < 0, -1, places * width + start)

    def bigrams(self, width: int) -> np.ndarray:
        """[n, TOKENS - 1] two tokens in a row."""
        left, right = self.tokens[:, :-1], self.tokens[:, 1:]
        return np.where(right < 0, -1, left * width + right)

    def surprise(self) -> np.ndarray:
        """[n, TOKENS - 1] -log2 of the probability of each verified token, in whole bits.

        Tokens that the target finds improbable are what an engine that accepts too much delivers
        too often, and here all of them are counted together, whatever their context.
        """
        bits = -self.log_probs[:, 1:] / np.log(2)
        return np.where(np.isnan(bits), -1, np.clip(bits, 0, 64)).astype(np.int64)


def default_generations() -> int:
    """Generations of each server that find a bias of 2 %: see ``homogeneity`` for the arithmetic.

    With D = 3, 16 bins, an error rate of 1e-3 / 3 and a power of 99 % it takes some 100 000 tokens.
    """
    tokens = observations_for(BIAS, DISTANCE, _SURPRISE_BINS, ERROR_RATE / 3, POWER)
    return int(np.ceil(tokens / (TOKENS - 1)))


def audit_law(
    baseline: Endpoint,
    candidate: Endpoint,
    prompts: list[list[int]],
    generations: int,
    advance: Callable[[int], None] = lambda _: None,
) -> LawAudit:
    """Sample both servers side by side and compare.

    Args:
        prompts: open questions in tokens; every one is asked equally often.
        generations: of each server, rounded up to a multiple of the prompts.
        advance: called with the number of generations that both have finished.
    """
    own_seeds = baseline.is_deterministic or candidate.is_deterministic
    each = -(-generations // len(prompts))
    answers: tuple[list[Answer], list[Answer]] = ([], [])
    rng = Random(0)
    servers = (baseline, candidate)
    with ThreadPoolExecutor(len(servers)) as pool:
        for prompt in prompts:
            for start in range(0, each, _CALL):
                count = min(_CALL, each - start)
                asked = [_questions(prompt, count, rng if own_seeds else None) for _ in servers]
                sampled = pool.map(_sample, servers, asked)
                for got, new in zip(answers, sampled, strict=True):
                    got += new
                advance(count)
    samples = tuple(Sample(got, len(prompts)) for got in answers)
    return compare_laws(samples[0], samples[1], own_seeds)


def compare_laws(baseline: Sample, candidate: Sample, own_seeds: bool) -> LawAudit:
    """The three tests on two samples."""
    width = int(max(baseline.tokens.max(), candidate.tokens.max())) + 1
    tables = {
        "first tokens": (baseline.first_tokens(width), candidate.first_tokens(width)),
        "bigrams": (baseline.bigrams(width), candidate.bigrams(width)),
        "surprise": (baseline.surprise(), candidate.surprise()),
    }
    threshold = ERROR_RATE / len(tables)
    tests = tuple(
        LawTest(name, compare_samples(*table, baseline.prompts), threshold)
        for name, table in tables.items()
    )
    finest = tests[-1].result
    return LawAudit(
        generations=len(baseline.tokens),
        own_seeds=own_seeds,
        error_rate=ERROR_RATE,
        smallest_bias=detectable_bias(
            max(1, min(finest.observations)), DISTANCE, max(2, finest.bins), threshold, POWER
        ),
        tests=tests,
    )


def _sample(server: Endpoint, questions: list[Question]) -> list[Answer]:
    return server.ask_together(questions)


def _questions(prompt: list[int], count: int, seeds: Random | None) -> list[Question]:
    return [
        Question(prompt, _CONDITION.sampling(TOKENS, seeds.getrandbits(62) if seeds else None))
        for _ in range(count)
    ]


def _padded(rows: Sequence[Sequence[float]], filler: float) -> np.ndarray:
    """[n, TOKENS] with fillers behind each row."""
    padded = np.full((len(rows), TOKENS), filler, dtype=np.float64)
    for place, row in enumerate(rows):
        padded[place, : len(row)] = row
    return padded
