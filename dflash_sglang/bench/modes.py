"""The ways of decoding that are compared, as command lines of SGLang's server."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from dflash_sglang.bench.errors import BenchError

_ADAPTIVE_CEILING = 32  # nodes


class Kind(StrEnum):
    """What a mode is, but for its number of nodes."""

    PLAIN = "plain"  # no speculation
    NATIVE = "native"  # SGLang's built-in DFLASH, a chain
    CHAIN = "chain"  # dflash2, at most one child a node
    TREE = "tree"  # dflash2, the same number of nodes at every step
    ADAPTIVE = "adaptive"  # dflash2, every step chooses its nodes
    NGRAM = "ngram"  # SGLang's prompt lookup, no drafter
    EAGLE3 = "eagle3"  # SGLang's EAGLE-3, a drafter of its own


FIXED = (Kind.CHAIN, Kind.TREE)
"""Kinds of dflash2 whose width does not change; their names may carry it."""

_NAME = re.compile(rf"({'|'.join(Kind)})([1-9]\d*)?")
_NAMES = ", ".join(f"{kind}, {kind}<N>" if kind in FIXED else kind for kind in Kind)


@dataclass(frozen=True)
class Mode:
    """A way of decoding the same target; its text is its name, such as ``tree`` or ``tree8``."""

    kind: Kind
    nodes: int | None = None  # verified a step, root included; None: the server's default

    def __str__(self) -> str:
        return f"{self.kind}{self.nodes or ''}"

    @property
    def rank(self) -> tuple[int, int]:
        """Sorts modes as they stand in reports."""
        return (list(Kind).index(self.kind), self.nodes or 0)

    @property
    def is_fixed(self) -> bool:
        """Whether it is dflash2 with the same number of nodes at every step."""
        return self.kind in FIXED

    @property
    def is_ours(self) -> bool:
        """Whether it is dflash2."""
        return self.is_fixed or self.kind is Kind.ADAPTIVE


PLAIN = Mode(Kind.PLAIN)
NATIVE = Mode(Kind.NATIVE)
ADAPTIVE = Mode(Kind.ADAPTIVE)


class Pair(NamedTuple):
    """Checkpoints, by folder or by name on the hub."""

    target: str
    drafter: str | None  # DFlash or DFlash 2
    eagle3_drafter: str | None = None


_DRAFTER = "--speculative-draft-model-path"
_ALGORITHM = "--speculative-algorithm"
_NODES = "--speculative-num-draft-tokens"
_CHILDREN = "--speculative-eagle-topk"
_CONFIG = "--dflash2-config"


def server_arguments(mode: Mode, pair: Pair, further: list[str]) -> list[str]:
    """Arguments of the server of a mode.

    Args:
        further: arguments that all modes share, such as the device and the dtype; what they say
            goes before what the mode says.

    Raises:
        BenchError: the mode needs a drafter that was not given.
    """
    # All publish metrics, since counting costs a server time; ours tell about their steps there.
    arguments = [
        *("--model-path", pair.target, "--enable-metrics"),
        *_speculation(mode, pair),
        *further,
    ]
    return _one_config(arguments)


def _speculation(mode: Mode, pair: Pair) -> list[str]:
    match mode.kind:
        case Kind.PLAIN:
            return []
        case Kind.NATIVE:
            return [_ALGORITHM, "DFLASH", _DRAFTER, _needed(pair.drafter, mode, "--drafter")]
        case Kind.CHAIN:
            return [*_dflash2(mode, pair), _CHILDREN, "1"]
        case Kind.TREE | Kind.ADAPTIVE:
            return _dflash2(mode, pair)
        case Kind.NGRAM:
            return [_ALGORITHM, "NGRAM"]
        case Kind.EAGLE3:
            drafter = _needed(pair.eagle3_drafter, mode, "--eagle3-drafter")
            return [_ALGORITHM, "EAGLE3", _DRAFTER, drafter]


def _dflash2(mode: Mode, pair: Pair) -> list[str]:
    adaptive = mode.kind is Kind.ADAPTIVE
    nodes = _ADAPTIVE_CEILING if adaptive else mode.nodes
    return [
        *(_ALGORITHM, "dflash2", _DRAFTER, _needed(pair.drafter, mode, "--drafter")),
        *(() if nodes is None else (_NODES, str(nodes))),
        # Said outright, since on a CPU a server without a number of nodes is adaptive.
        *(_CONFIG, json.dumps({"adaptive": adaptive})),
    ]


def _needed(drafter: str | None, mode: Mode, flag: str) -> str:
    if drafter is None:
        raise BenchError(f"the mode {mode} needs a drafter: give {flag} CHECKPOINT.")
    return drafter


def _one_config(arguments: list[str]) -> list[str]:
    """All ``--dflash2-config`` as one, since of several the server sees only the last."""
    config: dict[str, Any] = {}
    others = []
    words = iter(arguments)
    for word in words:
        flag, _, value = word.partition("=")
        if flag != _CONFIG:
            others.append(word)
            continue
        config |= _read_config(value or next(words, ""))
    return [*others, _CONFIG, json.dumps(config)] if config else others


def _read_config(text: str) -> dict[str, Any]:
    try:
        source = text if text.lstrip().startswith("{") else Path(text).read_text("utf-8")
        config = json.loads(source)
    except (OSError, json.JSONDecodeError) as error:
        raise BenchError(
            f"{_CONFIG} expects a JSON object or a file with one, got {text!r} ({error})."
        ) from error
    if not isinstance(config, dict):
        raise BenchError(f"{_CONFIG} expects a JSON object, got {text!r}.")
    return config


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


def parse_mode(name: str) -> Mode:
    """A mode by its name.

    Raises:
        BenchError: no such mode, or a number of nodes that it cannot have.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise BenchError(f"unknown mode {name!r}: expected one of {_NAMES}, N nodes a step.")
    kind, nodes = Kind(found[1]), found[2]
    if nodes is None:
        return Mode(kind)
    if kind not in FIXED:
        raise BenchError(
            f"the mode {name}: only {' and '.join(FIXED)} take a number of nodes; for another "
            f'ceiling of {Kind.ADAPTIVE} give --mode-args "{Kind.ADAPTIVE}={_NODES} N".'
        )
    if int(nodes) < 2:
        raise BenchError(f"the mode {name}: the root is a node too, so expected 2 or more.")
    return Mode(kind, int(nodes))


def parse_assignment(text: str, flag: str) -> tuple[Mode, str]:
    """``MODE=VALUE`` of a command-line flag.

    Raises:
        BenchError: no such mode, or no value.
    """
    name, _, value = text.partition("=")
    if not value:
        raise BenchError(f"{flag} expects MODE=VALUE with one of {_NAMES}, got {text!r}.")
    return parse_mode(name), value


def parse_modes(text: str) -> list[Mode]:
    """Modes from a comma-separated list.

    Raises:
        BenchError: an unknown mode, a repeated one, or none.
    """
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    if not names or len(set(names)) != len(names):
        raise BenchError(f"--modes expects different ones of {_NAMES}, got {text!r}.")
    return [parse_mode(name) for name in names]
