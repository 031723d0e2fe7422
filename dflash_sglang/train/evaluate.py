"""Accept length of a drafter on prompts: greedy, with shared noise, and by rejection sampling.

Greedy and shared-noise drafts are replayed along texts that the target writes once for chain and
tree; what rejection sampling writes depends on the drafts, so it is decoded.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from .decode import Decoded, decode_batch
from .generate import sampled_draw
from .objective import DraftObjective
from .prompts import Prompt
from .proposals import Greedy, RejectionChain, SeededProposer, SharedNoise
from .replay import replay_batch, write_texts
from .target import Target
from .tree_shape import TreeShape


class Measured(NamedTuple):
    """One way to speculate, measured."""

    name: str
    temperature: float
    accept_length: float  # tokens per verify step, the bonus token included
    by_domain: dict[str, float]
    tokens: int
    verify_steps: int
    seconds: float  # of drafting and judging; the texts to replay are written before


class _Mode(NamedTuple):
    name: str
    temperature: float
    proposer: SeededProposer | RejectionChain


def evaluate(
    target: Target,
    objective: DraftObjective,
    prompts: Sequence[Prompt],
    stop_token_ids: Sequence[int],
    max_new_tokens: int = 128,
    tree_nodes: int = 16,
    temperature: float = 1.0,
    seed: int = 0,
    batch_size: int = 64,
    doubt: float | None = None,
) -> list[Measured]:
    """Measure every mode on the text that it delivers.

    Modes: greedy chain and tree; at `temperature` the chain and the tree with shared noise, and the
    rejection-sampled chain that engines run today, as the yardstick. Prompt i is seeded with
    `seed` + i. Trees have `tree_nodes` nodes, root included. `doubt` fixes what is learned for each
    prompt otherwise (see `tree.noisy`).
    """
    block = objective.drafter.config.block_size
    seeds = torch.arange(len(prompts)) + seed
    chain, tree = TreeShape.chain(block), TreeShape.tree(tree_nodes)

    def noisy(shape: TreeShape) -> SharedNoise:
        return SharedNoise(shape, temperature, seeds, doubt=doubt)

    modes = [
        _Mode("greedy chain", 0.0, Greedy(chain)),
        _Mode(f"greedy tree {tree_nodes}", 0.0, Greedy(tree)),
        _Mode("rejection chain", temperature, RejectionChain(block, temperature, seed)),
        _Mode("shared-noise chain", temperature, noisy(chain)),
        _Mode(f"shared-noise tree {tree_nodes}", temperature, noisy(tree)),
    ]
    results: list[dict[int, Decoded]] = [{} for _ in modes]
    seconds = [0.0 for _ in modes]
    for rows in _batches(prompts, batch_size):
        tokens = [prompts[i].tokens for i in rows.tolist()]
        texts = {}
        for heat in (0.0, temperature):
            draw = sampled_draw(torch.full(rows.shape, heat), seeds[rows])
            texts[heat] = write_texts(target, tokens, max_new_tokens, stop_token_ids, draw)
        for i, (_, heat, proposer) in enumerate(modes):
            began = time.monotonic()
            if isinstance(proposer, RejectionChain):
                decoded = decode_batch(
                    target, objective, tokens, proposer, max_new_tokens, stop_token_ids, rows
                )
            else:
                decoded = replay_batch(objective, texts[heat], proposer, rows)
            seconds[i] += time.monotonic() - began
            results[i] |= dict(zip(rows.tolist(), decoded, strict=True))
    return [
        _summary(
            mode.name, mode.temperature, prompts, [found[i] for i in range(len(prompts))], took
        )
        for mode, found, took in zip(modes, results, seconds, strict=True)
    ]


def _batches(prompts: Sequence[Prompt], batch_size: int) -> tuple[Tensor, ...]:
    """Indices of prompts of similar length, batch by batch."""
    lengths = torch.tensor([len(prompt.tokens) for prompt in prompts])
    return lengths.argsort(stable=True).split(batch_size)


def _summary(
    name: str,
    temperature: float,
    prompts: Sequence[Prompt],
    results: Sequence[Decoded],
    seconds: float,
) -> Measured:
    domains = sorted({prompt.domain for prompt in prompts})
    by_domain = {
        domain: _accept_length(
            [r for p, r in zip(prompts, results, strict=True) if p.domain == domain]
        )
        for domain in domains
    }
    return Measured(
        name=name,
        temperature=temperature,
        accept_length=_accept_length(results),
        by_domain=by_domain,
        tokens=sum(sum(r.accept_lens) for r in results),
        verify_steps=sum(len(r.accept_lens) for r in results),
        seconds=round(seconds, 2),
    )


def _accept_length(results: Sequence[Decoded]) -> float:
    steps = sum(len(r.accept_lens) for r in results)
    return round(sum(sum(r.accept_lens) for r in results) / max(1, steps), 4)


def print_table(measured: Sequence[Measured], console: Console) -> None:
    """Accept length of every mode, overall and by domain; a column a mode."""
    table = Table(title="accept length: tokens per verify step, bonus included")
    table.add_column("prompts", no_wrap=True)
    for mode in measured:
        name = mode.name.replace("-", " ")  # a heading breaks at spaces only
        table.add_column(f"{name}\nT={mode.temperature:g}", justify="right")
    for domain in measured[0].by_domain:
        lengths = (f"{mode.by_domain[domain]:.2f}" for mode in measured)
        table.add_row(domain or "without a domain", *lengths)
    table.add_section()
    table.add_row("all", *(f"{mode.accept_length:.2f}" for mode in measured))
    table.add_row("verify steps", *(f"{mode.verify_steps:,}" for mode in measured))
    console.print(table)


def as_json(measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """The same as plain data."""
    return [row._asdict() for row in measured]
