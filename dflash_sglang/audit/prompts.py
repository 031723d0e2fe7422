"""The prompts that both servers are asked: plain English, for any target."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from random import Random

from dflash_sglang.demo.facts import ANIMALS, COUNTRIES, PHRASES, PLANETS, RECIPES, SKILLS, TRIPS

DEFAULT_COUNT = 200
_SEED = 20

_TEMPLATES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Tell me about {}.", tuple(COUNTRIES)),
    ("Write a Python function that {}.", (
        "returns the largest element of a list", "counts the words of a text",
        "checks whether a number is prime", "reverses the lines of a file",
        "merges two sorted lists", "removes duplicates from a list",
        "computes the factorial of n", "parses a date such as 2024-05-31",
    )),
    ("Describe the {} in three sentences.", tuple(ANIMALS)),
    ("What is {}? Show the steps.", ()),
    ("Write a JSON Schema for a {}.", ("book", "song", "flight", "recipe", "student", "house")),
    ("How do I learn {}? Answer as a numbered list.", tuple(SKILLS)),
    ("What do I need for a {} trip?", tuple(TRIPS)),
    ("How do you say '{}' in German, French and Spanish?", tuple(PHRASES)),
    ("Write a short letter that mentions {} and ends politely.", tuple(COUNTRIES)),
    ("Continue the story: 'Once upon a time there was a {} who'", tuple(ANIMALS)),
    ("Compare {} with the Earth.", tuple(name for name in PLANETS if name != "Earth")),
    ("Give me a recipe for {} and a shopping list.", tuple(RECIPES)),
)  # fmt: skip

# Open questions, whose answers begin in many ways.
OPEN_QUESTIONS: tuple[str, ...] = (
    "Tell me a story.",
    "Name something beautiful and say why.",
    "Write a poem about the sea.",
    "Write a Python program.",
)


def prompts(count: int = DEFAULT_COUNT) -> list[str]:
    """`count` distinct prompts of a dozen kinds in turn, the same at every call."""
    return list(islice(_endless(), count))


def _endless() -> Iterator[str]:
    rng = Random(_SEED)
    seen: set[str] = set()
    while True:
        for template, subjects in _TEMPLATES:
            prompt = template.format(rng.choice(subjects) if subjects else _sum(rng))
            if prompt in seen:
                # The few subjects of a kind run out; a second task makes the text new.
                prompt = f"{prompt} Then tell me what {_sum(rng)} is."
            if prompt not in seen:
                seen.add(prompt)
                yield prompt


def _sum(rng: Random) -> str:
    return f"{rng.randrange(10, 1000)} {rng.choice('+-')} {rng.randrange(10, 1000)}"
