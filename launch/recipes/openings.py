"""Openings of texts for a base model to continue: training prompts, or prompts held out from them.

python launch/recipes/openings.py --out prompts.jsonl --count 2000 --seed 1
python launch/recipes/openings.py --out held-out.jsonl --count 48 --split held-out

Eight kinds in equal parts. A prompt is a frame around a few words; a subject (the first word) that
a held-out prompt uses occurs in no training prompt. All of it is written for this purpose.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import typer

Split = Literal["training", "held-out"]

HELD_OUT_SEED = 2026
# Every so many subjects of a list one is held out.
_HELD_OUT_EVERY = 6


class Kind(NamedTuple):
    """One kind of text. A frame names a subject {s} and may name a detail {d} and a number {n}."""

    frames: tuple[str, ...]
    subjects: tuple[str, ...]
    details: tuple[str, ...]


def _words(text: str) -> tuple[str, ...]:
    return tuple(" ".join(word.split()) for word in text.split(","))


_PEOPLE = _words(
    """Anna, Boris, Chiara, David, Elif, Farid, Greta, Hugo, Ines, Jonas, Karin, Luis, Maya, Nils,
    Olga, Pedro, Quinn, Rosa, Samir, Tove, Ulrich, Vera, William, Xenia, Yusuf, Zoe, Amara, Bruno,
    Clara, Dmitri"""
)
_PLACES = _words(
    """the harbour, a small village, the library, a mountain hut, the old mill, the market, a night
    train, the school, an empty theatre, the river, the lighthouse, a garden, the workshop, the
    hospital, the forest, a kitchen"""
)
_TOPICS = _words(
    """the moon, volcanoes, honey bees, the Roman Empire, photosynthesis, glass, rivers, the heart,
    electric motors, chess, coffee, whales, the printing press, deserts, vaccines, bridges, iron,
    the stock market, dinosaurs, bicycles, rainbows, the French Revolution, bread, satellites,
    sleep, gravity, paper, earthquakes, jazz, the human eye, batteries, ants, democracy, penguins,
    soil, clocks, tides, algebra, silk, lightning, the internet, owls, steam engines, vitamins,
    olive oil, football, glaciers, memory"""
)

KINDS: dict[str, Kind] = {
    "code": Kind(
        (
            'def {s}({d}):\n    """',
            "import {d}\n\n\ndef {s}(",
            "# A Python program to {s} with {d}\n\nimport",
            "class {s}:\n    def __init__(self, {d}):\n",
            "function {s}({d}) {{\n",
            "/* {s}: {d} */\n#include <stdio.h>\n\nint main(",
        ),
        _words(
            """reverse_list, count_words, read_file, parse_date, merge_dicts, find_max, sort_rows,
            is_prime, load_config, save_image, send_mail, factorial, Account, Matrix, Queue, Logger,
            UserStore, Timer, flatten, binary_search, fibonacci, write_csv, split_text, Graph,
            average, download, to_json, shuffle, Cache, validate, hash_password, compress, Parser,
            median, remove_duplicates, Stack"""
        ),
        _words(
            """path, values, text, data, name, items, key, n, os, sys, json, re, csv, math, random,
            size, start, count, time, lines"""
        ),
    ),
    "list": Kind(
        (
            "Here are {n} facts about {s}:\n\n1.",
            "{n} reasons to learn about {s}:\n-",
            "Top {n} books on {s}\n\n1.",
            "Things to remember about {s}:\n\n*",
            "A checklist for a talk on {s}:\n\n1.",
        ),
        _TOPICS,
        (),
    ),
    "question": Kind(
        (
            "Question: What is the most important thing about {s}?\nAnswer:",
            "Q: How would you explain {s} to a child?\nA:",
            "Q: Why is {s} important?\nA:",
            "What do we know about {s}? Scientists say that",
            "Question: Which of these is true about {s}?\n\nA.",
        ),
        _TOPICS,
        (),
    ),
    "story": Kind(
        (
            "Once upon a time, {s} lived near {d}. One day",
            "{s} opened the door of {d} and",
            "It was raining when {s} arrived at {d}.",
            "Nobody in {d} believed {s}, but",
            "Chapter {n}\n\n{s} had never seen {d} before.",
        ),
        _PEOPLE,
        _PLACES,
    ),
    "json": Kind(
        (
            '{{"name": "{s}", "id": {n}, "tags": ["{d}",',
            '[\n  {{"id": {n}, "user": "{s}", "city": "{d}"}},\n  {{',
            '{{\n  "order": {n},\n  "customer": {{"name": "{s}"}},\n  "items": [\n',
            "name: {s}\nversion: {n}\nsettings:\n  {d}:",
            "id,name,{d}\n{n},{s},",
        ),
        _PEOPLE,
        _words(
            "Paris, status, price, Lima, colour, weight, Oslo, email, Cairo, score, level, date"
        ),
    ),
    "dialogue": Kind(
        (
            "{s}: Have you been to {d} lately?\nSam:",
            'Sam looked at {s}. "Why did you go to {d}?"\n\n"',
            "Interviewer: Thank you for coming, {s}. Tell us about {d}.\n{s}:",
            "Customer: My name is {s}, I am calling about {d}.\nAgent:",
        ),
        _PEOPLE,
        _PLACES,
    ),
    "encyclopaedia": Kind(
        (
            "The history of {s} began",
            "In science, {s} refers to",
            "== {s} ==\n\nThe term",
            "An introduction to {s}. This article describes",
            "The study of {s} is a field of",
            "Unlike other subjects, {s}",
        ),
        _TOPICS,
        (),
    ),
    "instructions": Kind(
        (
            "How to {s} in {n} steps\n\nStep 1:",
            "To {s}, you will need the following:\n\n-",
            "Dear {d},\n\nI am writing to ask how to {s}.",
            "Tips on how to {s}:\n\nFirst,",
        ),
        _words(
            """bake bread, fix a bicycle, write a letter, plant a tree, learn a language, clean
            a window, cook rice, build a shelf, take better photos, save money, make soup, repair
            a chair, start a blog, train a dog, plan a trip, grow tomatoes, read a map, paint
            a wall, play the guitar, sew a button, make coffee, run a marathon, choose a laptop,
            organise a party, draw a face, change a tyre, sleep better, tune a piano, brew tea,
            give a speech"""
        ),
        _PEOPLE,
    ),
}


class Prompt(NamedTuple):
    """A line of the file: what the target continues."""

    id: str
    domain: str
    prompt: str


def subjects_of(kind: Kind, split: Split) -> list[str]:
    """The subjects that prompts of a split are about."""
    held_out = split == "held-out"
    return [s for i, s in enumerate(kind.subjects) if (i % _HELD_OUT_EVERY == 0) == held_out]


def openings(seed: int, split: Split) -> Iterator[Prompt]:
    """Distinct prompts without end but for the kinds' own, the kinds in turn.

    The same seed gives the same prompts; the held-out ones do not depend on it.
    """
    seed = HELD_OUT_SEED if split == "held-out" else seed
    streams = {name: _of_kind(kind, split, f"{seed}/{name}") for name, kind in KINDS.items()}
    for number, name in enumerate(cycle(streams)):
        text = next(streams[name], None)
        if text is None:
            return
        yield Prompt(f"{split}-{number:05d}", name, text)


def _of_kind(kind: Kind, split: Split, seed: str) -> Iterator[str]:
    """Every combination of frame, subject, detail and number once, in random order."""
    drawn = random.Random(seed)
    subjects = subjects_of(kind, split)
    combinations = [
        (frame, s, d) for frame in kind.frames for s in subjects for d in kind.details or ("",)
    ]
    # A second and third time with other numbers, for kinds that are soon used up.
    seen: set[str] = set()
    for _ in range(8):
        drawn.shuffle(combinations)
        for frame, s, d in combinations:
            text = frame.format(s=s, d=d, n=drawn.randint(3, 12))
            if text not in seen:
                seen.add(text)
                yield text


def main(
    out: Annotated[Path, typer.Option(help="JSONL file to write")],
    count: Annotated[int, typer.Option(min=1, help="prompts to write")],
    seed: int = 1,
    split: Annotated[Split, typer.Option(help="of the subjects")] = "training",
) -> None:
    """Write prompts as JSONL."""
    prompts = list(islice(openings(seed, split), count))
    if len(prompts) < count:
        raise typer.BadParameter(f"there are {len(prompts)} such prompts, {count} were asked for")
    lines = (json.dumps(prompt._asdict(), ensure_ascii=False) for prompt in prompts)
    out.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
