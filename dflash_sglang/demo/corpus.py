"""The demo corpus: conversations drawn from a seed, split by their slot values."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from random import Random
from typing import Literal

from dflash_sglang.demo import arithmetic, chat, code, records
from dflash_sglang.demo.sample import DOMAINS, Generator, Sample
from dflash_sglang.demo.stdlib import library_function

Split = Literal["training", "held-out"]

GENERATORS: dict[str, tuple[Generator, ...]] = {
    "code": code.GENERATORS,
    "chat": chat.GENERATORS,
    "json": records.GENERATORS,
    "arithmetic": arithmetic.GENERATORS,
    "library": (library_function,),
}
# Conversations per domain, so that each of the first four gets about a fifth of the tokens.
WEIGHTS = {"code": 18, "chat": 22, "json": 20, "arithmetic": 21, "library": 14}
HELD_OUT_OF = 40  # one in so many slot values is held out
_JOINT = " && "  # between the keys of a conversation that was made of two


def split_of(sample: Sample) -> Split:
    """The split is a function of the slot values alone, so paraphrases never cross it.

    A conversation made of two has both halves in one split.
    """
    first = sample.key.split(_JOINT)[0]
    digest = blake2b(f"{sample.domain}|{first}".encode(), digest_size=8).digest()
    return "held-out" if int.from_bytes(digest, "big") % HELD_OUT_OF == 0 else "training"


def _draw(rng: Random, domain: str, split: Split) -> Sample:
    while True:
        sample = rng.choice(GENERATORS[domain])(rng)
        if split_of(sample) == split:
            return sample


def _in_one_turn(a: Sample, b: Sample) -> Sample:
    (ask_a, answer_a), (ask_b, answer_b) = a.messages[:2], b.messages[:2]
    both = [
        {
            "role": "user",
            "content": f"Please do two things.\n\nFirst: {ask_a['content']}\n\n"
            f"Second: {ask_b['content']}",
        },
        {
            "role": "assistant",
            "content": f"First:\n\n{answer_a['content']}\n\nSecond:\n\n{answer_b['content']}",
        },
    ]
    return Sample(a.domain, a.key + _JOINT + b.key, both)


def _in_two_turns(a: Sample, b: Sample) -> Sample:
    return Sample(a.domain, a.key + _JOINT + b.key, a.messages + b.messages)


def conversations(seed: int, split: Split, domain: str | None = None) -> Iterator[Sample]:
    """An endless stream of conversations of one split, of one domain or of all in proportion."""
    if domain is not None and domain not in DOMAINS:
        raise ValueError(f"expected a domain out of {', '.join(DOMAINS)}, got {domain!r}")
    rng = Random(f"{seed} {split} {domain}")
    names, weights = list(WEIGHTS), list(WEIGHTS.values())
    while True:
        chosen = domain or rng.choices(names, weights)[0]
        sample = _draw(rng, chosen, split)
        form = rng.random()
        if chosen != "library" and form < 0.25:
            yield _in_one_turn(sample, _draw(rng, chosen, split))
        elif chosen != "library" and form < 0.40:
            yield _in_two_turns(sample, _draw(rng, chosen, split))
        else:
            yield sample
