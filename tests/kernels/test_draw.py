"""Argmax and seeded draws of the compiled kernels give the reference's tokens."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from effort import cases
from hypothesis import given
from hypothesis import strategies as st

from dflash_sglang.kernels import draw, library
from dflash_sglang.kernels.truncation import NO_TOP_K, Truncation

sys.path.append(str(Path(__file__).parents[1] / "unit"))
from chi_square import assert_law

library.load()

quick = cases(40)
vocabularies = st.sampled_from([1, 2, 63, 64, 65, 100, 1000, 1023, 4099])


def logits_of(
    bs: int, N: int, V: int, seed: int, spread: float, dtype: torch.dtype
) -> torch.Tensor:
    """Rounding to bfloat16 makes ties; some columns are masked as a grammar would."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(bs, N, V, generator=generator) * spread + 3
    masked = torch.rand(bs, N, V, generator=generator) < 0.1
    masked[..., seed % V] = False
    return logits.to(dtype).float().masked_fill(masked, -torch.inf)


@st.composite
def draws(draw_: st.DrawFn) -> dict:
    bs, N, V = draw_(st.integers(1, 4)), draw_(st.integers(1, 9)), draw_(vocabularies)
    seed = draw_(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    spread = draw_(st.sampled_from([0.0, 0.1, 1.0, 4.0, 30.0]))
    dtype = draw_(st.sampled_from([torch.float32, torch.bfloat16]))
    temperatures = torch.rand(bs, generator=generator) * 2
    temperatures[torch.rand(bs, generator=generator) < 0.2] = 0.0
    return {
        "logits": logits_of(bs, N, V, seed, spread, dtype),
        "temperatures": temperatures,
        "seeds": torch.randint(-(2**62), 2**62, (bs,), generator=generator),
        "positions": torch.randint(0, 2**20, (bs, N), generator=generator),
    }


@st.composite
def truncations(draw_: st.DrawFn, bs: int) -> Truncation:
    generator = torch.Generator().manual_seed(draw_(st.integers(0, 2**31)))
    top_ks = torch.randint(1, 60, (bs,), generator=generator)
    top_ks[torch.rand(bs, generator=generator) < 0.4] = NO_TOP_K
    top_ps = torch.rand(bs, generator=generator).clamp(min=1e-3)
    top_ps[torch.rand(bs, generator=generator) < 0.4] = 1.0
    min_ps = torch.rand(bs, generator=generator) * 0.3 if draw_(st.booleans()) else None
    return Truncation(top_ks, top_ps, min_ps)


@quick
@given(st.integers(1, 5), st.integers(1, 9), vocabularies, st.integers(0, 2**31), st.booleans())
def test_argmax_equals_reference(bs: int, N: int, V: int, seed: int, has_nan: bool) -> None:
    logits = logits_of(bs, N, V, seed, 1.0, torch.bfloat16)  # with many ties
    if has_nan:
        logits[0, 0, V // 2 :] = torch.nan
    assert torch.equal(draw.greedy_tokens(logits), logits.argmax(-1))


def test_argmax_of_impossible_rows_is_column_zero() -> None:
    assert draw.greedy_tokens(torch.full((1, 2, 100), -torch.inf)).tolist() == [[0, 0]]


@quick
@given(draws())
def test_plain_draw_equals_reference(case: dict) -> None:
    expected = draw._draw_reference(
        **case, top_ks=None, top_ps=None, min_ps=None, noise_by_rank=False
    )
    assert torch.equal(draw.draw_tokens(**case), expected)


@cases(80)
@given(draws(), st.data(), st.booleans())
def test_truncated_draw_equals_reference(case: dict, data, by_rank: bool) -> None:
    truncation = data.draw(truncations(case["seeds"].shape[0]))
    expected = draw._draw_reference(**case, **truncation._asdict(), noise_by_rank=by_rank)
    actual = draw.draw_tokens(**case, truncation=truncation, noise_by_rank=by_rank)
    assert torch.equal(actual, expected)


def test_full_vocabulary_equals_reference() -> None:
    for V in (151_936, 262_144):
        case = {
            "logits": logits_of(1, 3, V, V, 2.0, torch.float32),
            "temperatures": torch.tensor([0.8]),
            "seeds": torch.tensor([V]),
            "positions": torch.tensor([[5, 6, 7]]),
        }
        for top_p in (1.0, 0.9):
            truncation = Truncation(torch.tensor([NO_TOP_K]), torch.tensor([top_p]))
            for by_rank in (False, True):
                expected = draw._draw_reference(
                    **case, **truncation._asdict(), noise_by_rank=by_rank
                )
                actual = draw.draw_tokens(**case, truncation=truncation, noise_by_rank=by_rank)
                assert torch.equal(actual, expected), (V, top_p, by_rank)


@pytest.mark.parametrize("by_rank", [False, True])
def test_draws_follow_the_truncated_law(by_rank: bool) -> None:
    n, V = 20_000, 40
    logits = logits_of(1, 1, V, 3, 1.5, torch.float32)
    truncation = Truncation(torch.tensor([12]), torch.tensor([0.9]), torch.tensor([0.02]))
    drawn = draw.draw_tokens(
        logits.expand(1, n, V).contiguous(),
        torch.tensor([1.0]),
        torch.tensor([99]),
        torch.arange(n).unsqueeze(0),
        truncation,
        noise_by_rank=by_rank,
    )
    ranked = logits[0].softmax(-1).sort(descending=True)
    kept = ranked.values.masked_fill(truncation.drops(ranked.values), 0.0)
    law = torch.zeros(V).scatter(0, ranked.indices[0], kept[0])
    assert_law(drawn[0], law / law.sum(), error_rate=1e-6)


def test_doubtful_rows_are_rare_and_marked() -> None:
    if library.load() != "compiled":
        pytest.skip("the reference has no doubts")
    logits = logits_of(1, 2000, 1000, 0, 1.0, torch.float32)
    arguments = (logits, torch.ones(1), torch.zeros(1).long(), torch.arange(2000).unsqueeze(0))
    marked = torch.ops.dflash2.draw_tokens(*arguments, None, None, None, False, True)
    assert int((marked < 0).sum()) <= 4
    tie = torch.zeros(1, 1, 2)  # of ranks: whichever way they are sorted
    law = (torch.tensor([NO_TOP_K]), torch.tensor([0.99]), None)
    assert torch.ops.dflash2.draw_tokens(
        tie, torch.ones(1), torch.zeros(1).long(), torch.zeros(1, 1).long(), *law, True, True
    ).tolist() in ([[-1]], [[-2]])


@pytest.mark.parametrize("by_rank", [False, True])
def test_a_fixed_number_of_doubtful_rows_is_settled_as_on_accelerators(by_rank: bool) -> None:
    """Equal logits everywhere: whoever wins, its runner-up may have its place in the ranks."""
    logits = torch.zeros(2, 3, 50)
    logits[1] = torch.randn(3, 50, generator=torch.Generator().manual_seed(2))
    law = (torch.tensor([20, NO_TOP_K]), torch.ones(2), None)
    call = draw.DrawCall(
        logits, torch.ones(2), torch.tensor([3, 4]), torch.arange(6).view(2, 3), law, by_rank
    )
    marked = torch.ops.dflash2.draw_tokens(*call[:4], *law, by_rank, True)
    expected = draw._draw_reference(*call[:4], *law, by_rank)
    assert library.load() != "compiled" or bool((marked[0] < 0).all())
    for count in (None, 4, 100):
        assert torch.equal(draw._settle(marked, call, count), expected)


def test_tensors_that_do_not_fit_are_refused() -> None:
    if library.load() != "compiled":
        pytest.skip("the references trust their caller")
    with pytest.raises(ValueError, match=r"float32 logits \[bs, N, V >= 1\], got \[2, 3\]"):
        draw.greedy_tokens(torch.zeros(2, 3))
    logits, ones = torch.zeros(2, 3, 5), torch.ones(2)
    with pytest.raises(ValueError, match=r"int64 seeds \[2\]"):
        draw.draw_tokens(logits, ones, torch.zeros(3).long(), torch.zeros(2, 3).long())
    with pytest.raises(ValueError, match="expects temperatures"):
        draw.draw_tokens(logits, ones.double(), torch.zeros(2).long(), torch.zeros(2, 3).long())
