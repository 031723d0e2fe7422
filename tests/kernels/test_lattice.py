"""Pair scores of the compiled kernels equal their PyTorch reference."""

from __future__ import annotations

import pytest
import torch
from effort import cases
from hypothesis import given
from hypothesis import strategies as st

from dflash_sglang.kernels import lattice, library

library.load()

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-5, torch.float16: 1e-5}  # inputs are exact


def arguments(
    bs: int, g: int, K: int, rank: int, dtype: torch.dtype, seed: int
) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    V = max(K, 40)
    return (
        torch.randn(bs, g, rank, generator=generator).to(dtype),
        torch.randint(0, V, (bs,), generator=generator),
        torch.rand(bs, g, V, generator=generator).argsort(-1)[..., :K],
        torch.randn(bs, g, K, generator=generator) * 3,
        torch.randn(V, rank, generator=generator).to(dtype),
        torch.randn(V, rank, generator=generator).to(dtype) / rank**0.5,
    )


@cases(60)
@given(
    st.sampled_from([1, 2, 5, 64]),
    st.integers(1, 15),
    st.integers(1, 32),
    st.sampled_from([1, 15, 16, 64, 100]),
    st.sampled_from(list(TOLERANCE)),
    st.booleans(),
    st.integers(0, 99),
)
def test_scores_equal_reference(bs, g, K, rank, dtype, is_normalized, seed) -> None:
    case = arguments(bs, g, K, rank, dtype, seed)
    temperatures = None
    if is_normalized:
        temperatures = torch.arange(bs) * 0.3  # the first request is greedy
    actual = lattice.pair_scores(*case, temperatures)
    expected = lattice._reference(*case, temperatures)
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def test_a_token_outside_of_the_codebooks_is_refused() -> None:
    if library.load() != "compiled":
        pytest.skip("the reference trusts its caller")
    gates, anchors, candidates, *rest = arguments(2, 3, 4, 16, torch.float32, 0)
    with pytest.raises(IndexError, match="expects anchors below 40, got 40"):
        lattice.pair_scores(gates, anchors * 0 + 40, candidates, *rest)
    with pytest.raises(IndexError, match="expects candidates below 40, got -1"):
        lattice.pair_scores(gates, anchors, candidates * 0 - 1, *rest)


def test_codebooks_of_another_rank_are_refused() -> None:
    if library.load() != "compiled":
        pytest.skip("the reference trusts its caller")
    *front, left, right = arguments(2, 3, 4, 16, torch.float32, 0)
    with pytest.raises(ValueError, match="two contiguous codebooks"):
        lattice.pair_scores(*front, left, right[:, :8])
