"""Asking a server, and the sentences when it does not answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from dflash_sglang.audit.endpoint import AuditError, Endpoint, Question

VOCAB = 4099
Handler = Callable[[httpx.Request], httpx.Response]


def endpoint(handler: Handler) -> Endpoint:
    server = Endpoint("http://somewhere:1/", "candidate")
    server._client = httpx.Client(transport=httpx.MockTransport(handler))
    return server


def generates(request: httpx.Request) -> httpx.Response:
    """A server of VOCAB tokens that knows the shape of SGLang's answers."""
    body = json.loads(request.content)
    if request.url.path == "/tokenize":
        return httpx.Response(400 if "messages" in body else 200, json={"tokens": [5, 6]})
    if any(token >= VOCAB for token in body.get("token_ids_logprob", [])):
        return httpx.Response(400, json={"error": {"message": "out of vocabulary"}})
    meta: dict[str, Any] = {
        "finish_reason": {"type": "length", "length": 2},
        "spec_verify_ct": 1,
        "output_token_logprobs": [[-0.5, 7, None], [-0.25, 8, None]],
        "output_token_ids_logprobs": [[[-1.0, 3, None], [-2.0, 4, None]]],
        "output_top_logprobs": [[[-0.1, 9, None]]],
    }
    answer = {"output_ids": [7, 8], "meta_info": meta}
    several = isinstance(body["sampling_params"], list)
    return httpx.Response(200, json=[answer] * len(body["input_ids"]) if several else answer)


def refuses_connections(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("Connection refused")


def test_an_answer_holds_tokens_reason_and_steps() -> None:
    got = endpoint(generates).ask(Question([1], {"temperature": 0}))
    assert (got.token_ids, got.finish_reason, got.verify_steps) == ([7, 8], "length", 1)


def test_questions_of_one_call_are_answered_with_log_probabilities() -> None:
    got = endpoint(generates).ask_together([Question([1], {}), Question([2], {})])
    assert [answer.log_probs for answer in got] == [[-0.5, -0.25]] * 2


def test_log_probs_hold_the_wanted_tokens_and_the_likeliest() -> None:
    assert endpoint(generates).log_probs([1], [3, 4], ranks=1) == {3: -1.0, 4: -2.0, 9: -0.1}


def test_the_vocabulary_is_found_by_bisection() -> None:
    assert endpoint(generates).vocab_size == VOCAB


def test_text_goes_without_a_template_where_there_is_none() -> None:
    assert endpoint(generates).encode("hello") == [5, 6]


@pytest.mark.parametrize(
    ("handler", "sentence"),
    [
        (refuses_connections, "no SGLang server answers as --candidate at http://somewhere:1 "),
        (lambda _: httpx.Response(404), "no SGLang server answers as --candidate"),
        (lambda _: httpx.Response(200, text="<html>"), "no SGLang server answers as --candidate"),
    ],
    ids=["down", "another-server", "a-web-page"],
)
def test_a_server_that_is_none_is_named_in_one_sentence(handler: Handler, sentence: str) -> None:
    with pytest.raises(AuditError, match=sentence) as error:
        _ = endpoint(handler).info
    assert "\n" not in str(error.value)


def test_a_server_that_dies_is_named() -> None:
    with pytest.raises(AuditError, match="the candidate at http://somewhere:1 stopped answering"):
        endpoint(refuses_connections).ask(Question([1], {}))


def test_a_refused_request_is_quoted() -> None:
    with pytest.raises(AuditError, match=r"refused a request of the audit \(HTTP 400\): no such"):
        endpoint(lambda _: httpx.Response(400, text="no such thing")).ask(Question([1], {}))


def test_a_server_without_tokenizer_is_told_how_to_start() -> None:
    with pytest.raises(AuditError, match="start it without --skip-tokenizer-init"):
        endpoint(lambda _: httpx.Response(500)).encode("hello")
