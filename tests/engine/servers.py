"""Servers over the tiny checkpoints, with and without speculation, on the same settings."""

from __future__ import annotations

from pathlib import Path

from dflash_sglang.bench.server import Server, cpu_arguments


def plain_server(target: Path, *further: str) -> Server:
    """SGLang without speculation."""
    return Server(
        [
            *("--model-path", str(target), "--skip-tokenizer-init", "--dtype", "float32"),
            *cpu_arguments(),
            *further,
        ]
    )


def speculative_server(target: Path, drafter: Path, *further: str) -> Server:
    """The same with dflash2."""
    return plain_server(
        target,
        *("--speculative-algorithm", "dflash2", "--speculative-draft", str(drafter)),
        *further,
    )
