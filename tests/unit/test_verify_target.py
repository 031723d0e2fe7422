"""Draws with shared noise: SGLang's own draws, and what they are good for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from chi_square import assert_law
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor
from tree_strategies import random_lattice

from dflash_sglang.tree import NO_TOP_K, Lattice, Truncation, build_tree
from dflash_sglang.verify import (
    NoiseKeys,
    greedy_tokens,
    gumbel_noise,
    sampled_tokens,
    walk,
)
from dflash_sglang.verify.noise import hash_columns

ROWS, SGLANG_VOCAB = 90, 1500


@pytest.fixture(scope="module")
def draws() -> dict[str, Tensor]:
    """Ninety draws from random laws, with awkward seeds and positions among them."""
    generator = torch.Generator().manual_seed(5)
    seeds = torch.randint(-(2**62), 2**62, (ROWS,), generator=generator)
    seeds[:6] = torch.tensor([0, 1, 42, -1, 2**63 - 1, -(2**63)])
    positions = torch.randint(0, 100_000, (ROWS,), generator=generator)
    positions[:4] = torch.tensor([0, 1, 2**31 - 1, 2**31 + 7])
    spread = torch.rand(ROWS, 1, generator=generator) * 4
    return {
        "logits": torch.randn(ROWS, SGLANG_VOCAB, generator=generator) * spread,
        "seeds": seeds,
        "positions": positions,
        "temperatures": torch.rand(ROWS, generator=generator) * 1.5 + 0.1,
        "top_ks": torch.randint(1, 60, (ROWS,), generator=generator),
        "top_ps": torch.rand(ROWS, generator=generator) * 0.9 + 0.05,
    }


@pytest.fixture(scope="module")
def sglang(draws: dict[str, Tensor], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    """What SGLang's own sampler draws."""
    folder = tmp_path_factory.mktemp("sglang")
    source, destination = folder / "in.safetensors", folder / "out.safetensors"
    save_file(draws, source)
    script = Path(__file__).with_name("sglang_seeded_sampler.py")
    subprocess.run([sys.executable, script, source, destination], check=True, timeout=300)
    return load_file(destination)


def our_draws(draws: dict[str, Tensor], truncation: Truncation | None) -> Tensor:
    """Every row as a request with one node."""
    noise = NoiseKeys(draws["seeds"], draws["positions"].unsqueeze(1))
    depths = torch.zeros(ROWS, 1, dtype=torch.int64)
    logits = draws["logits"].unsqueeze(1)
    return sampled_tokens(
        logits, draws["temperatures"], noise, depths, truncation, noise_by_rank=True
    ).squeeze(1)


def test_the_hash_is_sglangs(draws, sglang) -> None:
    ours = hash_columns(draws["seeds"], draws["positions"], SGLANG_VOCAB)
    assert torch.equal(ours, sglang["hashed"])


def test_plain_draws_are_sglangs(draws, sglang) -> None:
    assert torch.equal(our_draws(draws, None), sglang["plain"])


def test_truncated_draws_are_sglangs(draws, sglang) -> None:
    truncation = Truncation(draws["top_ks"], draws["top_ps"])
    assert torch.equal(our_draws(draws, truncation), sglang["truncated"])


def test_requests_that_do_not_truncate_draw_plainly_beside_others(draws, sglang) -> None:
    top_ks, top_ps = draws["top_ks"].clone(), draws["top_ps"].clone()
    top_ks[::2], top_ps[::2] = NO_TOP_K, 1.0
    mixed = our_draws(draws, Truncation(top_ks, top_ps))
    assert torch.equal(mixed[::2], sglang["plain"][::2])
    assert torch.equal(mixed[1::2], sglang["truncated"][1::2])


@pytest.mark.parametrize("noise_by_rank", [False, True])
def test_truncated_draws_follow_the_truncated_law(noise_by_rank: bool) -> None:
    """20,000 seeds; a right sampler fails 1 in 10^4."""
    n, vocab = 20_000, 12
    probs = torch.randn(vocab, generator=torch.Generator().manual_seed(2)).softmax(-1)
    truncation = Truncation(torch.full((n,), 7), torch.full((n,), 0.8))
    ranked = probs.sort(descending=True)
    kept = (ranked.values.cumsum(0) - ranked.values <= 0.8) & (torch.arange(vocab) < 7)
    law = torch.zeros(vocab).scatter(0, ranked.indices[kept], ranked.values[kept])
    assert 2 < int(kept.sum()) < 7
    tokens = sampled_tokens(
        probs.log().expand(n, 1, vocab),
        torch.ones(n),
        NoiseKeys(torch.arange(n), torch.full((n, 1), 5)),
        torch.zeros(n, 1, dtype=torch.int64),
        truncation,
        noise_by_rank=noise_by_rank,
    )
    assert_law(tokens.squeeze(1), law / law.sum(), error_rate=1e-4)


def test_noise_by_token_moves_only_draws_that_truncation_forbids() -> None:
    n, vocab = 500, 40
    logits = torch.randn(n, 1, vocab, generator=torch.Generator().manual_seed(3))
    noise = NoiseKeys(torch.arange(n), torch.full((n, 1), 5))
    depths = torch.zeros(n, 1, dtype=torch.int64)
    top_k = 10
    truncation = Truncation(torch.full((n,), top_k), torch.ones(n))
    free, truncated = (
        sampled_tokens(logits, torch.ones(n), noise, depths, x) for x in (None, truncation)
    )
    allowed = (logits.topk(top_k).indices == free.unsqueeze(-1)).any(-1)
    assert 0 < int(allowed.sum()) < n
    assert torch.equal(truncated[allowed], free[allowed])


def test_greedy_requests_in_a_sampled_batch_take_the_argmax() -> None:
    logits = torch.randn(2, 3, 50, generator=torch.Generator().manual_seed(0))
    noise = NoiseKeys(torch.tensor([1, 1]), torch.tensor([[4, 5], [4, 5]]))
    depths = torch.tensor([[0, 1, 1]] * 2)
    tokens = sampled_tokens(logits, torch.tensor([0.0, 1.0]), noise, depths)
    assert torch.equal(tokens[0], greedy_tokens(logits)[0])
    assert not torch.equal(tokens[1], greedy_tokens(logits)[1])


def test_a_request_is_drawn_by_its_own_seed_only() -> None:
    """Case 8: alone, or in one batch with others, in any order."""
    seeds, positions = torch.tensor([3, 2**40, -9]), torch.tensor([[10, 11]] * 3)
    together = gumbel_noise(seeds, positions, 64)
    for row in range(3):
        alone = gumbel_noise(seeds[row : row + 1], positions[row : row + 1], 64)
        assert torch.equal(together[row], alone[0])
    assert not torch.equal(together[0], together[1])


def test_noise_is_finite_at_both_ends_of_the_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = torch.tensor([[[0, 1, 0xFFFFFFFE, 0xFFFFFFFF]]])
    monkeypatch.setattr("dflash_sglang.kernels.noise.hash_columns", lambda *_: ends)
    noise = gumbel_noise(torch.tensor([0]), torch.tensor([[0]]), 4).flatten()
    assert noise.isfinite().all() and (noise[:-2].diff() > 0).all()
    # The topmost hash must not beat every probability.
    assert float(noise[3]) == pytest.approx(float(noise[2]), abs=1e-6)


def test_seeds_and_positions_of_different_batches_are_refused() -> None:
    with pytest.raises(ValueError, match=r"got \[2\] and \[3, 4\]"):
        gumbel_noise(torch.zeros(2).long(), torch.zeros(3, 4).long(), 8)


# What speculation with shared noise promises, on a target small enough to know everything about:
# its logits are a function of the last two tokens.
VOCAB = 6
TARGET = torch.randn(VOCAB, VOCAB, VOCAB, generator=torch.Generator().manual_seed(11)) * 1.5


def plain_decoding(seeds: Tensor, temperatures: Tensor, length: int) -> Tensor:
    """[bs, length] tokens after the prompt (0, 1), one at a time."""
    bs = seeds.shape[0]
    text = torch.tensor([[0, 1]] * bs)
    root = torch.zeros(bs, 1, dtype=torch.int64)
    for position in range(1, length + 1):  # of the token after which is drawn
        noise = NoiseKeys(seeds, torch.full((bs, 1), position))
        logits = TARGET[text[:, -2], text[:, -1]].unsqueeze(1)
        text = torch.cat((text, sampled_tokens(logits, temperatures, noise, root)), dim=1)
    return text[:, 2:]


def speculative_decoding(
    seeds: Tensor, temperatures: Tensor, length: int, lattices: Callable[[int], Lattice]
) -> tuple[Tensor, float]:
    """The same by trees from `lattices(step)`; tokens [bs, length] and the mean accept length."""
    bs = seeds.shape[0]
    texts = [[0, 1] for _ in range(bs)]
    steps = 0
    while min(map(len, texts)) < length + 2:
        lattice = lattices(steps)
        g = lattice.tokens.shape[1]
        anchors = torch.tensor([text[-1] for text in texts])
        tree = build_tree(lattice, anchors, num_nodes=9, max_depth=g, max_children=3)
        parents = tree.parents.clamp(min=0)
        before = tree.tokens.gather(1, parents)
        before[:, 0] = torch.tensor([text[-2] for text in texts])
        logits = TARGET[before, tree.tokens]  # [bs, N, V]
        at = torch.tensor([len(text) - 1 for text in texts]).unsqueeze(1)
        noise = NoiseKeys(seeds, at + torch.arange(g + 1))
        verdict = walk(tree, sampled_tokens(logits, temperatures, noise, tree.depths), g)
        for text, tokens, count in zip(
            texts, verdict.tokens.tolist(), verdict.accept_lens.tolist(), strict=True
        ):
            text += tokens[:count]
        steps += 1
    delivered = sum(map(len, texts)) / bs - 2
    return torch.tensor([text[2 : length + 2] for text in texts]), delivered / steps


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 3), st.integers(2, 5))
def test_a_seed_gives_the_same_tokens_with_and_without_speculation(
    seed: int, g: int, K: int
) -> None:
    """Whatever the tree: drafter-invariance."""
    seeds = torch.tensor([seed, seed + 1, -seed, 7])
    temperatures = torch.tensor([1.0, 0.6, 1.4, 0.0])
    plain = plain_decoding(seeds, temperatures, length=12)
    speculative, accept_length = speculative_decoding(
        seeds, temperatures, 12, lambda step: random_lattice(4, g, K, seed + step, VOCAB)
    )
    assert torch.equal(speculative, plain)
    assert accept_length > 1


def test_the_law_of_the_first_three_tokens_is_the_targets() -> None:
    """10,000 seeds against the exact law of 216 outcomes; a right sampler fails 1 in 10^4."""
    draws, temperature = 10_000, 0.9
    law = (TARGET / temperature).softmax(-1)
    exact = torch.einsum("a,ab,abc->abc", law[0, 1], law[1], law).flatten()
    speculative, accept_length = speculative_decoding(
        torch.arange(draws), torch.full((draws,), temperature), 3, law_lattices(draws)
    )
    assert accept_length > 1.5  # it is trees that were tested, not plain decoding
    outcomes = speculative @ torch.tensor([36, 6, 1])
    assert_law(outcomes, exact, error_rate=1e-4)


def law_lattices(bs: int) -> Callable[[int], Lattice]:
    """All tokens as candidates of two positions; eight lattices in turn over the requests."""
    lattices = [random_lattice(1, 2, VOCAB, seed, VOCAB) for seed in range(8)]
    tokens = torch.cat([lattice.tokens for lattice in lattices])
    log_probs = torch.cat([lattice.log_probs for lattice in lattices])
    which = torch.arange(bs) % 8
    return lambda _: Lattice(tokens[which], log_probs[which])
