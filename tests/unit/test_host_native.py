"""SGLang's own chain on the CPU: the stand-in for its sampling kernel keeps the target's law."""

from types import SimpleNamespace

import pytest
import torch

from dflash_sglang.host.native import accept_fixed_draft, chain_sampling, top_k
from tests.unit.chi_square import assert_law

BATCH, DRAFTED, VOCAB = 20_000, 2, 5


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def sampled(target: torch.Tensor, draft: torch.Tensor, seed: int = 0):
    """Chains drawn from ``draft`` [g, V], verified against ``target`` [g + 1, V].

    Returns:
        predicts [bs, g + 1], accept_index [bs, g + 1], accepted [bs], candidates [bs, g + 1].
    """
    torch.manual_seed(seed)
    slots = torch.arange(BATCH * (DRAFTED + 1)).view(BATCH, -1)
    drawn = torch.multinomial(draft, BATCH, replacement=True).T  # [bs, g]
    candidates = torch.cat([torch.zeros(BATCH, 1, dtype=torch.int64), drawn], dim=1)
    predicts = torch.full((BATCH * (DRAFTED + 1),), -1, dtype=torch.int32)
    accept_index = torch.full((BATCH, DRAFTED + 1), -1, dtype=torch.int32)
    accepted = torch.zeros(BATCH, dtype=torch.int32)

    def original(*_args, **_options):
        raise AssertionError("the Triton kernel was called on a CPU")

    chain_sampling(
        original, predicts, accept_index, accepted, candidates, slots, slots, slots,
        torch.rand(BATCH, DRAFTED), torch.rand(BATCH),
        target.expand(BATCH, -1, -1), draft.expand(BATCH, -1, -1),
        threshold_single=1.0, threshold_acc=1.0, deterministic=True,
    )  # fmt: skip
    return predicts.view(BATCH, -1), accept_index, accepted, candidates


def test_the_first_token_follows_the_target_whatever_the_draft():
    target = torch.softmax(torch.randn(DRAFTED + 1, VOCAB, generator=generator(1)), dim=-1)
    draft = torch.softmax(2 * torch.randn(DRAFTED, VOCAB, generator=generator(2)), dim=-1)
    predicts, *_ = sampled(target, draft)
    assert_law(predicts[:, 0].long(), target[0], error_rate=1e-4)


def test_a_draft_like_the_target_is_accepted_whole_and_a_bonus_follows():
    target = torch.softmax(torch.randn(DRAFTED + 1, VOCAB, generator=generator(1)), dim=-1)
    predicts, accept_index, accepted, candidates = sampled(target, target[:DRAFTED])
    assert (accepted == DRAFTED).all()
    assert torch.equal(predicts[:, :DRAFTED], candidates[:, 1:].int())
    assert torch.equal(accept_index[0], torch.arange(DRAFTED + 1, dtype=torch.int32))
    assert_law(predicts[:, DRAFTED].long(), target[DRAFTED], error_rate=1e-4)


def test_an_impossible_draft_is_rejected_and_nothing_behind_it_is_written():
    target = torch.tensor([[0.0, 0.5, 0.5, 0.0, 0.0]]).repeat(DRAFTED + 1, 1)
    draft = torch.tensor([[0.0, 0.0, 0.0, 1.0, 0.0]]).repeat(DRAFTED, 1)
    predicts, accept_index, accepted, _ = sampled(target, draft)
    assert (accepted == 0).all()
    assert set(predicts[:, 0].tolist()) == {1, 2}
    assert (predicts[:, 1:] == -1).all() and (accept_index[:, 1:] == -1).all()


def test_a_drafter_without_a_law_is_verified_as_if_it_were_certain():
    logits = torch.randn(DRAFTED + 1, VOCAB, generator=generator(1))
    target = torch.softmax(logits, dim=-1)
    best = target.argmax(dim=-1)[:DRAFTED]
    torch.manual_seed(3)

    def original(**_options):
        raise AssertionError("the CUDA kernel was called on a CPU")

    length, bonus = accept_fixed_draft(
        original,
        candidates=torch.cat([torch.zeros(1, dtype=torch.int64), best]).repeat(BATCH, 1),
        next_token_logits=logits.repeat(BATCH, 1),
        sampling_info=SimpleNamespace(
            temperatures=torch.ones(BATCH, 1), need_top_k_sampling=False, need_top_p_sampling=False
        ),
    )
    first = torch.where(length > 0, best[0], bonus)
    assert_law(first, target[0], error_rate=1e-4)
    assert_law(bonus[length == DRAFTED], target[DRAFTED], error_rate=1e-4)


def test_block_verification_is_refused_by_name():
    with pytest.raises(NotImplementedError, match="token by token"):
        chain_sampling(lambda *_: None, *[torch.zeros(1, 1)] * 11, block_verification=True)


def test_top_k_on_a_cpu_is_pytorchs():
    scores = torch.randn(3, 40)

    def original(*_):
        raise AssertionError("FlashInfer was called on a CPU")

    values, places = top_k(original, scores, 4)
    assert torch.equal(values, torch.topk(scores, 4).values)
    assert torch.equal(scores.gather(1, places), values)
