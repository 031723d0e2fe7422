"""The kernels equal their references at every size they are promised for.

The other tests try many small cases; here few cases span the ranges: 1 to 64 requests, 1 to 128
nodes, 1 to 32 candidates, vocabularies of 100 to 262,144, odd sizes among them. Trees, walks and
pair scores span theirs in their own tests.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from attention_cases import Shape, random_problem, run, run_reference
from effort import cases
from hypothesis import given
from hypothesis import strategies as st
from test_draw import logits_of

from dflash_sglang.kernels import candidates, draw, library
from dflash_sglang.kernels.attention import MaskMode
from dflash_sglang.kernels.noise import gumbel_noise
from dflash_sglang.kernels.truncation import NO_TOP_K, Truncation

library.load()

LOGITS = 1 << 19  # logits of one case: large vocabularies go with few rows


class Sizes(NamedTuple):
    """Sizes of one case."""

    bs: int
    N: int
    V: int
    K: int


@st.composite
def sizes(draw_: st.DrawFn) -> Sizes:
    """The vocabulary is uniform in its logarithm; ends of the ranges come often."""
    exponent = draw_(st.sampled_from([0.0, 1.0]) | st.floats(0, 1))
    V = round(100 * (262_144 / 100) ** exponent)
    rows = max(1, LOGITS // V)
    bs = draw_(st.integers(1, min(64, rows)))
    N = draw_(st.integers(1, min(128, max(1, rows // bs))))
    return Sizes(bs, N, V, draw_(st.integers(1, 32)))


def _requests(size: Sizes) -> dict[str, torch.Tensor]:
    return {
        "temperatures": torch.arange(size.bs) % 5 * 0.4,  # every fifth request is greedy
        "seeds": torch.arange(size.bs) * 7919 - 40,
        "positions": torch.arange(size.bs * size.N).view(size.bs, size.N) + 11,
    }


@cases(15)
@given(sizes(), st.integers(0, 2**31))
def test_greedy_tokens(size: Sizes, seed: int) -> None:
    logits = logits_of(size.bs, size.N, size.V, seed, 1.0, torch.bfloat16)
    assert torch.equal(draw.greedy_tokens(logits), logits.argmax(-1))


@cases(15)
@given(sizes(), st.integers(0, 2**31), st.booleans())
def test_draws(size: Sizes, seed: int, by_rank: bool) -> None:
    logits = logits_of(size.bs, size.N, size.V, seed, 2.0, torch.float32)
    request = torch.arange(size.bs)
    law = Truncation(
        torch.where(request % 2 == 0, size.K, NO_TOP_K),
        torch.where(request % 3 == 0, 0.9, 1.0),
        torch.where(request % 4 == 0, 0.05, 0.0),
    )
    arguments = _requests(size)
    expected = draw._draw_reference(logits, **arguments, **law._asdict(), noise_by_rank=by_rank)
    actual = draw.draw_tokens(logits, **arguments, truncation=law, noise_by_rank=by_rank)
    assert torch.equal(actual, expected)


@cases(15)
@given(sizes(), st.integers(0, 2**31))
def test_candidates(size: Sizes, seed: int) -> None:
    """Candidates without noise are the greatest logits; those with it have the greatest scores."""
    bs, g, V, K = size._replace(N=min(size.N, 15))
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(bs, g, V, generator=generator) * 3
    ones = torch.ones(bs)
    where = _requests(Sizes(bs, g, V, K))
    seeds, positions = where["seeds"], where["positions"]
    actual = candidates.noisy_candidates(logits, ones, ones, seeds, positions, None, K, K)
    noise = gumbel_noise(seeds, positions, V).float()
    expected = candidates.candidates_with_noise(logits, noise, ones, ones, None, K, K)
    assert torch.equal(actual.unary_logits[..., :K], expected.unary_logits[..., :K])
    ours, theirs = (c.log_q[..., K:] + c.noise[..., K:] for c in (actual, expected))
    # A score is the sum of a log q of about -log V and a noise of about log V, rounded apart.
    summands = expected.log_q[..., K:].abs() + expected.noise[..., K:].abs()
    assert ((ours - theirs).abs() <= 1e-5 * summands).all()


@cases(12)
@given(st.integers(1, 64), st.integers(1, 128), st.integers(0, 700), st.integers(0, 2**31))
def test_tree_attention(bs: int, N: int, prefix: int, seed: int) -> None:
    bs = min(bs, max(1, math.ceil(2_000 / N)))
    lengths = [max(1, N - r % 3) for r in range(bs)]
    prefixes = [(prefix + 13 * r) % 701 for r in range(bs)]
    shape = Shape(3, 1, 20, 12)
    problem = random_problem(seed, shape, lengths, prefixes, torch.float32, tree=True)
    expected = run_reference(problem, MaskMode.TREE, scale=0.2)
    actual = run(problem, MaskMode.TREE, scale=0.2)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
