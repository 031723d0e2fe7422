"""The fuzz itself: what it draws, and which answers it calls wrong."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.engine.checkpoints import VOCAB
from tests.engine.fuzzing import FuzzRequest, draw_request, fault_of

DRAWN = [draw_request(Random(seed), f"r{seed}") for seed in range(600)]


def test_the_whole_surface_is_drawn() -> None:
    asked = {name for request in DRAWN for name in (*request.sampling, *request.body)}
    assert asked >= {
        *("temperature", "top_k", "top_p", "min_p", "sampling_seed", "n", "ignore_eos"),
        *("frequency_penalty", "presence_penalty", "repetition_penalty", "min_new_tokens"),
        *("stop", "stop_token_ids", "logit_bias", "regex", "json_schema", "ebnf"),
        *("stream", "return_logprob", "top_logprobs_num", "token_ids_logprob"),
        *("stop_regex", "custom_logit_processor", "custom_params"),
    }
    assert any(request.leaves_after is not None for request in DRAWN)
    assert any(request.aborts_after is not None for request in DRAWN)
    assert any(request.refusable for request in DRAWN)
    assert sum(request.is_reproducible for request in DRAWN) > 200


def test_a_seed_draws_the_same_request_again() -> None:
    assert draw_request(Random(7), "r7") == DRAWN[7]


def test_tokens_are_of_the_vocabulary() -> None:
    assert all(0 <= token < VOCAB for request in DRAWN for token in request.body["input_ids"])


def answer(tokens: list[int], reason: str = "length", text: str = "", **meta: Any) -> dict:
    finish = {"type": reason, "matched": meta.pop("matched", None)}
    counted = {"completion_tokens": len(tokens), "finish_reason": finish, **meta}
    return {"output_ids": tokens, "text": text, "meta_info": counted}


def asking(**sampling: Any) -> FuzzRequest:
    return FuzzRequest({"sampling_params": {"max_new_tokens": 3, "ignore_eos": False, **sampling}})


@pytest.mark.parametrize(
    ("request_", "got", "fault"),
    [
        (asking(), answer([5, 6, 7]), None),
        (asking(), answer([5, 6]), "ended for its length after 2"),
        (asking(), answer([5, 6, 7, 8]), "4 tokens"),
        (asking(), answer([5, 6, 7], completion_tokens=4), "4 tokens counted, 3 delivered"),
        (asking(), answer([5, 6], "abort"), "aborted by nobody"),
        (asking(), answer([1, 6, 7]), "behind a stop token"),
        (asking(ignore_eos=True), answer([1, 6, 7]), None),
        (asking(stop_token_ids=[6]), answer([5, 6, 7]), "behind a stop token"),
        (asking(stop_token_ids=[6]), answer([5, 6], "stop"), None),
        (asking(stop=["bc"]), answer([5, 6, 7], text="abcd"), "holds a stop string"),
        (asking(regex="a+"), answer([5, 1], "stop", "ab", matched=1), "does not match its regex"),
        (asking(regex="a+"), answer([5, 1], "stop", "a", matched=1), None),
        (asking(json_schema="{}"), answer([5, 1], "stop", "{", matched=1), "is no JSON"),
    ],
)
def test_an_answer_that_contradicts_its_request_is_named(
    request_: FuzzRequest, got: dict, fault: str | None
) -> None:
    found = fault_of(request_, got)
    assert (found is None) if fault is None else (found is not None and fault in found)
