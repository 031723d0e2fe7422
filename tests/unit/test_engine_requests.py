"""Requests that cannot be served exactly are refused by name, all others are taken."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.sampling.sampling_params import SamplingParams

from dflash_sglang.engine.requests import disarm, refusal

OUTPUTS = [
    "return_hidden_states",
    "return_sampling_mask",
    "return_routed_experts",
    "return_indexer_topk",
]


def request(tokenizer: object | None = None, **asked: Any) -> SimpleNamespace:
    """As much of SGLang's request as is looked at."""
    fields = {name: asked.pop(name, False) for name in OUTPUTS}
    return SimpleNamespace(tokenizer=tokenizer, sampling_params=SamplingParams(**asked), **fields)


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"frequency_penalty": 0.5, "presence_penalty": -1.0, "repetition_penalty": 1.2},
        {"min_p": 0.1},
        {"min_new_tokens": 3, "tokenizer": "a tokenizer"},
    ],
    ids=str,
)
def test_what_can_be_served_is_taken(asked):
    assert refusal(request(**asked), seeded=False) is None


@pytest.mark.parametrize(
    "name",
    [
        "return_hidden_states",
        "return_sampling_mask",
        "return_routed_experts",
        "return_indexer_topk",
    ],
)
def test_outputs_of_the_verify_forward_are_refused(name):
    assert name in refusal(request(**{name: True}), seeded=False)


def test_min_p_is_refused_where_it_would_end_the_server():
    assert "min_p: expected 0, got 0.1" in refusal(request(min_p=0.1), seeded=True)


def test_a_minimum_length_without_a_tokenizer_is_refused():
    assert "min_new_tokens" in refusal(request(min_new_tokens=3), seeded=False)


@pytest.mark.parametrize(
    "asked",
    [{"min_p": 0.3}, {"min_new_tokens": 3}, *({name: True} for name in OUTPUTS)],
    ids=str,
)
def test_nothing_of_a_refused_request_reaches_the_batch_that_answers_it(asked):
    """SGLang prefills a token of it; its sampler would end the server for a seeded min_p."""
    refused = request(**asked)
    assert refusal(refused, seeded=True) is not None
    disarm(refused)
    assert refusal(refused, seeded=True) is None


def test_a_refused_request_keeps_what_its_custom_processor_reads():
    """The processor runs on that token, too, and would end the server without its parameters."""
    refused = request(custom_params={"dflash2": {"depth": 1}, "token_ids": [2, 3]})
    assert "unknown field `depth`" in refusal(refused, seeded=False)
    disarm(refused)
    assert refusal(refused, seeded=False) is None
    assert refused.sampling_params.custom_params == {"token_ids": [2, 3]}
