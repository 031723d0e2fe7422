"""The part of the vocabulary that drafts are made of.

With 262,144 tokens the target's head costs a small drafter many times its own layers, and most of
those tokens hardly ever occur. A list of the frequent ones, beside the checkpoint or named when the
server starts, lets the drafter compute their rows of the head alone (FR-Spec, arXiv:2502.14856).
Every other token has the draft probability 0. The target verifies over its whole vocabulary, so
output never depends on the list, only accept length does.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import inf
from pathlib import Path

import msgspec
from torch import Tensor

DRAFT_VOCABULARY = "draft_vocabulary.json"
"""Name of the list beside a checkpoint."""


class VocabularyError(ValueError):
    """A list of draft tokens that cannot be used; one sentence."""


def listed_beside(checkpoint: str | Path, vocab_size: int) -> tuple[int, ...] | None:
    """The tokens that the drafter in the folder ``checkpoint`` is to be used with; None for all.

    Raises :class:`VocabularyError` as :func:`read_draft_vocabulary` does.
    """
    file = Path(checkpoint) / DRAFT_VOCABULARY
    return read_draft_vocabulary(file, vocab_size) if file.is_file() else None


def read_draft_vocabulary(file: str | Path, vocab_size: int) -> tuple[int, ...]:
    """The token ids listed in ``file``, a JSON array.

    Raises :class:`VocabularyError` when it is not that, or names a token twice or one that a
    vocabulary of ``vocab_size`` tokens does not have.
    """
    try:
        tokens = msgspec.json.decode(Path(file).read_bytes(), type=tuple[int, ...])
    except (OSError, msgspec.DecodeError) as error:
        raise VocabularyError(
            f"a draft vocabulary is a JSON array of token ids, which {file} is not: {error}."
        ) from None
    wrong = next((token for token in tokens if not 0 <= token < vocab_size), None)
    if wrong is not None:
        raise VocabularyError(
            f"{file} lists the token {wrong}, but the vocabulary has the tokens 0 to "
            f"{vocab_size - 1}."
        )
    if len(set(tokens)) < len(tokens):
        raise VocabularyError(f"{file} lists a token more than once.")
    return tokens


def write_draft_vocabulary(file: str | Path, tokens: Sequence[int]) -> None:
    """Write what :func:`read_draft_vocabulary` reads."""
    Path(file).write_text(json.dumps(list(tokens)) + "\n", encoding="utf-8")


def spread_logits(logits: Tensor, tokens: Tensor, vocab_size: int) -> Tensor:
    """Logits of the listed tokens at their places among all.

    ``logits [..., R]`` of ``tokens [R]`` int64 -> ``[..., V]``, -inf everywhere else, same dtype.
    """
    return logits.new_full((*logits.shape[:-1], vocab_size), -inf).index_copy_(-1, tokens, logits)
