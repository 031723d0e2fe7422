"""What every generator of the demo corpus returns, and the small vocabulary that they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple, TypeVar

DOMAINS = ("code", "chat", "json", "arithmetic", "library")

Message = dict[str, str]  # {"role": "system" | "user" | "assistant", "content": text}
T = TypeVar("T")


class Sample(NamedTuple):
    """One conversation of the corpus."""

    domain: str  # one of DOMAINS
    key: str  # the slot values; wording is left out, so that paraphrases share a split
    messages: list[Message]  # user and assistant in turn, assistant last


Generator = Callable[[Random], Sample]


def dialogue(domain: str, key: Sequence[object], *turns: str) -> Sample:
    """A sample from turns that alternate between user and assistant, the user first."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(turns)]
    return Sample(domain, "|".join(map(str, key)), messages)


def several(rng: Random, values: Sequence[T], low: int, high: int) -> list[T]:
    """Between `low` and `high` distinct values, in random order."""
    return rng.sample(list(values), rng.randint(low, high))


def listed(words: Sequence[str], joint: str = "and") -> str:
    """`a, b and c`."""
    if len(words) == 1:
        return words[0]
    return f"{', '.join(words[:-1])} {joint} {words[-1]}"


def an(noun: str) -> str:
    """The noun with its article."""
    return f"an {noun}" if noun[0].lower() in "aeiou" else f"a {noun}"


def bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def numbered(lines: Sequence[str]) -> str:
    return "\n".join(f"{i}. {line}" for i, line in enumerate(lines, start=1))


NAMES = (
    "Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Henry", "Iris", "Jack", "Karen",
    "Leo", "Maria", "Nora", "Oscar", "Paula", "Quinn", "Robert", "Sarah", "Thomas", "Ursula",
    "Victor", "Wendy", "Xavier", "Yara", "Zoe", "Alan", "Bella", "Carl", "Diana",
)  # fmt: skip
SURNAMES = (
    "Adams", "Baker", "Clark", "Davis", "Evans", "Fisher", "Green", "Harris", "Irving", "Jones",
    "King", "Lewis", "Miller", "Nelson", "Owens", "Parker", "Quist", "Roberts", "Smith",
    "Turner", "Underwood", "Vance", "Walker", "Young", "Zimmer",
)  # fmt: skip
CITIES = (
    "Berlin", "Paris", "Madrid", "Rome", "London", "Vienna", "Oslo", "Dublin", "Lisbon",
    "Prague", "Warsaw", "Athens", "Helsinki", "Boston", "Chicago", "Denver", "Seattle",
    "Toronto", "Tokyo", "Sydney",
)  # fmt: skip
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip
DAYS = (
    "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday",
)  # fmt: skip
GOODS = {  # name -> usual price in whole coins
    "apple": 2, "pear": 3, "lemon": 1, "melon": 5, "bread": 4, "cheese": 7, "pen": 2,
    "pencil": 1, "notebook": 6, "book": 12, "ruler": 3, "cup": 5, "plate": 8, "lamp": 20,
    "chair": 45, "candle": 3, "ticket": 9, "ball": 10, "hat": 15, "scarf": 18,
}  # fmt: skip
