"""Plain steps in a row: how many, where they end, and what SGLang's statistics make of them."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.sampling.sampling_params import SamplingParams

from dflash_sglang.engine.bursts import BurstBounds, count_forwards, count_verifications
from tests.engine.tokenizers import character_tokenizer

TOKENIZER = character_tokenizer()
TOKENIZER.additional_stop_token_ids = None  # SGLang's own attribute
PROMPT = [2, 5, 6]
END = TOKENIZER.eos_token_id
ORDINARY = END + 1


def request(rid: str = "r", **asked: Any) -> Req:
    params = SamplingParams(**{"max_new_tokens": 100, **asked})
    params.normalize(TOKENIZER)
    req = Req(rid, "", array("q", PROMPT), params, vocab_size=64)
    req.tokenizer = TOKENIZER
    return req


def batch(*requests: Req, generated: int = 1, **others: Any) -> Any:
    """Requests that have all generated so many tokens, the last of which is not in the cache."""
    fields = {
        "reqs": list(requests),
        "seq_lens_cpu": torch.full((len(requests),), len(PROMPT) + generated - 1),
        "has_grammar": False,
        "return_logprob": False,
        "sampling_info": SimpleNamespace(has_custom_logit_processor=False),
    }
    return SimpleNamespace(**{**fields, **others})


@pytest.mark.parametrize(("generated", "left"), [(1, 7), (5, 3), (7, 1), (8, 1), (9, 1)])
def test_a_burst_ends_where_the_first_request_reaches_its_limit(generated, left):
    """A request that is over is in the batch once more, as SGLang overlaps its steps."""
    requests = request("a"), request("b", max_new_tokens=8)
    assert BurstBounds().longest(batch(*requests, generated=generated)) == left


@pytest.mark.parametrize(
    "watched",
    [
        {"has_grammar": True},
        {"return_logprob": True},
        {"sampling_info": SimpleNamespace(has_custom_logit_processor=True)},
    ],
    ids=["grammar", "log-probabilities", "processor"],
)
def test_where_the_host_sees_every_token_there_is_one(watched):
    assert BurstBounds().longest(batch(request(), **watched)) == 1


def test_a_burst_ends_with_a_stop_token_and_the_next_step_is_short():
    bounds = BurstBounds()
    both = batch(request("a"), request("b", stop_token_ids=[ORDINARY]))
    assert not bounds.ends(both, torch.tensor([ORDINARY, ORDINARY + 1]))
    assert bounds.longest(both) > 1
    for tokens in ([END, ORDINARY + 1], [ORDINARY, ORDINARY]):
        assert bounds.ends(both, torch.tensor(tokens))
        assert bounds.longest(both) == 1
        assert bounds.longest(batch(request("c"))) > 1


def test_a_request_that_ignores_the_end_goes_on():
    deaf = batch(request(ignore_eos=True, stop_token_ids=[ORDINARY]))
    assert not BurstBounds().ends(deaf, torch.tensor([END]))


def test_without_a_tokenizer_the_requests_own_stop_tokens_count():
    bare = request(stop_token_ids=[ORDINARY])
    bare.tokenizer = None
    assert BurstBounds().ends(batch(bare), torch.tensor([ORDINARY]))
    assert not BurstBounds().ends(batch(bare), torch.tensor([END]))


OURS, OTHER = SimpleNamespace(name="DFLASH2"), SimpleNamespace(name="UNO")


def test_the_step_behind_prompts_is_short_since_their_first_tokens_wait_for_it():
    bounds = BurstBounds()
    bounds.after_prefill()
    assert [bounds.longest(batch(request())) for _ in range(2)] == [1, 99]


@pytest.mark.parametrize(("algorithm", "counted"), [(OURS, 4), (OTHER, 1)], ids=["ours", "another"])
def test_every_forward_counts_as_a_verification_without_a_draft(algorithm, counted):
    going_on, over, retracted = request("a"), request("b"), request("c")
    over.finished_reason = object()
    retracted.is_retracted = True

    def sglangs_own(processor, result, batch):
        going_on.spec_verify_ct += 1
        going_on.update_spec_correct_drafts_histogram(0)
        going_on.finished_reason = object()  # it may end with these tokens
        return [[5] * 4]

    step = batch(going_on, over, retracted, spec_algorithm=algorithm)
    result = SimpleNamespace(num_non_draft_tokens_per_req=4)
    assert count_verifications(sglangs_own, None, result, step) == [[5] * 4]
    assert going_on.spec_verify_ct == counted
    assert going_on.spec_correct_drafts_histogram == [counted]
    assert over.spec_verify_ct == retracted.spec_verify_ct == 0


@pytest.mark.parametrize(
    ("algorithm", "bs", "correct_drafts", "accepted", "verified"),
    [(OURS, 3, 0, 12, 12), (OURS, 3, 7, 10, 3), (OURS, 1, 0, 1, 1), (OTHER, 3, 4, 10, 3)],
    ids=["a burst of four", "drafts", "one token", "another algorithm"],
)
def test_sglangs_accept_length_is_tokens_a_forward(
    algorithm, bs, correct_drafts, accepted, verified
):
    told = []
    reporter = SimpleNamespace(scheduler=SimpleNamespace(spec_algorithm=algorithm))
    count_forwards(
        lambda reporter, bs, *rest, **others: told.append((bs, *rest, others)),
        reporter,
        bs,
        correct_drafts,
        num_accept_tokens=accepted,
        num_cap_tokens=0,
    )
    assert told == [(verified, correct_drafts, accepted, {"num_cap_tokens": 0})]
