"""Prompts of public benchmarks, of a JSONL file, and of our own built-in set.

A benchmark is read through ``datasets`` from its usual place, or from a local JSONL file whose
lines have the benchmark's own fields (``gsm8k=FILE``). Licences are the benchmarks' own; nothing of
them is shipped.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib import resources
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from dflash_sglang.bench.client import Message
from dflash_sglang.bench.errors import BenchError

BUILTIN = "builtin"
_BUILTIN_FORM = f"{BUILTIN}[:CATEGORY][+WORDS or @WORDS]"
_BUILTIN_NAME = re.compile(rf"{BUILTIN}(?P<category>:[^+@]*)?(?:(?P<sign>[+@])(?P<words>.*))?")


class Prompt(NamedTuple):
    """A conversation to be had."""

    id: str
    category: str
    messages: list[Message]  # the last one is the user's
    follow_ups: tuple[str, ...] = ()  # the user's further turns


class Source(NamedTuple):
    """Where a benchmark lies and what one of its rows asks."""

    repository: str | None  # of the Hugging Face hub; None: only from a file
    config: str | None
    split: str
    turns: Callable[[dict[str, Any]], list[str]]
    category: Callable[[dict[str, Any]], str | None] = lambda row: None


def _field(name: str, before: str = "", after: str = "") -> Callable[[dict[str, Any]], list[str]]:
    return lambda row: [f"{before}{row[name]}{after}"]


def _contest(row: dict[str, Any]) -> list[str]:
    starter = row.get("starter_code") or ""
    task = (
        f"Complete this code:\n\n{starter}"
        if starter
        else "Read from standard input and write to standard output."
    )
    return [f"{row['question_content']}\n\nSolve it in Python. {task}"]


def _turns(row: dict[str, Any]) -> list[str]:
    turns = row["turns"] if "turns" in row else row["prompt"]
    return [turns] if isinstance(turns, str) else list(turns)


def _category(row: dict[str, Any]) -> str | None:
    return row.get("category")


SOURCES: dict[str, Source] = {
    "gsm8k": Source("openai/gsm8k", "main", "test", _field("question")),
    "math500": Source(
        "HuggingFaceH4/MATH-500",
        None,
        "test",
        _field("problem", after="\n\nReason step by step."),
        lambda row: row.get("subject"),
    ),
    "humaneval": Source(
        "openai/openai_humaneval",
        None,
        "test",
        _field("prompt", before="Complete this Python function.\n\n"),
    ),
    "mbpp": Source(
        "google-research-datasets/mbpp",
        "sanitized",
        "test",
        _field("prompt", after=" Answer in Python."),
    ),
    "livecodebench": Source(
        "lighteval/code_generation_lite",
        "v6",
        "test",
        _contest,
        lambda row: row.get("difficulty"),
    ),
    "mtbench": Source("HuggingFaceH4/mt_bench_prompts", None, "train", _turns, _category),
    "specbench": Source(None, None, "test", _turns, _category),
    "speedbench": Source("nvidia/SPEED-Bench", "qualitative", "test", _turns, _category),
}


def load_workload(name: str, limit: int | None = None) -> list[Prompt]:
    """Prompts of a workload, its categories in turn.

    Args:
        name: ``builtin``, or ``builtin:CATEGORY`` for one category of it; either with ``+WORDS``
            for the same prompts, each behind a text of its own of so many words, or with
            ``@WORDS``, all behind the same text; a benchmark's name; ``NAME=FILE`` for a
            benchmark's rows in a JSONL file; or the path of a JSONL file with ``messages``,
            ``prompt`` or ``turns`` in each line.
        limit: at most so many.

    Raises:
        BenchError: unknown name, unreadable or empty data; the sentence says what is expected.
    """
    prompts = list(islice(_by_category(_read(name)), limit))
    if not prompts:
        raise BenchError(
            f"the workload {name} holds no prompts: expected one JSON object a line, such as "
            '{"prompt": "Write a haiku."}.'
        )
    return prompts


def text_before(name: str) -> str:
    """What a built-in workload has before its prompts, as in ``@800``; "" where that is nothing."""
    found = _BUILTIN_NAME.fullmatch(name)
    return f"{found['sign']}{found['words']}" if found and found["sign"] else ""


def load_workloads(names: list[str], limit: int) -> dict[str, list[Prompt]]:
    """Several workloads by their short names, ``limit`` prompts of each.

    Raises:
        BenchError: as :func:`load_workload`, or two workloads of one short name.
    """
    loaded: dict[str, list[Prompt]] = {}
    for name in names:
        label = workload_label(name)
        if label in loaded:
            raise BenchError(f"two workloads would be called {label} in the report: rename a file.")
        loaded[label] = load_workload(name, limit)
    return loaded


def workload_label(name: str) -> str:
    """Short name of a workload for reports: without the path of its file."""
    benchmark, _, path = name.rpartition("=")
    return benchmark or (Path(path).stem if path.endswith(".jsonl") else path)


def _read(name: str) -> list[Prompt]:
    benchmark, _, path = name.rpartition("=")
    if benchmark:
        return _benchmark(benchmark, _rows_of_file(Path(path)))
    if found := _BUILTIN_NAME.fullmatch(name):
        return _builtin(**found.groupdict())
    if name in SOURCES:
        return _benchmark(name, _rows_of_hub(name, SOURCES[name]))
    if name.endswith(".jsonl"):
        stem = Path(name).stem
        return [_general(row, stem, i) for i, row in enumerate(_rows_of_file(Path(name)))]
    raise BenchError(
        f"unknown workload {name!r}: expected {_BUILTIN_FORM}, {', '.join(SOURCES)}, "
        "one of these with =FILE for a local copy, or the path of a .jsonl file."
    )


def _builtin(category: str | None, sign: str | None, words: str | None) -> list[Prompt]:
    """Our own prompts, or those of one category, and what they stand behind.

    Args:
        category: with the colon before it.
        sign: of the text before them: ``+`` for one of its own, ``@`` for the same.
        words: its length.
    """
    lines = resources.files("dflash_sglang.bench").joinpath("builtin.jsonl").read_text("utf-8")
    every = [_general(json.loads(line), BUILTIN, i) for i, line in enumerate(lines.splitlines())]
    prompts = [p for p in every if category is None or p.category == category[1:]]
    if not prompts:
        known = ", ".join(dict.fromkeys(prompt.category for prompt in every))
        raise BenchError(
            f"{BUILTIN}:CATEGORY expects one of {known}, got {(category or '')[1:]!r}."
        )
    if sign is None:
        return prompts
    if words is None or not words.isdecimal() or not int(words):
        raise BenchError(f"{BUILTIN}{sign}WORDS expects a number of words above 0, got {words!r}.")
    text_of = partial(_text, [word for p in every for word in _question(p).split()], int(words))
    return [_behind(text_of(prompt.id if sign == "+" else BUILTIN), prompt) for prompt in prompts]


def _text(vocabulary: list[str], words: int, seed: str) -> str:
    return " ".join(random.Random(seed).choices(vocabulary, k=words))


def _behind(text: str, prompt: Prompt) -> Prompt:
    content = f"Ignore these words: {text}\n\n{_question(prompt)}"
    return prompt._replace(messages=[{"role": "user", "content": content}])


def _question(prompt: Prompt) -> str:
    return prompt.messages[0]["content"]


def _benchmark(name: str, rows: Iterable[dict[str, Any]]) -> list[Prompt]:
    if name not in SOURCES:
        raise BenchError(f"unknown benchmark {name!r}: expected one of {', '.join(SOURCES)}.")
    source = SOURCES[name]
    prompts = []
    for index, row in enumerate(rows):
        try:
            first, *further = source.turns(row)
        except (KeyError, ValueError) as error:
            raise BenchError(
                f"row {index + 1} is not {name}'s: missing {error}; it has {', '.join(row)}."
            ) from error
        category = source.category(row) or name
        prompts.append(_prompt(f"{name}-{index}", category, first, further))
    return prompts


def _general(row: dict[str, Any], stem: str, index: int) -> Prompt:
    """A line of a file of one's own."""
    kinds = {"messages", "prompt", "turns"} & row.keys()
    if len(kinds) != 1:
        raise BenchError(
            f"line {index + 1} of {stem}: expected exactly one of messages, prompt, turns, got "
            f"{', '.join(row) or 'nothing'}."
        )
    name = str(row.get("id", f"{stem}-{index}"))
    category = str(row.get("category") or row.get("domain") or stem)
    if "messages" in row:
        return Prompt(name, category, row["messages"])
    first, *further = _turns(row)
    return _prompt(name, category, first, further)


def _prompt(name: str, category: str, first: str, further: list[str]) -> Prompt:
    return Prompt(name, category, [{"role": "user", "content": first}], tuple(further))


def _rows_of_file(path: Path) -> list[dict[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise BenchError(f"cannot read the workload {path}: {error.strerror}.") from error
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise BenchError(f"{path}:{number} is not JSON: {error}.") from error
        if not isinstance(row, dict):
            raise BenchError(f"{path}:{number}: expected a JSON object, got {line[:40]!r}.")
        rows.append(row)
    return rows


def _rows_of_hub(name: str, source: Source) -> Iterable[dict[str, Any]]:
    if source.repository is None:
        raise BenchError(f"{name} is not on the hub: give its JSONL file as {name}=FILE.")
    try:
        import datasets
    except ImportError as error:
        raise BenchError(
            f"{name} is read through the package datasets, which is not installed: "
            f"pip install datasets, or give a local copy as {name}=FILE."
        ) from error
    try:
        return datasets.load_dataset(source.repository, source.config, split=source.split)
    except (OSError, ValueError) as error:
        # Without a network, datasets raises one of several errors of its own below these two.
        raise BenchError(
            f"cannot load {source.repository} ({type(error).__name__}: {error}); without network "
            f"give a local copy as {name}=FILE."
        ) from error


def _by_category(prompts: list[Prompt]) -> Iterator[Prompt]:
    """Round robin over the categories, so that any prefix is a fair sample of them."""
    groups: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        groups.setdefault(prompt.category, []).append(prompt)
    for together in zip_longest(*groups.values()):
        yield from (prompt for prompt in together if prompt is not None)
