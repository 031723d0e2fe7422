"""Prompts of a capture: one JSON object a line, as chat messages, plain text, or token ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from .errors import DataError


class Prompt(NamedTuple):
    """A prompt as the target reads it."""

    id: str
    domain: str  # "" when the file names none
    tokens: list[int]  # chat template applied


def read_prompts(path: str | Path, tokenizer: Any, limit: int | None = None) -> list[Prompt]:
    """Parse a prompts file.

    Each line holds `messages` (chat template applied, assistant turn opened), `prompt` (text,
    special tokens as the tokenizer adds them) or `token_ids`; `id` and `domain` are optional.

    Args:
        tokenizer: a Hugging Face tokenizer; None suffices for a file of `token_ids`.
        limit: at most so many prompts, the first ones.

    Raises:
        DataError: an empty file, or a line that is no such object; the message names the line.
    """
    prompts: list[Prompt] = []
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if limit is not None and len(prompts) >= limit:
                break
            if line.strip():
                prompts.append(_parse(line, f"{path}:{number}", tokenizer, len(prompts)))
    if not prompts:
        raise DataError(f"{path} holds no prompts; expected one JSON object a line")
    return prompts


def _parse(line: str, where: str, tokenizer: Any, index: int) -> Prompt:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not a JSON object ({error})") from error
    kinds = {"messages", "prompt", "token_ids"} & set(entry) if isinstance(entry, dict) else set()
    if len(kinds) != 1:
        raise DataError(f"{where}: expected exactly one of messages, prompt, token_ids")
    kind = kinds.pop()
    if kind != "token_ids" and tokenizer is None:
        raise DataError(f"{where}: {kind} needs the target's tokenizer, and there is none")
    if kind == "messages":
        text = tokenizer.apply_chat_template(
            entry["messages"], add_generation_prompt=True, tokenize=False
        )
        tokens = tokenizer.encode(text, add_special_tokens=False)
    elif kind == "prompt":
        tokens = tokenizer.encode(entry["prompt"])
    else:
        tokens = entry["token_ids"]
    if not tokens:
        raise DataError(f"{where}: the prompt is empty")
    return Prompt(str(entry.get("id", index)), str(entry.get("domain", "")), list(tokens))
