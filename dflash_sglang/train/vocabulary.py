"""Which tokens a drafter makes its drafts of: the frequent ones of the target's own text.

Source: FR-Spec (arXiv:2502.14856), which ranks by the frequency in a corpus. Tokens that the text
does not have are ranked by id, since tokenizers give low ids to what is frequent in theirs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor

from dflash_sglang.drafter.vocabulary import write_draft_vocabulary

from .data import CaptureDataset
from .errors import DataError

_BLOCK = 2  # the shortest there is, so that every response counts


def rank_tokens(counts: Tensor) -> Tensor:
    """All token ids, the most frequent one first: counts [V] int64 -> [V] int64."""
    return counts.argsort(descending=True, stable=True)


def coverage(counts: Tensor, tokens: Tensor) -> float:
    """Share of a text with these token counts [V] that the listed tokens [R] make up."""
    return float(counts[tokens].sum() / counts.sum())


def vocabulary_command(
    data: Annotated[Path, typer.Option(help="folder that capture wrote")],
    out: Annotated[
        Path,
        typer.Option(
            help="file for the list: draft_vocabulary.json in the drafter's folder is found there, "
            "any other is named with --speculative-token-map"
        ),
    ],
    size: Annotated[int, typer.Option(min=2, help="tokens of the list")] = 32768,
    held_out: Annotated[
        Path | None, typer.Option(help="capture of other prompts, to see what the list leaves out")
    ] = None,
) -> None:
    """List the tokens that drafts are made of: the most frequent of what the target wrote.

    The drafter then computes their rows of the target's head only. Output stays the target's own.
    """
    if not out.parent.is_dir():
        raise DataError(f"{out} cannot be written: {out.parent} is no folder")
    written = CaptureDataset(data, _BLOCK).label_counts()
    others = None if held_out is None else CaptureDataset(held_out, _BLOCK).label_counts()
    if size > len(written):
        raise DataError(f"{size} tokens asked of a vocabulary of {len(written)}")
    if others is not None and len(others) != len(written):
        raise DataError(
            f"{held_out} is a capture with a vocabulary of {len(others)}, {data} has {len(written)}"
        )
    ranked = rank_tokens(written)
    write_draft_vocabulary(out, ranked[:size].tolist())
    _print_coverage(written, others, ranked, size)


def _print_coverage(written: Tensor, others: Tensor | None, ranked: Tensor, size: int) -> None:
    table = Table("tokens", "of the captured text", "of the held-out text")
    for count in sorted({size // 4, size // 2, size, min(2 * size, len(ranked))}):
        tokens = ranked[:count]
        held_out = "" if others is None else f"{coverage(others, tokens):.2%}"
        chosen = " (written)" if count == size else ""
        table.add_row(f"{count:,}{chosen}", f"{coverage(written, tokens):.2%}", held_out)
    Console(stderr=True).print(table)
