"""Accept length of a drafter on prompts: greedy, with shared noise, and by rejection sampling."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from .decode import Decoded, decode_batch
from .objective import DraftObjective
from .prompts import Prompt
from .proposals import Greedy, Proposer, RejectionChain, SharedNoise
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
    seconds: float


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
    """Decode all prompts in every mode.

    Modes: greedy chain and tree; at `temperature` the chain and the tree with shared noise, and the
    rejection-sampled chain that engines run today, as the yardstick. Prompt i is seeded with
    `seed` + i. Trees have `tree_nodes` nodes, root included. `doubt` fixes what is learned for each
    prompt otherwise (see `tree.noisy`).
    """
    block = objective.drafter.config.block_size
    seeds = torch.arange(len(prompts)) + seed
    chain, tree = TreeShape.chain(block), TreeShape.tree(tree_nodes)
    modes: list[tuple[str, float, Proposer]] = [
        ("greedy chain", 0.0, Greedy(chain)),
        (f"greedy tree {tree_nodes}", 0.0, Greedy(tree)),
        ("rejection chain", temperature, RejectionChain(block, temperature, seed)),
        ("shared-noise chain", temperature, SharedNoise(chain, temperature, seeds, doubt=doubt)),
        (
            f"shared-noise tree {tree_nodes}",
            temperature,
            SharedNoise(tree, temperature, seeds, doubt=doubt),
        ),
    ]
    measured = []
    for name, heat, proposer in modes:
        began = time.monotonic()
        results = _decode_in_batches(
            target, objective, prompts, proposer, max_new_tokens, stop_token_ids, batch_size
        )
        seconds = time.monotonic() - began
        measured.append(_summary(name, heat, prompts, results, seconds))
    return measured


def _decode_in_batches(
    target: Target,
    objective: DraftObjective,
    prompts: Sequence[Prompt],
    proposer: Proposer,
    max_new_tokens: int,
    stop_token_ids: Sequence[int],
    batch_size: int,
) -> list[Decoded]:
    results: dict[int, Decoded] = {}
    by_length = sorted(range(len(prompts)), key=lambda i: len(prompts[i].tokens))
    for start in range(0, len(by_length), batch_size):
        chosen = by_length[start : start + batch_size]
        decoded = decode_batch(
            target,
            objective,
            [prompts[i].tokens for i in chosen],
            proposer,
            max_new_tokens,
            stop_token_ids,
            torch.tensor(chosen),
        )
        results |= dict(zip(chosen, decoded, strict=True))
    return [results[i] for i in range(len(prompts))]


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
    """Accept length of every mode, overall and by domain."""
    table = Table(title="accept length: tokens per verify step, bonus included")
    table.add_column("mode")
    table.add_column("temperature", justify="right")
    for column in ("all", *measured[0].by_domain, "verify steps"):
        table.add_column(column or "prompts", justify="right")
    for row in measured:
        lengths = [row.accept_length, *row.by_domain.values()]
        table.add_row(
            row.name,
            f"{row.temperature:g}",
            *(f"{length:.2f}" for length in lengths),
            str(row.verify_steps),
        )
    console.print(table)


def as_json(measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """The same as plain data."""
    return [row._asdict() for row in measured]
