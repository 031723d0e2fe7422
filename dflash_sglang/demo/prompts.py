"""Prompts for the demo pair: held out for evaluation, or to train a drafter on the answers.

python -m dflash_sglang.demo.prompts --count 20000 --seed 1 --out prompts.jsonl
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from dflash_sglang.demo.corpus import Split, conversations
from dflash_sglang.demo.sample import Message, Sample

EVALUATED = ("code", "chat", "json", "arithmetic")
HELD_OUT_PER_DOMAIN = 12
HELD_OUT_SEED = 2026


class Prompt(NamedTuple):
    """What a chat completion is asked for."""

    id: str
    domain: str
    messages: list[Message]  # the last one is the user's


def _prompts(samples: Iterable[Sample], prefix: str) -> Iterator[Prompt]:
    """The samples without their last answer; a text that was seen before is passed over."""
    seen: set[str] = set()
    for sample in samples:
        messages = sample.messages[:-1]
        text = json.dumps(messages)
        if text not in seen:
            seen.add(text)
            yield Prompt(f"{prefix}-{len(seen) - 1:05d}", sample.domain, messages)


def held_out_prompts(per_domain: int = HELD_OUT_PER_DOMAIN) -> list[Prompt]:
    """The same `per_domain` prompts each of code, chat, JSON and arithmetic at every call.

    No training conversation shares their slot values (see `corpus.split_of`).
    """
    return [
        prompt
        for domain in EVALUATED
        for prompt in islice(
            _prompts(conversations(HELD_OUT_SEED, "held-out", domain), domain), per_domain
        )
    ]


def training_prompts(count: int, seed: int) -> list[Prompt]:
    """`count` distinct prompts in the proportions that the target was trained on."""
    return list(islice(_prompts(conversations(seed, "training"), f"train-{seed}"), count))


def write_prompts(prompts: Iterable[Prompt], out: Path) -> None:
    """One JSON object a line: id, domain, messages."""
    lines = (json.dumps(prompt._asdict(), ensure_ascii=False) for prompt in prompts)
    out.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def main(
    out: Annotated[Path, typer.Option(help="JSONL file to write")],
    count: Annotated[int, typer.Option(min=1, help="prompts to write")] = 20_000,
    seed: int = 1,
    split: Annotated[Split, typer.Option(help="held-out: count is shared by four domains")] = (
        "training"
    ),
) -> None:
    """Write prompts as JSONL."""
    if split == "held-out":
        if count % len(EVALUATED):
            raise typer.BadParameter(
                f"expected a count divisible by the {len(EVALUATED)} domains, got {count}"
            )
        write_prompts(held_out_prompts(count // len(EVALUATED)), out)
    else:
        write_prompts(training_prompts(count, seed), out)


if __name__ == "__main__":
    typer.run(main)
