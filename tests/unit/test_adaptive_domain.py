"""What kind of text a prompt asks for."""

import json
from pathlib import Path

import pytest

import dflash_sglang.bench
from dflash_sglang.adaptive.domain import DOMAINS, NUM_ORIGINS, Domain, classify, origin

BUILTIN = Path(dflash_sglang.bench.__file__).parent / "builtin.jsonl"


@pytest.mark.parametrize(
    ("prompt", "domain"),
    [
        ("Write a Python function that checks whether a number is prime.", "code"),
        ("Find the bug:\n\ndef mean(values):\n    return sum(values)", "code"),
        ("Return a JSON object with the keys name and age.", "json"),
        ("What is 17 * 23?", "math"),
        ("How many apples are left if 3 of 12 are eaten? Calculate.", "math"),
        ("Write a short story about a lighthouse keeper.", "prose"),
        ("What is the capital of France?", "chat"),
        ("", "chat"),
    ],
)
def test_a_prompt_is_told_by_its_words(prompt, domain):
    assert classify(prompt, has_grammar=False).name == domain


def test_an_answer_held_to_a_grammar_is_json_whatever_the_prompt():
    domain = classify("Write a poem.", has_grammar=True)
    assert (domain.name, domain.reason) == ("json", "the answer is held to a grammar")


def test_most_of_the_builtin_prompts_are_told_right():
    rows = [json.loads(line) for line in BUILTIN.read_text().splitlines()]
    expected = {"code": {"code"}, "json": {"json"}, "arithmetic": {"math"}, "chat": {"chat"}}
    asked = [row for row in rows if row["category"] in expected]
    right = [
        classify(row["prompt"], has_grammar=False).name in expected[row["category"]]
        for row in asked
    ]
    assert sum(right) >= 0.7 * len(asked)


def test_long_and_short_prompts_of_a_domain_start_apart():
    found = [
        origin(Domain(index, ""), tokens)
        for index in range(len(DOMAINS))
        for tokens in (0, 255, 256, 1_023, 1_024, 4_095, 4_096, 100_000)
    ]
    assert found == [place for place in range(NUM_ORIGINS) for _ in range(2)]
