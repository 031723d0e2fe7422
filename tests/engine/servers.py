"""Servers over the tiny checkpoints, with and without speculation, on the same settings."""

from __future__ import annotations

import pkgutil
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from dflash_sglang.bench.server import Server, cpu_arguments

# A seed decides the tokens of a request, and whatever a request may ask for is available.
SEEDED = (
    *("--enable-deterministic-inference", "--enable-custom-logit-processor"),
    *("--tool-call-parser", "qwen25"),
)
# Short prefill chunks that share their batches with running requests, on such a server.
CROWDED = (
    *("--speculative-eagle-topk", "12", *SEEDED),
    *("--chunked-prefill-size", "64", "--enable-mixed-chunk"),
)
_SERVED = ("llama", "qwen2", "qwen3", "qwen3_moe", "gemma3_causal", "gpt_oss")


class Trio(NamedTuple):
    """The same target without speculation, with a chain and with a tree."""

    plain: Server
    chain: Server
    tree: Server


class Pair(NamedTuple):
    """The same target without speculation and with a tree."""

    plain: Server
    tree: Server


def plain_server(target: Path, *further: str) -> Server:
    """SGLang without speculation, with a tokenizer where the checkpoint has one."""
    has_tokenizer = (target / "tokenizer.json").exists()
    return Server(
        [
            *("--model-path", str(target), "--dtype", "float32"),
            *([] if has_tokenizer else ["--skip-tokenizer-init"]),
            *cpu_arguments(),
            *further,
        ],
        environment={"SGLANG_DISABLED_MODEL_ARCHS": _other_models()},
    )


def speculative_server(target: Path, drafter: Path, *further: str) -> Server:
    """The same with dflash2, at one width unless the further flags say otherwise.

    A random drafter is so bad that an adaptive server would soon decode plainly.
    """
    return plain_server(
        target,
        *("--speculative-algorithm", "dflash2", "--speculative-draft", str(drafter)),
        *("--dflash2-config", '{"adaptive": false}'),
        *further,
    )


@lru_cache
def _other_models() -> str:
    """SGLang's models that no test serves: importing them all takes each process seconds."""
    import sglang.srt.models

    names = (module.name for module in pkgutil.iter_modules(sglang.srt.models.__path__))
    return ",".join(name for name in names if name not in _SERVED)
