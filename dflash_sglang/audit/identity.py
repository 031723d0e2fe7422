"""Levels one and two: the same tokens, greedy and with a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dflash_sglang.audit.conditions import Condition
from dflash_sglang.audit.endpoint import Answer, Endpoint, Question
from dflash_sglang.audit.tracing import DEFECT, TIE, Cause, Draw, ended_otherwise, trace

_FIRST_SEED = 1000
# Every difference is counted; following one costs requests, so a broken server is not followed to
# the last of thousands.
MOST_TRACED = 50


@dataclass(frozen=True)
class Difference:
    """The first token at which two answers to one prompt part.

    Attributes:
        prompt: index of the prompt.
        position: index of the token in the answer.
        baseline_token: None where the baseline's answer had ended.
        candidate_token: None where the candidate's answer had ended.
    """

    prompt: int
    position: int
    baseline_token: int | None
    candidate_token: int | None
    cause: Cause


@dataclass(frozen=True)
class Comparison:
    """One pass over the prompts.

    Attributes:
        tokens: tokens that the baseline delivered.
        accept_length: tokens the candidate committed a verify step, None without speculation.
        differences: those that were followed to their cause.
        untraced: further differences; they count as defects.
    """

    condition: Condition
    concurrency: int
    prompts: int
    tokens: int
    accept_length: float | None
    differences: tuple[Difference, ...]
    untraced: int = 0

    @property
    def identical(self) -> int:
        return self.prompts - len(self.differences) - self.untraced

    @property
    def ties(self) -> int:
        return sum(difference.cause.verdict == TIE for difference in self.differences)

    @property
    def defects(self) -> int:
        return self.untraced + sum(
            difference.cause.verdict == DEFECT for difference in self.differences
        )


class IdentityAudit:
    """Asks both servers the same prompts under one condition after the other.

    Args:
        baseline: the server without speculation.
        candidate: the server under audit.
        prompts: prompts in tokens.
        max_tokens: greatest length of an answer.
        tolerance: what counts as rounding, in nats.
        advance: called after every answer of the candidate, for a progress bar.
    """

    def __init__(
        self,
        baseline: Endpoint,
        candidate: Endpoint,
        prompts: list[list[int]],
        max_tokens: int,
        tolerance: float,
        advance: Callable[[], None] = lambda: None,
    ) -> None:
        self._baseline = baseline
        self._candidate = candidate
        self._prompts = prompts
        self._max_tokens = max_tokens
        self._tolerance = tolerance
        self._advance = advance

    def compare(self, condition: Condition, concurrencies: tuple[int, ...]) -> list[Comparison]:
        """The baseline answers once, the candidate at every concurrency."""
        questions = [
            Question(prompt, condition.sampling(self._max_tokens, self._seed(condition, index)))
            for index, prompt in enumerate(self._prompts)
        ]
        expected = list(self._baseline.ask_all(questions, max(concurrencies)))
        return [self._compare(condition, width, questions, expected) for width in concurrencies]

    def _compare(
        self,
        condition: Condition,
        concurrency: int,
        questions: list[Question],
        expected: list[Answer],
    ) -> Comparison:
        got = []
        for answer in self._candidate.ask_all(questions, concurrency):
            got.append(answer)
            self._advance()
        parted = [
            index
            for index, (ours, theirs) in enumerate(zip(expected, got, strict=True))
            if (ours.token_ids, ours.finish_reason) != (theirs.token_ids, theirs.finish_reason)
        ]
        differences = tuple(
            self._follow(condition, index, expected[index], got[index])
            for index in parted[:MOST_TRACED]
        )
        return Comparison(
            condition=condition,
            concurrency=concurrency,
            prompts=len(questions),
            tokens=sum(len(answer.token_ids) for answer in expected),
            accept_length=_accept_length(got),
            differences=differences,
            untraced=len(parted) - len(differences),
        )

    def _follow(
        self, condition: Condition, index: int, baseline: Answer, candidate: Answer
    ) -> Difference:
        ours, theirs = baseline.token_ids, candidate.token_ids
        position = first_difference(ours, theirs)
        if position == min(len(ours), len(theirs)):
            return Difference(
                index,
                position,
                ours[position] if position < len(ours) else None,
                theirs[position] if position < len(theirs) else None,
                ended_otherwise(baseline, candidate),
            )
        context = self._prompts[index] + ours[:position]
        draw = Draw(condition, self._seed(condition, index), len(context) - 1)
        tokens = (ours[position], theirs[position])
        cause = trace(self._baseline, self._candidate, context, tokens, draw, self._tolerance)
        return Difference(index, position, *tokens, cause)

    def _seed(self, condition: Condition, index: int) -> int | None:
        """Each prompt's own, so that one batch holds many seeds."""
        return None if condition.is_greedy else _FIRST_SEED + index


def first_difference(ours: list[int], theirs: list[int]) -> int:
    """Index of the first token that differs; the shorter's length where it is a beginning."""
    for position, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if a != b:
            return position
    return min(len(ours), len(theirs))


def _accept_length(answers: list[Answer]) -> float | None:
    steps = sum(answer.verify_steps for answer in answers)
    # The first token of an answer is the prefill's.
    tokens = sum(len(answer.token_ids) - 1 for answer in answers)
    return tokens / steps if steps else None
