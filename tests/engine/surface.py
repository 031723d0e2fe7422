"""The request surface: one example of everything a request may ask for, and how it is asked."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
from sglang.srt.sampling.custom_logit_processor import (
    DeepseekOCRNoRepeatNGramLogitProcessor,
    DisallowedTokensLogitsProcessor,
)

from dflash_sglang.bench.server import Server
from tests.engine.tokenizers import character_tokenizer
from tests.engine.traffic import TIMEOUT

END = character_tokenizer().eos_token_id
LENGTH = 40
ROBOT = {
    "type": "object",
    "properties": {
        "name": {"enum": ["ada", "alan", "grace"]},
        "age": {"type": "integer", "minimum": 1, "maximum": 99},
        "awake": {"type": "boolean"},
        "tags": {"type": "array", "items": {"enum": ["a", "ab", "abc"]}, "maxItems": 4},
    },
    "required": ["name", "age", "awake", "tags"],
}
NESTED = 'root ::= item+ "."\nitem ::= "x" | "yz" | "(" item item? ")"'
EARLY_END = {"logit_bias": {str(END): 6.0}, "ignore_eos": False}

# Parameters of SGLang's native endpoint, by what they exercise. A repetition penalty never stands
# beside a frequency or presence penalty: without the overlap scheduler SGLang 0.5.23 applies them
# in the order of a set of classes, which another start of the same server may turn round.
OPTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "frequency": {"frequency_penalty": 0.7},
    "frequency that rewards": {"frequency_penalty": -0.4},
    "presence": {"presence_penalty": 1.3},
    "repetition": {"repetition_penalty": 1.5},
    "frequency and presence": {"frequency_penalty": 0.3, "presence_penalty": 0.5},
    "minimum length": {"min_new_tokens": 17, **EARLY_END},
    "minimum length and stop tokens": {"min_new_tokens": 9, "stop_token_ids": [5, 11, 23, 31]},
    "bias": {"logit_bias": {"5": 3.0, "9": -100.0, "40": 2.0}},
    "regex": {"regex": "(ab|cd|e[0-9]+f){3,9}!", "ignore_eos": False},
    "json schema": {"json_schema": json.dumps(ROBOT), "ignore_eos": False},
    "ebnf": {"ebnf": NESTED, "ignore_eos": False},
    "grammar and penalties": {
        "regex": "([a-f]{2,5}[0-9]){2,6}",
        "ignore_eos": False,
        "frequency_penalty": 0.6,
        "logit_bias": {str(END): -1.0},
    },
    "grammar and repetition": {
        "regex": "([a-f]{2,5}[0-9]){2,6}",
        "ignore_eos": False,
        "repetition_penalty": 1.2,
    },
}
SAMPLING = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 1.0, "sampling_seed": 77},
    "seeded and truncated": {"temperature": 0.8, "sampling_seed": 5, "top_k": 20, "top_p": 0.9},
}
PROCESSORS = {
    "no pair of tokens twice": {
        "custom_logit_processor": DeepseekOCRNoRepeatNGramLogitProcessor.to_str(),
        "custom_params": {"ngram_size": 2, "window_size": 100},
    },
    "some tokens never": {
        "custom_logit_processor": DisallowedTokensLogitsProcessor.to_str(),
        "custom_params": {"token_ids": list(range(2, 30))},
    },
}


def ask(server: Server, prompt: list[int] | None, **asked: Any) -> dict[str, Any]:
    """One request to the native endpoint; what is no sampling parameter goes beside them."""
    beside = {
        name: asked.pop(name)
        for name in (
            *("return_logprob", "top_logprobs_num", "token_ids_logprob", "logprob_start_len"),
            *("custom_logit_processor", "return_hidden_states", "session_params", "rid"),
            *("return_sampling_mask", "input_embeds"),
        )
        if name in asked
    }
    params = {"max_new_tokens": LENGTH, "ignore_eos": True, **asked}
    answer = httpx.post(
        f"{server.url}/generate",
        json={"input_ids": prompt, "sampling_params": params, **beside},
        timeout=TIMEOUT,
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


def ask_all(
    server: Server, requests: list[tuple[list[int], dict[str, Any]]], concurrency: int
) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(concurrency) as pool:
        return list(pool.map(lambda request: ask(server, request[0], **request[1]), requests))


def outcome(answer: dict[str, Any]) -> tuple[list[int], Any, int]:
    """What must not depend on speculation."""
    meta = answer["meta_info"]
    return answer["output_ids"], meta["finish_reason"], meta["completion_tokens"]


def every_kind(prompts: list[list[int]]) -> list[tuple[list[int], dict[str, Any]]]:
    """Requests of all kinds, neighbours unlike each other."""
    kinds = [*OPTIONS.values(), *PROCESSORS.values()]
    return [
        (prompt, {**list(SAMPLING.values())[(place + row) % 3], **kind})
        for row, prompt in enumerate(prompts)
        for place, kind in enumerate(kinds)
    ]
