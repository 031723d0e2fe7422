"""The noise of a batch: whose stream, and when SGLang's sampler draws instead."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from dflash_sglang.engine.noise import step_noise
from dflash_sglang.tree.truncation import NO_TOP_K
from dflash_sglang.verify import gumbel_noise

VOCAB, DEPTH = 16, 3


def batch_of(*rids: str, **fields: Any) -> SimpleNamespace:
    """As much of SGLang's batch as is looked at; sampled at temperature 1 unless told otherwise."""
    n = len(rids)
    info = {
        "is_all_greedy": False,
        "need_min_p_sampling": False,
        "need_top_k_sampling": False,
        "need_top_p_sampling": False,
        "sampling_seed": None,
        "vocab_size": VOCAB,
        "top_ks": torch.full((n,), NO_TOP_K, dtype=torch.int32),
        "top_ps": torch.ones(n),
        "temperatures": torch.ones(n, 1),
    }
    return SimpleNamespace(
        sampling_info=SimpleNamespace(**{**info, **fields}),
        reqs=[SimpleNamespace(rid=rid) for rid in rids],
        seq_lens=torch.full((n,), 9),
    )


def noise_of(batch: SimpleNamespace, server_seed: int = 1) -> torch.Tensor:
    """[bs, DEPTH + 1, VOCAB]."""
    noise = step_noise(batch, batch.seq_lens, DEPTH, server_seed)
    assert noise is not None
    return noise.keys.values(VOCAB)


def test_unseeded_requests_have_noise_of_their_own() -> None:
    first, second = noise_of(batch_of("a", "b"))
    assert (first == second).sum() == 0


def test_an_unseeded_request_keeps_its_noise_whoever_shares_the_batch() -> None:
    assert torch.equal(noise_of(batch_of("a", "b"))[1], noise_of(batch_of("b"))[0])


def test_two_runs_of_a_server_differ() -> None:
    assert (noise_of(batch_of("a"), 1) == noise_of(batch_of("a"), 2)).sum() == 0


def test_a_seed_gives_sglangs_noise_at_the_anchors_position_and_behind() -> None:
    seeds = torch.tensor([5, -3])
    got = noise_of(batch_of("a", "b", sampling_seed=seeds))
    positions = torch.arange(9, 9 + DEPTH + 1).expand(2, -1)
    assert torch.equal(got, gumbel_noise(seeds, positions, VOCAB))


def test_sglangs_sampler_draws_where_min_p_is_asked_for() -> None:
    batch = batch_of("a", need_min_p_sampling=True)
    assert step_noise(batch, batch.seq_lens, DEPTH, 1) is None


def test_a_greedy_request_beside_sampled_ones_has_temperature_zero() -> None:
    batch = batch_of("a", "b", top_ks=torch.tensor([1, NO_TOP_K], dtype=torch.int32))
    noise = step_noise(batch, batch.seq_lens, DEPTH, 1)
    assert noise is not None and noise.temperatures.tolist() == [0.0, 1.0]
    assert noise.is_coupled().tolist() == [False, True]
