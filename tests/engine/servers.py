"""Servers over the tiny checkpoints, with and without speculation, on the same settings."""

from __future__ import annotations

from pathlib import Path

from dflash_sglang.bench.server import Server, cpu_arguments


def plain_server(target: Path, *further: str) -> Server:
    """SGLang without speculation, with a tokenizer where the checkpoint has one."""
    has_tokenizer = (target / "tokenizer.json").exists()
    return Server(
        [
            *("--model-path", str(target), "--dtype", "float32"),
            *([] if has_tokenizer else ["--skip-tokenizer-init"]),
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
