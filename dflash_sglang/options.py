"""What a server was asked to do: SGLang's flags and our one JSON option, resolved once.

SGLang's own names are kept. ``--speculative-num-steps`` is the greatest draft depth,
``--speculative-num-draft-tokens`` the number of nodes verified in a step (root included) and
``--speculative-eagle-topk`` the greatest number of children of a node, so 1 means a chain. What
SGLang has no flag for stands in :class:`Tuning`, given as ``--dflash2-config '{...}'``.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from dflash_sglang.config import DFlash2Config

TUNING_VARIABLE = "DFLASH2_CONFIG"
"""Environment variable that carries ``--dflash2-config`` to SGLang's worker processes."""

_DEFAULT_NODES_ON_CPU = 16
_DEFAULT_NODES_ON_ACCELERATOR = 32
_DEFAULT_CHILDREN = 4
_MOST_NODES = 128


class OptionsError(ValueError):
    """A server option that cannot be honoured."""


class Tuning(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of ``--dflash2-config``; every key has a default.

    Attributes:
        entropy_weight: lambda, the weight of the entropy term in a node's value (the path score of
            the seed documents); 0 ranks nodes by their probability alone.
        candidates: candidates per position of a drafter without selector (a selector's checkpoint
            fixes its own number).
        shared_noise: draft with the noise that the target will sample with; off only to measure
            what it is worth. Output never depends on it.
        adaptive: choose the nodes of every step from measured acceptance and cost, up to
            ``--speculative-num-draft-tokens``; None does so on a CPU where that flag was left out.
            Output never depends on it.
        rehearse: time a few steps at start for the adaptive width, once a machine and pair of
            checkpoints; without it the first requests pay for the learning.
        noise_doubt: how far the drafter's law is taken to be from the target's when candidates are
            ranked under that noise (see ``tree.noisy``); None learns it for each request. Output
            never depends on it.
        draft_vocabulary: make drafts of the tokens only that the checkpoint lists (see
            ``drafter.vocabulary``); off, or without a list, they are made of all. Output never
            depends on it.
    """

    entropy_weight: Annotated[float, msgspec.Meta(ge=0.0, le=10.0)] = 0.0
    candidates: Annotated[int, msgspec.Meta(ge=1, le=64)] = 8
    shared_noise: bool = True
    adaptive: bool | None = None
    rehearse: bool = True
    noise_doubt: Annotated[float, msgspec.Meta(ge=0.01, le=100.0)] | None = None
    draft_vocabulary: bool = True


def parse_tuning(text: str | None) -> Tuning:
    """Read ``--dflash2-config``: a JSON object, or the path of a file that holds one.

    Raises:
        OptionsError: unreadable file, malformed JSON, unknown key or value out of range; the
            sentence lists what is allowed.
    """
    if text is None or not text.strip():
        return Tuning()
    source = text
    if not text.lstrip().startswith("{"):
        try:
            source = Path(text).read_text()
        except OSError as error:
            raise OptionsError(
                f"--dflash2-config expects a JSON object or a readable file, got {text!r} "
                f"({error.strerror})."
            ) from error
    try:
        return msgspec.json.decode(source, type=Tuning)
    except msgspec.DecodeError as error:
        raise OptionsError(f"--dflash2-config: {error}. Allowed: {_allowed_tuning()}.") from error


def _allowed_tuning() -> str:
    entries = []
    for name, schema in msgspec.json.schema_components([Tuning])[1]["Tuning"]["properties"].items():
        kinds = " or ".join(_kind(kind) for kind in schema.get("anyOf", [schema]))
        entries.append(f"{name} ({kinds}, default {json.dumps(schema['default'])})")
    return ", ".join(entries)


def _kind(schema: dict[str, Any]) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    return schema["type"] if low is None else f"{schema['type']} {low} to {high}"


def tuning_from_environment() -> Tuning:
    """The tuning that the launcher published for this process and its children."""
    return parse_tuning(os.environ.get(TUNING_VARIABLE))


@dataclass(frozen=True)
class DFlash2Options:
    """One server's speculation window, resolved against the drafter's checkpoint.

    Attributes:
        block_size: tokens of one draft block, anchor included.
        max_depth: greatest draft depth; 1 <= max_depth <= drafted positions of a block.
        num_nodes: nodes verified in one step, root included.
        max_children: greatest number of children of a node; 1 is a chain.
        candidates: candidates per drafted position (K of the lattice).
        is_adaptive: num_nodes is a ceiling, and each step chooses its own number.
        draft_vocabulary: how many of the tokens drafts are made of; None for all.
        tuning: options without a flag of SGLang's.
    """

    block_size: int
    max_depth: int
    num_nodes: int
    max_children: int
    candidates: int
    is_adaptive: bool
    draft_vocabulary: int | None
    tuning: Tuning

    @property
    def is_chain(self) -> bool:
        return self.max_children == 1

    @property
    def slots_per_step(self) -> int:
        """KV slots that one step writes behind a request's prefix, before it commits."""
        return max(self.num_nodes, self.block_size)

    def describe(self) -> str:
        """The resolved values in one line, for the log."""
        listed = self.draft_vocabulary
        vocabulary = "" if listed is None else f" out of {listed:,} tokens"
        shape = "chain" if self.is_chain else f"tree, at most {self.max_children} children a node"
        return (
            f"block size {self.block_size}, depth {self.max_depth}, "
            f"{'at most ' if self.is_adaptive else ''}{self.num_nodes} nodes "
            f"verified a step ({shape}), {self.candidates} candidates a position{vocabulary}, "
            f"shared noise {'on' if self.tuning.shared_noise else 'off'}"
        )


def resolve_options(
    drafter: DFlash2Config,
    *,
    device: str,
    num_steps: int | None,
    num_draft_tokens: int | None,
    topk: int | None,
    draft_vocabulary: int | None,
    tuning: Tuning,
) -> DFlash2Options:
    """Fill in what was left out and refuse what cannot be honoured.

    Raises:
        OptionsError: a depth beyond the block, fewer than two nodes, a chain whose length
            contradicts its depth, more nodes than a tree of this shape can have, or too few tokens
            to make drafts of.
    """
    drafted = drafter.num_draft_tokens
    candidates = drafter.selector.top_k if drafter.selector else tuning.candidates
    children = _resolve_children(topk, candidates)
    depth = _resolve_depth(num_steps, num_draft_tokens, drafted, chain=children == 1)
    nodes = _resolve_nodes(num_draft_tokens, depth, children, device)
    # With shared noise as many again are looked for outside of the best ones.
    if draft_vocabulary is not None and draft_vocabulary < 2 * candidates:
        raise OptionsError(
            f"a draft vocabulary must have at least {2 * candidates} tokens for {candidates} "
            f"candidates a position, got {draft_vocabulary}."
        )
    return DFlash2Options(
        block_size=drafter.block_size,
        max_depth=depth,
        num_nodes=nodes,
        max_children=children,
        candidates=candidates,
        is_adaptive=_resolve_adaptive(tuning.adaptive, num_draft_tokens, device),
        draft_vocabulary=draft_vocabulary,
        tuning=tuning,
    )


def _resolve_children(topk: int | None, candidates: int) -> int:
    if topk is None:
        return min(_DEFAULT_CHILDREN, candidates)
    if not 1 <= topk <= candidates:
        raise OptionsError(
            f"--speculative-eagle-topk is the greatest number of children of a node: expected 1 to "
            f"{candidates} (the drafter's candidates per position), got {topk}."
        )
    return topk


def _resolve_depth(
    num_steps: int | None, num_draft_tokens: int | None, drafted: int, *, chain: bool
) -> int:
    if num_steps is None:
        if chain and num_draft_tokens is not None:
            return min(drafted, num_draft_tokens - 1)
        return drafted
    if not 1 <= num_steps <= drafted:
        raise OptionsError(
            f"--speculative-num-steps is the greatest draft depth: expected 1 to {drafted} (the "
            f"drafter proposes {drafted} positions a block), got {num_steps}."
        )
    return num_steps


def _resolve_nodes(num_draft_tokens: int | None, depth: int, children: int, device: str) -> int:
    capacity = sum(children**level for level in range(depth + 1))
    if num_draft_tokens is None:
        default = _DEFAULT_NODES_ON_CPU if device == "cpu" else _DEFAULT_NODES_ON_ACCELERATOR
        return min(default, capacity)
    if children == 1 and num_draft_tokens != capacity:
        raise OptionsError(
            f"a chain of depth {depth} has {capacity} nodes, root included, but "
            f"--speculative-num-draft-tokens is {num_draft_tokens}; give one of the two flags, or "
            "--speculative-eagle-topk above 1 for a tree."
        )
    most = min(capacity, _MOST_NODES)
    if not 2 <= num_draft_tokens <= most:
        raise OptionsError(
            f"--speculative-num-draft-tokens counts the nodes of a verified tree, root included: "
            f"expected 2 to {most} (depth {depth}, at most {children} children a node), got "
            f"{num_draft_tokens}."
        )
    return num_draft_tokens


def _resolve_adaptive(asked: bool | None, num_draft_tokens: int | None, device: str) -> bool:
    if asked is None:
        return device == "cpu" and num_draft_tokens is None
    if asked and device != "cpu":
        raise OptionsError(
            '--dflash2-config: "adaptive" chooses among captured widths, and on an accelerator '
            f"SGLang captures one: expected false with --device {device}, got true."
        )
    return asked
