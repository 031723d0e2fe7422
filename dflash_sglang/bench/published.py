"""Figures of others, as they published them, for orientation beside one's own.

The article that this project started from calls some of its figures measured and some projected;
for us all of them are published, and the source says which its authors meant.
"""

from __future__ import annotations

from typing import NamedTuple

from dflash_sglang.bench.provenance import Figure, Published
from dflash_sglang.bench.tables import Row, Table

ARTICLE = "DFlash & DFlash2: Block-Diffusion LLM-Speedup"


class Serving(NamedTuple):
    """One row of the article's section 6; tokens/s of one user on an Intel Arc Pro B70."""

    model: str
    plain: float
    eagle3: float  # projected by its authors
    dflash: float  # projected by its authors, block of 8
    dflash2: float
    tau: float


SERVING = (
    Serving("Qwen 2.5 32B Instruct", 28.4, 48.2, 68.4, 78.6, 3.82),
    Serving("Llama 3.3 70B Instruct", 15.2, 34.8, 45.1, 52.4, 4.15),
    Serving("Gemma 4 MoE 26B", 34.1, 58.6, 82.3, 94.8, 3.70),
    Serving("DeepSeek R1 MoE 35B", 38.6, 64.3, 92.5, 106.2, 3.65),
    Serving("Qwen3-Coder 30B-A3B", 29.1, 51.4, 74.2, 86.5, 4.08),
)

ACCEPT_LENGTHS = {  # task -> EAGLE-3, DFlash, DFlash 2 on the article's models
    "GSM8K": (2.83, 4.24, 4.68),
    "MATH-500": (2.96, 4.35, 4.89),
    "HumanEval": (3.40, 4.91, 5.42),
    "LiveCodeBench": (3.12, 4.18, 4.65),
    "MT-Bench": (3.11, 3.73, 4.12),
}


def serving_table() -> Table:
    """Section 6 of the article, its measured and its projected columns as rows of their own."""
    measured = Published(source=f"{ARTICLE}, section 6, measured by its authors")
    projected = Published(source=f"{ARTICLE}, section 6, projected by its authors")
    rows = []
    for entry in SERVING:
        for mode, rate, source in (
            ("plain", entry.plain, measured),
            ("EAGLE-3", entry.eagle3, projected),
            ("DFlash", entry.dflash, projected),
            ("DFlash 2", entry.dflash2, measured),
        ):
            rows.append(
                Row(
                    (entry.model, mode),
                    (
                        Figure(value=rate, unit="tok/s", provenance=source),
                        Figure(value=rate / entry.plain, unit="x", provenance=source),
                    ),
                )
            )
    return Table(("model", "decoding"), ("rate", "speedup"), rows)


def accept_length_table() -> Table:
    """The article's accept lengths by task."""
    source = Published(source=f"{ARTICLE}, section 6, accept lengths by task")
    rows = [
        Row((task,), tuple(Figure(value=value, unit="", provenance=source) for value in lengths))
        for task, lengths in ACCEPT_LENGTHS.items()
    ]
    return Table(("task",), ("EAGLE-3", "DFlash", "DFlash 2"), rows)
