"""Conversations as rows of token ids for training the demo target."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from dflash_sglang.demo.corpus import Split, conversations
from dflash_sglang.demo.sample import Sample

IGNORED = -100  # label of a token that no loss is taken on
_OPEN_ROWS = 32  # rows that a conversation may still be put into


class Rows(NamedTuple):
    """Whole conversations side by side, padded to the row's length."""

    tokens: Tensor  # [rows, length] int64
    labels: Tensor  # [rows, length] int64, the tokens of responses, IGNORED elsewhere


def encode(tokenizer: PreTrainedTokenizerFast, sample: Sample) -> tuple[list[int], list[int]]:
    """Token ids and labels of one conversation; only the assistant's turns carry labels."""
    tokens: list[int] = []
    labels: list[int] = []
    for message in sample.messages:
        head = tokenizer.encode(f"<|im_start|>{message['role']}\n")
        body = tokenizer.encode(f"{message['content']}<|im_end|>")
        tail = tokenizer.encode("\n")
        answered = message["role"] == "assistant"
        tokens += head + body + tail
        labels += [IGNORED] * len(head) + (body if answered else [IGNORED] * len(body))
        labels += [IGNORED] * len(tail)
    return tokens, labels


def _packed(
    tokenizer: PreTrainedTokenizerFast, samples: Iterator[Sample], length: int
) -> Iterator[tuple[list[int], list[int]]]:
    """Rows of at most `length` tokens; a conversation goes to the fullest row that has room."""
    rows: list[tuple[list[int], list[int]]] = []
    for sample in samples:
        tokens, labels = encode(tokenizer, sample)
        if len(tokens) > length:
            continue
        fitting = [row for row in rows if len(row[0]) + len(tokens) <= length]
        row = max(fitting, key=lambda r: len(r[0]), default=([], []))
        if not row[0]:
            rows.append(row)
        row[0].extend(tokens)
        row[1].extend(labels)
        if len(rows) > _OPEN_ROWS:
            fullest = max(range(len(rows)), key=lambda i: len(rows[i][0]))
            yield rows.pop(fullest)


def build_rows(
    tokenizer: PreTrainedTokenizerFast,
    count: int,
    length: int,
    seed: int,
    split: Split,
    domain: str | None = None,
) -> Rows:
    """`count` rows of `length` tokens; the same arguments give the same rows."""
    pad = tokenizer.pad_token_id
    tokens = torch.full((count, length), pad, dtype=torch.long)  # [rows, length]
    labels = torch.full((count, length), IGNORED, dtype=torch.long)  # [rows, length]
    packed = _packed(tokenizer, conversations(seed, split, domain), length)
    for i, (row, answered) in zip(range(count), packed, strict=False):
        tokens[i, : len(row)] = torch.tensor(row)
        labels[i, : len(answered)] = torch.tensor(answered)
    return Rows(tokens, labels)
