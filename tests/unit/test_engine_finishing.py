"""A step of several tokens ends a text where a token at a time would have ended it."""

from __future__ import annotations

from array import array
from itertools import accumulate, pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.sampling.sampling_params import SamplingParams

from dflash_sglang.engine.finishing import finish_at_first_end
from tests.engine.tokenizers import CHARACTERS, character_tokenizer

TOKENIZER = character_tokenizer()
TOKENIZER.additional_stop_token_ids = None  # SGLang's own attribute
SGLANGS_OWN = Req.update_finish_state


def tokens_of(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


def request(grammar: Any = None, **asked: Any) -> Req:
    params = SamplingParams(**{"max_new_tokens": 1000, **asked})
    params.normalize(TOKENIZER)
    req = Req("r", "", array("q", [2]), params, vocab_size=64)
    req.tokenizer = TOKENIZER
    req.grammar = grammar
    return req


def feed(req: Req, steps: list[list[int]]) -> tuple[list[int], Any]:
    """What is delivered, and why it ended."""
    for step in steps:
        req.output_ids.extend(step)
        finish_at_first_end(SGLANGS_OWN, req, len(step))
        if req.finished():
            return list(req.output_ids_through_stop), req.finished_reason.to_json()
    return list(req.output_ids), None


def test_a_stop_string_behind_a_stop_token_comes_too_late():
    (stop,) = tokens_of("x")
    req = request(stop=["bc"], stop_token_ids=[stop])
    tokens, reason = feed(req, [tokens_of("axbcd")])
    assert tokens == tokens_of("ax")
    assert reason == {"type": "stop", "matched": stop}
    assert list(req.output_ids) == tokens_of("axbcd")  # what SGLang frees is counted by these


def test_the_first_of_two_stop_strings_counts_whichever_is_listed_first():
    tokens, reason = feed(request(stop=["d", "b"]), [tokens_of("abcde")])
    assert tokens == tokens_of("ab")
    assert reason == {"type": "stop", "matched": "b"}


def test_the_length_limit_counts_before_a_later_stop_string():
    tokens, reason = feed(request(stop=["d"], max_new_tokens=2), [tokens_of("abcde")])
    assert tokens == tokens_of("ab")
    assert reason["type"] == "length"


@pytest.mark.parametrize("terminated", [True, False])
def test_a_grammar_ends_behind_its_last_token(terminated):
    grammar = SimpleNamespace(is_terminated=lambda: terminated)
    tokens, reason = feed(request(grammar, stop=["never"]), [tokens_of("abc")])
    assert tokens == tokens_of("abc")
    assert (reason is not None) == terminated


@settings(deadline=None)
@given(data=st.data())
def test_steps_of_any_length_end_a_text_where_single_tokens_do(data):
    letters = CHARACTERS[:4]
    asked: dict[str, Any] = {
        "stop": data.draw(st.lists(st.text(letters, min_size=1, max_size=3), max_size=3)),
        "stop_token_ids": data.draw(st.lists(st.sampled_from(tokens_of(letters)), max_size=1)),
        "ignore_eos": data.draw(st.booleans()),
        "max_new_tokens": data.draw(st.integers(1, 24)),
    }
    if data.draw(st.booleans()):
        asked["stop_regex"] = ["a[bc]+d"]
    text = tokens_of(data.draw(st.text(letters, min_size=1, max_size=24)))
    lengths = data.draw(st.lists(st.integers(1, 8), min_size=24, max_size=24))
    ends = [0, *accumulate(lengths)]
    steps = [text[start:end] for start, end in pairwise(ends) if text[start:]]
    assert feed(request(**asked), steps) == feed(request(**asked), [[token] for token in text])
