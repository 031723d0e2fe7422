"""The seeded token behind a prompt does not depend on the prompts beside it."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from dflash_sglang.engine.first_tokens import draw_as_alone
from dflash_sglang.tree import NO_TOP_K
from dflash_sglang.verify import NoiseKeys, sampled_tokens

VOCAB = 200
SEEDS = torch.tensor([5, 6, 7])
LENS = torch.tensor([10, 20, 30])
LOGITS = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(3)) * 2


def batch_of(top_ks: list[int], **info) -> SimpleNamespace:
    """Three sampled prompts; SGLang writes a greedy one as top_k 1."""
    given = {
        "sampling_seed": SEEDS,
        "is_all_greedy": False,
        "need_top_k_sampling": any(top_k != NO_TOP_K for top_k in top_ks),
        "need_top_p_sampling": False,
        "top_ks": torch.tensor(top_ks, dtype=torch.int32),
        "top_ps": torch.ones(3),
    }
    info = SimpleNamespace(**{**given, **info})
    return SimpleNamespace(sampling_info=info, seq_lens=LENS, is_prefill_only=False)


def sampled() -> SimpleNamespace:
    return SimpleNamespace(next_token_logits=LOGITS.softmax(dim=-1), next_token_logprobs=None)


def test_only_requests_without_truncation_are_drawn_again():
    by_rank = torch.tensor([1, 2, 3], dtype=torch.int32)  # what the sampler drew for the batch
    got = draw_as_alone(batch_of([NO_TOP_K, 1, 8]), sampled(), by_rank)
    noise = NoiseKeys(SEEDS, (LENS - 1)[:, None])
    alone = sampled_tokens(LOGITS[:, None], torch.ones(3), noise, torch.zeros(3, 1).long())
    assert got.tolist() == [int(alone[0]), 2, 3]
    assert got.dtype == by_rank.dtype


def test_the_log_probability_follows_the_token():
    output = sampled()
    output.next_token_logprobs = torch.tensor([-1.0, -2.0, -3.0])
    got = draw_as_alone(batch_of([NO_TOP_K, 1, 8]), output, torch.tensor([1, 2, 3]))
    expected = LOGITS[0].log_softmax(dim=-1)[got[0]]
    assert got[0] != 1
    torch.testing.assert_close(output.next_token_logprobs, torch.tensor([expected, -2.0, -3.0]))


def test_a_batch_that_sglang_draws_by_token_is_left_alone():
    tokens = torch.tensor([1, 2, 3])
    for batch in (
        batch_of([NO_TOP_K] * 3),
        batch_of([NO_TOP_K, 1, 8], sampling_seed=None),
        batch_of([1, 1, 1], is_all_greedy=True),
    ):
        assert draw_as_alone(batch, sampled(), tokens) is tokens
