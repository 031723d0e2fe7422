"""The ways of decoding that are compared, as command lines of SGLang's server."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from dflash_sglang.bench.errors import BenchError


class Mode(StrEnum):
    """A way of decoding the same target."""

    PLAIN = "plain"  # no speculation
    NATIVE = "native"  # SGLang's built-in DFLASH, a chain
    CHAIN = "chain"  # dflash2, at most one child a node
    TREE = "tree"  # dflash2
    NGRAM = "ngram"  # SGLang's prompt lookup, no drafter
    EAGLE3 = "eagle3"  # SGLang's EAGLE-3, a drafter of its own


class Pair(NamedTuple):
    """Checkpoints, by folder or by name on the hub."""

    target: str
    drafter: str | None  # DFlash or DFlash 2
    eagle3_drafter: str | None = None


_DRAFTER = "--speculative-draft-model-path"
_ALGORITHM = "--speculative-algorithm"


def server_arguments(mode: Mode, pair: Pair, further: list[str]) -> list[str]:
    """Arguments of the server of a mode.

    Args:
        further: arguments that all modes share, such as the device and the dtype.

    Raises:
        BenchError: the mode needs a drafter that was not given.
    """
    return ["--model-path", pair.target, *_speculation(mode, pair), *further]


def _speculation(mode: Mode, pair: Pair) -> list[str]:
    match mode:
        case Mode.PLAIN:
            return []
        case Mode.NATIVE:
            return [_ALGORITHM, "DFLASH", _DRAFTER, _needed(pair.drafter, mode, "--drafter")]
        case Mode.CHAIN:
            drafter = _needed(pair.drafter, mode, "--drafter")
            return [_ALGORITHM, "dflash2", _DRAFTER, drafter, "--speculative-eagle-topk", "1"]
        case Mode.TREE:
            return [_ALGORITHM, "dflash2", _DRAFTER, _needed(pair.drafter, mode, "--drafter")]
        case Mode.NGRAM:
            return [_ALGORITHM, "NGRAM"]
        case Mode.EAGLE3:
            drafter = _needed(pair.eagle3_drafter, mode, "--eagle3-drafter")
            return [_ALGORITHM, "EAGLE3", _DRAFTER, drafter]


def _needed(drafter: str | None, mode: Mode, flag: str) -> str:
    if drafter is None:
        raise BenchError(f"the mode {mode} needs a drafter: give {flag} CHECKPOINT.")
    return drafter


def check_exists(flag: str, checkpoint: str | None) -> None:
    """Refuse a checkpoint that is written as a path and is not there; names of the hub pass.

    Raises:
        BenchError: no such path.
    """
    if checkpoint is None or not checkpoint.startswith(("/", "./", "../", "~")):
        return
    if not Path(checkpoint).expanduser().exists():
        raise BenchError(
            f"{flag} {checkpoint} does not exist: give the folder of a checkpoint, or a name of "
            "the Hugging Face hub."
        )


def parse_assignment(text: str, flag: str) -> tuple[Mode, str]:
    """``MODE=VALUE`` of a command-line flag.

    Raises:
        BenchError: no such mode, or no value.
    """
    name, _, value = text.partition("=")
    if name not in {mode.value for mode in Mode} or not value:
        raise BenchError(f"{flag} expects MODE=VALUE with one of {', '.join(Mode)}, got {text!r}.")
    return Mode(name), value


def parse_modes(text: str) -> list[Mode]:
    """Modes from a comma-separated list.

    Raises:
        BenchError: an unknown mode, a repeated one, or none.
    """
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    unknown = set(names) - {mode.value for mode in Mode}
    if unknown or not names or len(set(names)) != len(names):
        raise BenchError(f"--modes expects different ones of {', '.join(Mode)}, got {text!r}.")
    return [Mode(name) for name in names]
