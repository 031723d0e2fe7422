"""Candidates under noise: the compiled kernel finds those of the reference."""

from __future__ import annotations

import pytest
import torch
from effort import cases
from hypothesis import given
from hypothesis import strategies as st
from test_draw import truncations

from dflash_sglang.kernels import candidates, library
from dflash_sglang.kernels.noise import gumbel_noise
from dflash_sglang.kernels.truncation import truncate_draft

library.load()


@cases(60)
@given(
    st.integers(1, 3),
    st.integers(1, 5),
    st.sampled_from([40, 64, 129, 1000, 5003]),
    st.integers(1, 16),
    st.integers(0, 16),
    st.sampled_from([0.3, 1.0, 5.0]),
    st.booleans(),
    st.booleans(),
    st.data(),
)
def test_candidates_equal_reference(bs, g, V, K, M, spread, truncates, lists, data) -> None:
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31)))
    logits = torch.randn(bs, g, V, generator=generator) * spread
    if lists:  # a draft vocabulary of half the tokens, at least as many as there are candidates
        unlisted = torch.randperm(V, generator=generator)[max(V // 2, K + M) :]
        logits[..., unlisted] = -torch.inf
    scale = torch.rand(bs, generator=generator) + 0.3
    weight = torch.rand(bs, generator=generator) * 3 + 1
    seeds = torch.randint(0, 2**60, (bs,), generator=generator)
    positions = torch.randint(0, 2**20, (bs, g), generator=generator)
    truncation = data.draw(truncations(bs)) if truncates else None
    arguments = (logits, scale, weight, seeds, positions, truncation, K, M)
    actual = candidates.noisy_candidates(*arguments)
    noise = gumbel_noise(seeds, positions, V).float()
    expected = candidates.candidates_with_noise(logits, noise, scale, weight, truncation, K, M)

    # Tokens whose scores round to the same number may change places, so ranks are compared by
    # score, and what a token carries with the token's own.
    assert torch.equal(actual.unary_logits[..., :K], expected.unary_logits[..., :K])
    scores, expected_scores = (
        weight.view(bs, 1, 1) * c.log_q[..., K:] + c.noise[..., K:] for c in (actual, expected)
    )
    impossible = expected.log_q[..., K:] == -torch.inf
    assert torch.equal(actual.log_q[..., K:] == -torch.inf, impossible)
    torch.testing.assert_close(
        scores.masked_fill(impossible, 0),
        expected_scores.masked_fill(impossible, 0),
        rtol=1e-5,
        atol=1e-5,
    )
    log_q = (logits / scale.view(bs, 1, 1)).log_softmax(-1)
    own = log_q.gather(-1, actual.tokens)
    own[..., K:] = truncate_draft(log_q, truncation).gather(-1, actual.tokens[..., K:])
    torch.testing.assert_close(actual.log_q, own, rtol=1e-5, atol=1e-5)
    assert torch.equal(actual.unary_logits, logits.gather(-1, actual.tokens))
    torch.testing.assert_close(actual.noise, noise.gather(-1, actual.tokens), rtol=1e-6, atol=1e-6)
    ordered = actual.tokens.sort(-1).values
    assert (ordered[..., 1:] > ordered[..., :-1]).all()


def test_counts_beyond_the_vocabulary_are_refused() -> None:
    if library.load() != "compiled":
        pytest.skip("the reference trusts its caller")
    logits, ones = torch.zeros(1, 2, 10), torch.ones(1)
    with pytest.raises(ValueError, match="fit into 10 columns, got 6 and 5"):
        positions = torch.zeros(1, 2).long()
        candidates.noisy_candidates(
            logits, ones, ones, torch.zeros(1).long(), positions, None, 6, 5
        )
