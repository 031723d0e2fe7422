"""Requests in tokens to a server's native endpoint, and what a difference is worth."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import httpx

from dflash_sglang.bench.server import Server

TIMEOUT = 600


class Generation(NamedTuple):
    """What one request got."""

    token_ids: list[int]
    meta: dict[str, Any]


def generate(server: Server, prompt: list[int], max_new_tokens: int, **sampling: Any) -> Generation:
    """One greedy request (unless ``sampling`` says otherwise) that ignores the end token."""
    parameters = {"max_new_tokens": max_new_tokens, "temperature": 0.0, "ignore_eos": True}
    answer = httpx.post(
        f"{server.url}/generate",
        json={"input_ids": prompt, "sampling_params": {**parameters, **sampling}},
        timeout=TIMEOUT,
    )
    answer.raise_for_status()
    body = answer.json()
    return Generation(body["output_ids"], body["meta_info"])


def generate_all(
    server: Server, prompts: list[list[int]], max_new_tokens: int, concurrency: int, **sampling: Any
) -> list[Generation]:
    """All prompts, ``concurrency`` at a time, in the order of the prompts."""
    with ThreadPoolExecutor(concurrency) as pool:
        return list(
            pool.map(lambda prompt: generate(server, prompt, max_new_tokens, **sampling), prompts)
        )


def make_prompts(count: int, vocab_size: int, longest: int, seed: int = 0) -> list[list[int]]:
    """Random prompts of 1 to ``longest`` tokens; every third begins like one shared text."""
    rng = random.Random(seed)
    shared = [rng.randrange(vocab_size) for _ in range(longest)]
    prompts = []
    for index in range(count):
        length = rng.choice([1, 2, 17, 64, longest // 2, longest, rng.randrange(1, longest)])
        common = rng.randrange(length) if index % 3 == 0 else 0
        prompts.append(
            shared[:common] + [rng.randrange(vocab_size) for _ in range(length - common)]
        )
    return prompts


class Difference(NamedTuple):
    """The first token at which two answers to one prompt part."""

    prompt: int  # index of the prompt
    position: int  # index of the token in the answer
    expected: int
    got: int
    gap: float  # how much likelier the baseline finds its own token, in nats


def differences(
    baseline: Server,
    prompts: list[list[int]],
    expected: list[Generation],
    got: list[Generation],
) -> list[Difference]:
    """Every prompt whose answers differ, with the gap that the baseline sees between the tokens."""
    found = []
    for index, (prompt, left, right) in enumerate(zip(prompts, expected, got, strict=True)):
        if left.token_ids == right.token_ids:
            continue
        pairs = zip(left.token_ids, right.token_ids, strict=True)
        position = next(place for place, (a, b) in enumerate(pairs) if a != b)
        context = prompt + left.token_ids[:position]
        tokens = (left.token_ids[position], right.token_ids[position])
        found.append(Difference(index, position, *tokens, logprob_gap(baseline, context, tokens)))
    return found


def logprob_gap(server: Server, context: list[int], tokens: tuple[int, int]) -> float:
    """log p(tokens[0]) - log p(tokens[1]) behind ``context``."""
    answer = httpx.post(
        f"{server.url}/generate",
        json={
            "input_ids": context,
            "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
            "return_logprob": True,
            "token_ids_logprob": list(tokens),
        },
        timeout=TIMEOUT,
    )
    answer.raise_for_status()
    entries = answer.json()["meta_info"]["output_token_ids_logprobs"][0]
    by_token = {entry[1]: entry[0] for entry in entries}
    return by_token[tokens[0]] - by_token[tokens[1]]
