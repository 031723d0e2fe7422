"""What a drafter checkpoint holds, what it costs in memory, and whether it fits a target.

Reads headers and configurations only, never the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch

from dflash_sglang.config import SLIDING, ConvConfig, DFlash2Config, RopeConfig, SelectorConfig
from dflash_sglang.drafter.checkpoint import StoredTensor, check_tensors, stored_tensors
from dflash_sglang.drafter.model import DFlash2Drafter
from dflash_sglang.drafter.vocabulary import listed_beside


class InspectionError(ValueError):
    """A target that cannot be read; one sentence."""


@dataclass(frozen=True)
class Part:
    """One part of a drafter."""

    name: str
    parameters: int
    bytes: int  # in the serving dtype
    shape: str  # how the number of parameters comes about


@dataclass(frozen=True)
class Inspection:
    """A drafter checkpoint at a glance; ``dataclasses.asdict`` gives what ``--json`` prints."""

    path: str
    architecture: str
    stored_dtype: str
    serving_dtype: str
    parts: tuple[Part, ...]
    parameters: int
    bytes: int  # weights in the serving dtype
    shared_bytes: int  # the target's embedding and head, which a drafter of its own would add
    context_bytes_per_token: int  # keys and values of one context position, all layers
    block_size: int  # anchor included
    target_layer_ids: tuple[int, ...]
    num_target_layers: int | None
    mask_token_id: int
    mask_token: str | None  # as the target's tokenizer writes it
    draft_vocabulary: int | None  # tokens that drafts are made of; None for all
    attention: tuple[str, ...]  # by layer, e.g. "sliding 2048 causal"
    rope: RopeConfig
    conv: ConvConfig | None
    selector: SelectorConfig | None
    shift_label: bool
    target: str | None
    mismatches: tuple[str, ...]  # one sentence each; empty when the pair can be served


class TargetFacts(NamedTuple):
    """What a drafter must agree with."""

    name: str
    hidden_size: int
    num_layers: int
    vocab_size: int  # rows of the embedding


def inspect_checkpoint(
    path: str | Path,
    target_path: str | Path | None = None,
    serving_dtype: torch.dtype = torch.bfloat16,
) -> Inspection:
    """Describe the drafter under ``path`` and compare it with the target under ``target_path``.

    Every mismatch with the target is a sentence of the result. Raises
    :class:`~dflash_sglang.config.ConfigError` or
    :class:`~dflash_sglang.drafter.checkpoint.CheckpointError` or
    :class:`~dflash_sglang.drafter.vocabulary.VocabularyError` when the drafter itself is broken and
    :class:`InspectionError` when the target cannot be read.
    """
    tokenizer = None if target_path is None else _tokenizer(target_path)
    vocabulary = None if tokenizer is None else tokenizer.get_vocab()
    config = DFlash2Config.from_pretrained(path, None if vocabulary is None else vocabulary.get)
    tensors = _checked_tensors(config, path)
    mismatches: list[str] = []
    if target_path is not None:
        mismatches += target_mismatches(config, _target_facts(target_path))
        mismatches += _tokenizer_mismatches(path, target_path, vocabulary)
    listed = listed_beside(path, config.vocab_size)
    parts = _parts(config, tensors, serving_dtype.itemsize)
    heads = config.num_key_value_heads * config.head_dim
    return Inspection(
        path=str(path),
        architecture=config.architecture,
        stored_dtype=", ".join(sorted({_name(tensor.dtype) for tensor in tensors.values()})),
        serving_dtype=_name(serving_dtype),
        parts=parts,
        parameters=sum(part.parameters for part in parts),
        bytes=sum(part.bytes for part in parts),
        shared_bytes=2 * config.vocab_size * config.hidden_size * serving_dtype.itemsize,
        context_bytes_per_token=2 * config.num_hidden_layers * heads * serving_dtype.itemsize,
        block_size=config.block_size,
        target_layer_ids=config.target_layer_ids,
        num_target_layers=config.num_target_layers,
        mask_token_id=config.mask_token_id,
        mask_token=None
        if tokenizer is None
        else tokenizer.convert_ids_to_tokens(config.mask_token_id),
        draft_vocabulary=None if listed is None else len(listed),
        attention=tuple(_attention(config, layer) for layer in range(config.num_hidden_layers)),
        rope=config.rope,
        conv=config.conv,
        selector=config.selector,
        shift_label=config.shift_label,
        target=None if target_path is None else str(target_path),
        mismatches=tuple(mismatches),
    )


def target_mismatches(config: DFlash2Config, target: TargetFacts) -> list[str]:
    """One sentence, with both sides' numbers, for everything that keeps the pair from serving."""
    sentences: list[str] = []
    if config.hidden_size != target.hidden_size:
        sentences.append(
            f"The drafter's hidden size is {config.hidden_size}, but that of {target.name} is "
            f"{target.hidden_size}, and they share embedding and head."
        )
    if config.vocab_size != target.vocab_size:
        sentences.append(
            f"The drafter's vocabulary has {config.vocab_size} tokens, but that of {target.name} "
            f"has {target.vocab_size}."
        )
    if config.mask_token_id >= target.vocab_size:
        sentences.append(
            f"The drafter's mask token has id {config.mask_token_id}, but the embedding of "
            f"{target.name} ends at id {target.vocab_size - 1}."
        )
    if config.target_layer_ids[-1] >= target.num_layers:
        sentences.append(
            f"The drafter taps layer {config.target_layer_ids[-1]}, counted from 0, but "
            f"{target.name} has {target.num_layers} layers."
        )
    if config.num_target_layers not in (None, target.num_layers):
        sentences.append(
            f"The drafter was made for a target of {config.num_target_layers} layers, but "
            f"{target.name} has {target.num_layers}."
        )
    return sentences


def _checked_tensors(config: DFlash2Config, path: str | Path) -> dict[str, StoredTensor]:
    with torch.device("meta"):
        expected = dict(DFlash2Drafter(config).named_parameters())
    tensors = stored_tensors(path)
    check_tensors(tensors, expected, path)
    return tensors


def _parts(
    config: DFlash2Config, tensors: Mapping[str, StoredTensor], itemsize: int
) -> tuple[Part, ...]:
    sizes = dict.fromkeys(_shapes(config), 0)
    for name, tensor in tensors.items():
        sizes[_part_of(name)] += prod(tensor.shape)
    return tuple(
        Part(name, size, size * itemsize, _shapes(config)[name])
        for name, size in sizes.items()
        if size
    )


def _part_of(name: str) -> str:
    if "_conv." in name:
        return "convolution"
    if name.startswith("candidate_selector."):
        return "selector"
    if name == "fc.weight":
        return "context projection"
    if "norm." in name and "self_attn" not in name:
        return "norms"
    return "attention" if ".self_attn." in name else "MLP"


def _shapes(config: DFlash2Config) -> dict[str, str]:
    """How each part's size comes about; D hidden size, V vocabulary."""
    width, layers = config.hidden_size, config.num_hidden_layers
    query = config.num_attention_heads * config.head_dim
    heads = config.num_key_value_heads * config.head_dim
    taps = len(config.target_layer_ids)
    shapes = {
        "context projection": f"{width} x ({taps} taps x {width})",
        "attention": f"{layers} layers x (q, o {query} x {width}; k, v {heads} x {width})",
        "MLP": f"{layers} layers x 3 x {width} x {config.intermediate_size}",
        "norms": f"{layers} layers x 2 x {width}, and 2 x {width}",
        "convolution": "none",
        "selector": "none",
    }
    if config.conv is not None:
        kernel, group = config.conv.kernel_size, config.conv.group_size
        shapes["convolution"] = (
            f"{layers} layers x 2 sublayers x 2 sides x {kernel} taps x {width} x "
            f"(1 + {width} / {group})"
            if config.conv.kind == "dynamic"
            else f"{layers} layers x ({kernel} taps + bias) x {width}"
        )
    if config.selector is not None:
        rank = config.selector.rank
        shapes["selector"] = f"2 x {config.vocab_size} x rank {rank}, and {rank} x {width}"
    return shapes


def _attention(config: DFlash2Config, layer: int) -> str:
    window = config.layer_window(layer)
    span = f"sliding {window}" if config.layer_types[layer] == SLIDING else "full"
    return f"{span} {'causal' if config.causal[layer] else 'bidirectional'}"


def _target_facts(path: str | Path) -> TargetFacts:
    from transformers import AutoConfig

    try:
        text = AutoConfig.from_pretrained(path).get_text_config()
        return TargetFacts(str(path), text.hidden_size, text.num_hidden_layers, text.vocab_size)
    except (OSError, ValueError, KeyError, AttributeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InspectionError(f"{path} is not a readable target: {reason}") from None


def _tokenizer(path: str | Path) -> Any:
    """The tokenizer under ``path``; None when there is none."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError, KeyError):
        return None


def _tokenizer_mismatches(
    path: str | Path, target_path: str | Path, vocabulary: Mapping[str, int] | None
) -> list[str]:
    """A drafter that brings a tokenizer must bring the target's."""
    if not (Path(path) / "tokenizer.json").is_file():
        return []
    own = _tokenizer(path)
    if own is None:
        return [f"The tokenizer stored with the drafter in {path} cannot be read."]
    if vocabulary is None:
        return [f"The drafter brings a tokenizer, but {target_path} has none to compare it with."]
    theirs, ours = dict(vocabulary), own.get_vocab()
    if ours == theirs:
        return []
    differing = sum(theirs.get(token) != ours.get(token) for token in theirs.keys() | ours.keys())
    return [
        f"The drafter's tokenizer has {len(ours)} tokens and that of {target_path} {len(theirs)}; "
        f"{differing} tokens differ."
    ]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
