"""Differences between two servers, followed to their cause."""

from __future__ import annotations

import pytest
import torch
from toy_server import VOCAB, ToyServer, random_logits

from dflash_sglang.audit.conditions import GREEDY, Condition, seeded_conditions
from dflash_sglang.audit.endpoint import Answer
from dflash_sglang.audit.identity import IdentityAudit, first_difference
from dflash_sglang.audit.tracing import (
    DEFECT,
    TIE,
    TOLERANCES,
    Draw,
    ended_otherwise,
    judge,
    reachable,
    tolerance_for,
)

TOLERANCE = TOLERANCES["float32"]
PROMPTS = [[1, 2, index] for index in range(24)]
TOKENS = 24
CONDITIONS = [GREEDY, *seeded_conditions((1.0,))]
each_condition = pytest.mark.parametrize(
    "condition", CONDITIONS, ids=lambda condition: condition.label
)


def audit_of(
    baseline: ToyServer, candidate: ToyServer, tolerance: float = TOLERANCE
) -> IdentityAudit:
    return IdentityAudit(baseline, candidate, PROMPTS, TOKENS, tolerance)


def law(*log_probs: float) -> dict[int, float]:
    return dict(enumerate(log_probs))


@each_condition
def test_servers_of_one_target_are_identical(condition: Condition) -> None:
    logits = random_logits(0)
    servers = (ToyServer(logits, deterministic=True), ToyServer(logits, deterministic=True))
    (found,) = audit_of(*servers).compare(condition, (1,))
    assert (found.identical, found.ties, found.defects) == (len(PROMPTS), 0, 0)
    assert found.tokens == TOKENS * len(PROMPTS)


def test_differences_by_rounding_are_ties() -> None:
    """Errors of a tenth of the tolerance, on a target with many near ties."""
    logits = (random_logits(0) / 0.05).round() * 0.05 + random_logits(1) * 1e-4
    baseline = ToyServer(logits, deterministic=True)
    candidate = ToyServer(logits, deterministic=True, rounding=1e-3)
    audit = audit_of(baseline, candidate, tolerance=1e-2)
    found = [audit.compare(condition, (1,))[0] for condition in CONDITIONS]
    assert [comparison.defects for comparison in found] == [0] * len(CONDITIONS)
    assert sum(comparison.ties for comparison in found) > len(CONDITIONS)


@each_condition
def test_a_token_that_was_not_drawn_is_a_defect(condition: Condition) -> None:
    logits = random_logits(0)
    baseline = ToyServer(logits, deterministic=True)
    candidate = ToyServer(logits, deterministic=True, draft=random_logits(5), bias=0.02)
    (found,) = audit_of(baseline, candidate).compare(condition, (1,))
    assert found.defects > 0.2 * len(PROMPTS)
    assert found.defects + found.identical == len(PROMPTS)
    assert "its own law does not give" in found.differences[0].cause.reason


def test_another_target_is_a_defect_that_both_sides_gaps_show() -> None:
    baseline = ToyServer(random_logits(0), deterministic=True)
    candidate = ToyServer(random_logits(9), deterministic=True)
    (found,) = audit_of(baseline, candidate).compare(GREEDY, (1,))
    cause = found.differences[0].cause
    assert cause.verdict == DEFECT and "laws differ" in cause.reason
    assert cause.baseline_gap > 0 > cause.candidate_gap


def test_beyond_the_limit_differences_count_without_being_followed() -> None:
    baseline = ToyServer(random_logits(0), deterministic=True)
    candidate = ToyServer(random_logits(9), deterministic=True)
    prompts = [[index % VOCAB] for index in range(120)]
    audit = IdentityAudit(baseline, candidate, prompts, 8, TOLERANCE)
    (found,) = audit.compare(GREEDY, (1,))
    assert len(found.differences) == 50
    assert found.identical + found.defects == 120


@pytest.mark.parametrize(("gap", "verdict"), [(0.9, TIE), (1.1, DEFECT)])
def test_a_greedy_tie_is_a_gap_below_the_tolerance(gap: float, verdict: str) -> None:
    ours = law(-1.0, -1.0 - gap * TOLERANCE)
    theirs = law(-1.0 - gap * TOLERANCE, -1.0)
    assert judge(ours, theirs, (0, 1), Draw(GREEDY, None, 3), TOLERANCE).verdict == verdict


def test_both_sides_must_be_near_the_tie() -> None:
    near, far = law(-1.0, -1.00001), law(-3.0, -1.0)
    assert judge(near, far, (0, 1), Draw(GREEDY, None, 3), TOLERANCE).verdict == DEFECT


def test_the_noise_of_the_seed_decides_not_the_gap() -> None:
    """Equal probabilities are no excuse: under the seed's noise one of the two wins clearly."""
    equal = law(-1.0, -1.0)
    draw = Draw(Condition(1.0), seed=3, position=7)
    (winner,) = reachable(equal, draw, TOLERANCE)
    cause = judge(equal, equal, (winner, 1 - winner), draw, TOLERANCE)
    assert cause.verdict == DEFECT and cause.baseline_gap == 0


def test_two_tokens_that_change_ranks_are_a_tie_of_a_truncated_draw() -> None:
    """SGLang's noise belongs to ranks there: equal tokens swap it."""
    values = torch.linspace(0, -3, 10).tolist()
    draw = Draw(Condition(1.0, top_k=5), seed=3, position=7)
    (winner,) = reachable(law(*values), draw, TOLERANCE)
    other = winner + 1
    close = list(values)
    close[other] = close[winner] - TOLERANCE / 10
    assert reachable(law(*close), draw, TOLERANCE) == {winner, other}


def test_a_token_at_the_edge_of_the_nucleus_is_a_tie() -> None:
    probs = torch.tensor([0.5, 0.3, 0.2])
    inside = set()
    for seed in range(40):
        edge = Draw(Condition(1.0, top_p=0.8), seed, position=7)
        inside |= {frozenset(reachable(law(*probs.log().tolist()), edge, TOLERANCE))}
    # Token 2 lies behind exactly 0.8: whether it is in depends on rounding.
    assert any(2 in tokens and len(tokens) > 1 for tokens in inside)


def test_an_answer_that_ends_otherwise_is_a_defect() -> None:
    cause = ended_otherwise(Answer([1, 2], "stop", 0, []), Answer([1, 2, 3], "length", 1, []))
    assert cause.verdict == DEFECT
    assert "2 tokens (stop), the candidate's after 3 tokens (length)" in cause.reason


def test_first_difference() -> None:
    assert first_difference([1, 2, 3], [1, 9, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2


def test_unnamed_dtypes_have_the_coarsest_tolerance() -> None:
    assert tolerance_for(("float32", "float32")) == 1e-4
    assert tolerance_for(("float32", "auto")) == tolerance_for(("bfloat16", "float16")) == 2**-3
