"""A difference between two answers, followed to its cause.

Two computations of one logit may differ by rounding. So a difference is harmless if, and only if,
changes of that size to the law at the first differing token can turn either server's token into the
other's. To decide it, both servers are asked for their law there, and the draw is repeated on it:
argmax, or the noise of the seed, with the request's top-k and top-p, under many small changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from dflash_sglang.audit.conditions import Condition
from dflash_sglang.audit.endpoint import Answer, Endpoint
from dflash_sglang.tree.truncation import NO_TOP_K, Truncation
from dflash_sglang.verify import draw_with_noise, gumbel_noise

TIE: Final = "tie within rounding"
DEFECT: Final = "defect"
Judgement = Literal["tie within rounding", "defect"]

# By how much two computations of one log-probability may differ, in nats: a few hundred units in
# the last place of float32, one unit of a logit between 16 and 32 in the half formats.
TOLERANCES = {"float32": 1e-4, "float16": 2**-6, "bfloat16": 2**-3}
_REPLAYS = 64  # a pair's signs oppose each other in a quarter of them
_MOST_RANKS = 1 << 15


@dataclass(frozen=True)
class Draw:
    """How the token at the difference was drawn."""

    condition: Condition
    seed: int | None
    position: int  # absolute position of the token after which is drawn


@dataclass(frozen=True)
class Cause:
    """Why two answers part.

    Attributes:
        verdict: "tie within rounding" or "defect".
        baseline_gap: log p(baseline's token) - log p(candidate's token) as the baseline has it, in
            nats at temperature 1; None where an answer ended instead.
        candidate_gap: the same as the candidate has it.
        reason: one sentence.
    """

    verdict: Judgement
    baseline_gap: float | None
    candidate_gap: float | None
    reason: str


def tolerance_for(dtypes: tuple[str, str]) -> float:
    """The coarser of what the two servers' dtypes allow; unnamed ones ("auto") may be bfloat16."""
    coarsest = max(TOLERANCES.values())
    return max(TOLERANCES.get(dtype, coarsest) for dtype in dtypes)


def trace(
    baseline: Endpoint,
    candidate: Endpoint,
    context: list[int],
    tokens: tuple[int, int],
    draw: Draw,
    tolerance: float,
) -> Cause:
    """Ask both servers for their law behind ``context`` and judge.

    Args:
        context: the prompt and what both delivered.
        tokens: the baseline's next token and the candidate's.
        draw: the sampling of the request.
        tolerance: what counts as rounding, in nats.
    """
    # A truncated draw depends on ranks, and on the mass before them; others on the two alone.
    ranks = min(baseline.vocab_size, _MOST_RANKS) if draw.condition.truncates else 0
    laws = [server.log_probs(context, list(tokens), ranks) for server in (baseline, candidate)]
    return judge(laws[0], laws[1], tokens, draw, tolerance)


def judge(
    baseline_law: dict[int, float],
    candidate_law: dict[int, float],
    tokens: tuple[int, int],
    draw: Draw,
    tolerance: float,
) -> Cause:
    """The verdict on two laws (token id -> log-probability at temperature 1)."""
    ours, theirs = tokens
    gaps = (baseline_law[ours] - baseline_law[theirs], candidate_law[ours] - candidate_law[theirs])
    by_baseline = reachable(baseline_law, draw, tolerance)
    by_candidate = reachable(candidate_law, draw, tolerance)
    if theirs in by_baseline and ours in by_candidate:
        reason = f"changes of {tolerance:g} nats to either law turn one token into the other"
        return Cause(TIE, *gaps, reason)
    if theirs in by_candidate:
        reason = "the two servers' laws differ by more than rounding"
    else:
        reason = "the candidate delivered a token that its own law does not give"
    return Cause(DEFECT, *gaps, reason)


def ended_otherwise(baseline: Answer, candidate: Answer) -> Cause:
    """One answer is the beginning of the other, or they end for different reasons: no rounding."""
    ends = [
        f"{len(answer.token_ids)} tokens ({answer.finish_reason})"
        for answer in (baseline, candidate)
    ]
    reason = f"the baseline's answer ends after {ends[0]}, the candidate's after {ends[1]}"
    return Cause(DEFECT, None, None, reason)


def reachable(law: dict[int, float], draw: Draw, tolerance: float) -> set[int]:
    """Tokens that the draw can give if log-probabilities are off by half the tolerance each.

    Args:
        law: token id -> log-probability at temperature 1; the likeliest tokens, as many as matter.
        draw: the sampling of the request.
        tolerance: nats between the changes of two tokens.
    """
    ids = torch.tensor(sorted(law, key=lambda token: (-law[token], token)))  # [M]
    log_probs = torch.tensor([law[token] for token in ids.tolist()], dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(0, 2, (_REPLAYS, 1, len(ids)), generator=generator) * 2 - 1
    # The first replay is the law as it was reported.
    signs[0] = 0
    changed = log_probs + signs * (tolerance / 2)  # [R, 1, M]
    drawn = _draw(changed, ids, draw)
    return set(ids[drawn.view(-1)].tolist())


def _draw(log_probs: Tensor, ids: Tensor, draw: Draw) -> Tensor:
    """SGLang's seeded draw from every row: [R, 1, M] log-probabilities -> [R, 1] columns."""
    rows, _, columns = log_probs.shape
    condition = draw.condition
    temperatures = torch.full((rows,), condition.temperature)
    if condition.is_greedy:
        noise = torch.zeros(1, 1, columns, dtype=torch.float64)
    else:
        assert draw.seed is not None, "a sampled answer is followed by its seed"
        # A truncated law's noise belongs to ranks, otherwise to token ids.
        width = columns if condition.truncates else int(ids.max()) + 1
        seed, position = torch.tensor([draw.seed]), torch.tensor([[draw.position]])
        noise = gumbel_noise(seed, position, width)  # [1, 1, width]
        noise = noise if condition.truncates else noise[..., ids]
    truncation = Truncation(
        torch.full((rows,), condition.top_k or NO_TOP_K),
        torch.full((rows,), 1.0 if condition.top_p is None else condition.top_p),
    )
    return draw_with_noise(
        log_probs,
        temperatures,
        noise.expand(rows, -1, -1),
        truncation if condition.truncates else None,
        noise_by_rank=True,
    )
