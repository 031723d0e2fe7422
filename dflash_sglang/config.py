"""A drafter checkpoint's ``config.json``, parsed once, validated, frozen.

The contract is that of the published DFlash and DFlash 2 drafters: Qwen3-style fields at the top level
and drafter fields in ``dflash_config``. A drafter field may stand in either place; two places that
disagree are an error. What this package cannot honour is refused by name, never ignored: a drafter that
rotates or masks other than it was trained to still runs, it just stops being accepted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from dflash_sglang.config_fields import ConfigError, Fields
from dflash_sglang.config_rope import RopeConfig

__all__ = [
    "ConfigError",
    "ConvConfig",
    "DFlash2Config",
    "RopeConfig",
    "SelectorConfig",
    "default_target_layer_ids",
]

PLAIN_ARCHITECTURES = ("DFlashDraftModel", "MuseGlimmerAssistantModel")
SELECTOR_ARCHITECTURES = (
    "DFlash2DraftModel",
    "DFlash2BeamDraftModel",
    "MiniMaxDFlash2DraftModel",
)
# Our own: the seeds' static convolution, with or without a selector. Other engines do not know it and
# must not take it for a published drafter.
STATIC_ARCHITECTURE = "DFlash2StaticDraftModel"
ARCHITECTURES = (*PLAIN_ARCHITECTURES, *SELECTOR_ARCHITECTURES, STATIC_ARCHITECTURE)

FULL, SLIDING = "full_attention", "sliding_attention"

TokenLookup = Callable[[str], int | None]
"""A token's text -> its id in the target's vocabulary, or None when the vocabulary lacks it."""


@dataclass(frozen=True)
class ConvConfig:
    """Local convolution along the block.

    ``dynamic``: grouped, content-dependent, around both sublayers. ``static``: depthwise with bias,
    between attention and MLP; its group size is 1.
    """

    kind: Literal["dynamic", "static"]
    kernel_size: int
    group_size: int


@dataclass(frozen=True)
class SelectorConfig:
    """Candidate selector: rank of the two codebooks, candidates per position."""

    rank: int
    top_k: int


@dataclass(frozen=True)
class DFlash2Config:
    """One drafter. Shapes of its tensors: ``shared/design`` contract, see :mod:`dflash_sglang.drafter`.

    ``target_layer_ids[i] = l`` means the output of decoder layer ``l`` (0-based), which is
    ``hidden_states[l + 1]`` of a transformers model.
    """

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    rms_norm_eps: float
    rope: RopeConfig
    layer_types: tuple[str, ...]
    sliding_window: int | None
    causal: tuple[bool, ...]  # per layer
    num_target_layers: (
        int | None
    )  # depth of the target it was trained for, when the checkpoint says it
    target_layer_ids: tuple[int, ...]
    block_size: int  # anchor included
    mask_token_id: int
    conv: ConvConfig | None = None
    selector: SelectorConfig | None = None
    output_multiplier: float = 1.0
    final_logit_softcapping: float | None = None
    input_embedding_scale: float = 1.0
    shift_label: bool = False
    attention_bias: bool = False

    @property
    def target_hidden_size(self) -> int:
        """The target's hidden size: embeddings and head are shared, so it is the drafter's own."""
        return self.hidden_size

    @property
    def num_draft_tokens(self) -> int:
        """gamma: tokens that one block proposes, the anchor not counted."""
        return self.block_size - 1

    @property
    def architecture(self) -> str:
        """The name that ``config.json`` carries for this drafter."""
        if self.conv is not None and self.conv.kind == "static":
            return STATIC_ARCHITECTURE
        return PLAIN_ARCHITECTURES[0] if self.selector is None else SELECTOR_ARCHITECTURES[0]

    def layer_window(self, layer: int) -> int | None:
        """Sliding window of ``layer`` in tokens, the query included; None for full attention."""
        return self.sliding_window if self.layer_types[layer] == SLIDING else None

    def draft_positions(self, block_size: int | None = None) -> slice:
        """Block positions whose logits propose draft token 0, 1, ... of a block of ``block_size``."""
        size = self.block_size if block_size is None else block_size
        return slice(0, size - 1) if self.shift_label else slice(1, size)

    @classmethod
    def from_pretrained(
        cls, path: str | Path, token_id: TokenLookup | None = None
    ) -> DFlash2Config:
        """Read ``path/config.json``. Raises :class:`ConfigError`."""
        file = Path(path) / "config.json"
        try:
            raw = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(f"No drafter configuration: {file} does not exist.") from None
        except (OSError, ValueError) as error:
            raise ConfigError(f"{file} is not a readable JSON file: {error}.") from None
        if not isinstance(raw, dict):
            raise ConfigError(f"{file} must hold a JSON object, got {type(raw).__name__}.")
        return cls.from_dict(raw, token_id)

    @classmethod
    def from_dict(
        cls, raw: Mapping[str, Any], token_id: TokenLookup | None = None
    ) -> DFlash2Config:
        """Parse a published ``config.json``.

        ``token_id`` resolves ``mask_token`` when the checkpoint names the mask by its text.
        Raises :class:`ConfigError`, one sentence, for anything missing, contradictory or unsupported.
        """
        fields = Fields(raw)
        architecture = _architecture(fields)
        _refuse_unsupported(fields)
        hidden_size = fields.integer("hidden_size")
        num_layers = fields.integer("num_hidden_layers")
        heads = fields.integer("num_attention_heads")
        head_dim = fields.integer("head_dim", default=128)  # Qwen3Config's own default
        layer_types = _layer_types(fields, num_layers)
        num_target_layers = fields.optional_integer("num_target_layers")
        config = cls(
            hidden_size=hidden_size,
            num_hidden_layers=num_layers,
            num_attention_heads=heads,
            num_key_value_heads=fields.optional_integer("num_key_value_heads") or heads,
            head_dim=head_dim,
            intermediate_size=fields.integer("intermediate_size"),
            vocab_size=fields.integer("vocab_size"),
            rms_norm_eps=fields.number("rms_norm_eps", default=1e-6),
            rope=RopeConfig.from_fields(fields, head_dim),
            layer_types=layer_types,
            sliding_window=_sliding_window(fields, layer_types),
            causal=_causal(fields, layer_types),
            num_target_layers=num_target_layers,
            target_layer_ids=_target_layer_ids(fields, num_target_layers, num_layers),
            block_size=fields.integer("block_size", minimum=2, default=16),
            mask_token_id=_mask_token_id(fields, token_id),
            conv=_conv(fields, architecture),
            selector=_selector(fields, architecture),
            output_multiplier=fields.number("output_multiplier", default=1.0),
            final_logit_softcapping=_softcap(fields),
            input_embedding_scale=fields.number("input_embedding_scale", default=1.0),
            shift_label=_shift_label(fields),
            attention_bias=fields.boolean("attention_bias", default=False),
        )
        config.validate()
        return config

    def validate(self) -> None:
        """Relations between the fields. Raises :class:`ConfigError` with both numbers."""
        if self.num_attention_heads % self.num_key_value_heads:
            raise ConfigError(
                f"num_attention_heads={self.num_attention_heads} must be a multiple of "
                f"num_key_value_heads={self.num_key_value_heads}."
            )
        if not 0 <= self.mask_token_id < self.vocab_size:
            raise ConfigError(
                f"mask_token_id={self.mask_token_id} lies outside the vocabulary of "
                f"vocab_size={self.vocab_size} tokens."
            )
        if self.conv is not None and self.hidden_size % self.conv.group_size:
            raise ConfigError(
                f"conv_group_size={self.conv.group_size} must divide hidden_size={self.hidden_size}."
            )
        if self.selector is not None and self.selector.top_k > self.vocab_size:
            raise ConfigError(
                f"selector_top_k={self.selector.top_k} exceeds vocab_size={self.vocab_size}."
            )
        ids, depth = self.target_layer_ids, self.num_target_layers
        if not ids or list(ids) != sorted(set(ids)) or ids[0] < 0:
            raise ConfigError(
                f"target_layer_ids must be ascending, distinct and not negative, got {list(ids)}."
            )
        if depth is not None and ids[-1] >= depth:
            raise ConfigError(
                f"target_layer_ids taps layer {ids[-1]}, but num_target_layers={depth} "
                f"ends at layer {depth - 1}."
            )

    def with_block_size(self, block_size: int) -> DFlash2Config:
        """The same drafter with shorter blocks: fewer draft tokens work, more were never trained."""
        if not 2 <= block_size <= self.block_size:
            raise ConfigError(
                f"block size must be 2 to {self.block_size} (the checkpoint's own), got {block_size}."
            )
        return replace(self, block_size=block_size)

    def to_dict(self) -> dict[str, Any]:
        """The published ``config.json``; ``from_dict(to_dict())`` gives an equal config."""
        drafter: dict[str, Any] = {
            "target_layer_ids": list(self.target_layer_ids),
            "mask_token_id": self.mask_token_id,
            "block_size": self.block_size,
            "shift_label": self.shift_label,
        }
        if self.conv is not None:
            drafter["conv_kernel_size"] = self.conv.kernel_size
            if self.conv.kind == "dynamic":
                drafter["conv_group_size"] = self.conv.group_size
            else:
                drafter["conv_kind"] = self.conv.kind
        if self.selector is not None:
            drafter["selector_rank"] = self.selector.rank
            drafter["selector_top_k"] = self.selector.top_k
        if self.output_multiplier != 1.0:
            drafter["output_multiplier"] = self.output_multiplier
        if self.final_logit_softcapping is not None:
            drafter["final_logit_softcapping"] = self.final_logit_softcapping
        if self.input_embedding_scale != 1.0:
            drafter["input_embedding_scale"] = self.input_embedding_scale
        top: dict[str, Any] = {
            "architectures": [self.architecture],
            "model_type": "qwen3",
            "hidden_act": "silu",
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.intermediate_size,
            "vocab_size": self.vocab_size,
            "rms_norm_eps": self.rms_norm_eps,
            "attention_bias": self.attention_bias,
            "layer_types": list(self.layer_types),
            # Qwen3Config drops sliding_window unless this flag says that it is meant.
            "use_sliding_window": self.sliding_window is not None,
            "sliding_window": self.sliding_window,
            "block_size": self.block_size,
            **self.rope.to_dict(self.head_dim),
            "dflash_config": drafter,
        }
        if self.num_target_layers is not None:
            top["num_target_layers"] = self.num_target_layers
        if self.causal != _default_causal(self.layer_types):
            top["is_causal"] = self.causal[0]
        return top


def default_target_layer_ids(num_target_layers: int, num_taps: int) -> tuple[int, ...]:
    """Tap layers spread evenly from layer 1 to layer L-3, both included (the DFlash paper's choice).

    One tap takes the middle layer. Raises :class:`ConfigError` when the target is too shallow for
    ``num_taps`` distinct layers.
    """
    if num_taps == 1:
        return (num_target_layers // 2,)
    first, last = 1, num_target_layers - 3
    ids = tuple(round(first + i * (last - first) / (num_taps - 1)) for i in range(num_taps))
    if len(set(ids)) != num_taps or last < first:
        raise ConfigError(
            f"A target of {num_target_layers} layers has no {num_taps} distinct tap layers "
            f"between layer {first} and layer {last}."
        )
    return ids


def _architecture(fields: Fields) -> str:
    names = fields.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or names[0] not in ARCHITECTURES:
        raise ConfigError(
            f"architectures must name one of {', '.join(ARCHITECTURES)}, got {names!r}."
        )
    return names[0]


def _refuse_unsupported(fields: Fields) -> None:
    """Refuse what changes the mathematics and is not implemented, rather than serve it wrong."""
    supported: dict[str, tuple[Any, ...]] = {
        "hidden_act": (None, "silu"),
        "projector_type": (None,),
        "attention_sink_bias": (None, False),
        "attention_value_scale": (None, 1.0),
        "use_gemma_norm": (None, False),
        "has_embed_tokens": (None, False),
        "has_lm_head": (None, False),
        "quantization_config": (None,),
        "mlp_bias": (None, False),
    }
    for key, accepted in supported.items():
        value = fields.get(key)
        if value not in accepted:
            raise ConfigError(
                f"{key}={value!r} is not supported for a drafter; supported: "
                f"{', '.join(repr(choice) for choice in accepted if choice is not None) or 'absent'}."
            )
    hidden_size = fields.integer("hidden_size")
    declared = fields.optional_integer("target_hidden_size")
    if declared is not None and declared != hidden_size:
        raise ConfigError(
            f"target_hidden_size={declared} must equal hidden_size={hidden_size}: the drafter shares "
            "the target's embedding and head."
        )
    vocab_size = fields.integer("vocab_size")
    draft_vocab = fields.optional_integer("draft_vocab_size")
    if draft_vocab is not None and draft_vocab != vocab_size:
        raise ConfigError(
            f"draft_vocab_size={draft_vocab} must equal vocab_size={vocab_size}: a drafter with a "
            "reduced vocabulary is not supported."
        )


def _layer_types(fields: Fields, num_layers: int) -> tuple[str, ...]:
    declared = fields.get("layer_types")
    if declared is None:
        # The rule of Qwen3Config for configs without layer_types.
        sliding_from = num_layers
        if fields.boolean("use_sliding_window", default=False):
            sliding_from = fields.integer("max_window_layers", minimum=0, default=28)
        return tuple(SLIDING if i >= sliding_from else FULL for i in range(num_layers))
    if not isinstance(declared, list) or len(declared) != num_layers:
        raise ConfigError(
            f"layer_types must list {num_layers} entries (num_hidden_layers), got {declared!r}."
        )
    for index, name in enumerate(declared):
        if name not in (FULL, SLIDING):
            raise ConfigError(f"layer_types[{index}] must be {FULL} or {SLIDING}, got {name!r}.")
    return tuple(declared)


def _sliding_window(fields: Fields, layer_types: tuple[str, ...]) -> int | None:
    if SLIDING not in layer_types:
        return None
    window = fields.optional_integer("sliding_window")
    if window is None or not fields.boolean("use_sliding_window", default=True):
        raise ConfigError(
            "layer_types has sliding_attention layers, so sliding_window must be a positive number of "
            f"tokens and use_sliding_window must not be false, got sliding_window={window} and "
            f"use_sliding_window={fields.get('use_sliding_window')}."
        )
    return window


def _default_causal(layer_types: tuple[str, ...]) -> tuple[bool, ...]:
    """The reference's rule: sliding layers are causal, full ones see the whole block."""
    return tuple(name == SLIDING for name in layer_types)


def _causal(fields: Fields, layer_types: tuple[str, ...]) -> tuple[bool, ...]:
    declared = fields.optional_boolean("is_causal")
    if declared is None:
        return _default_causal(layer_types)
    return (declared,) * len(layer_types)


def _target_layer_ids(
    fields: Fields, num_target_layers: int | None, num_layers: int
) -> tuple[int, ...]:
    declared = fields.get("target_layer_ids")
    if declared is None:
        if num_target_layers is None:
            raise ConfigError("One of target_layer_ids and num_target_layers must be given.")
        return default_target_layer_ids(num_target_layers, num_layers)
    if not isinstance(declared, list) or not all(type(i) is int for i in declared):
        raise ConfigError(f"target_layer_ids must be a list of layer numbers, got {declared!r}.")
    return tuple(declared)


def _mask_token_id(fields: Fields, token_id: TokenLookup | None) -> int:
    declared = fields.optional_integer("mask_token_id", minimum=0)
    text = fields.get("mask_token")
    if text is None:
        if declared is None:
            raise ConfigError("One of mask_token_id and mask_token must be given.")
        return declared
    if not isinstance(text, str) or not text:
        raise ConfigError(f"mask_token must be a non-empty string, got {text!r}.")
    found = token_id(text) if token_id is not None else None
    if declared is None and found is None:
        where = "the target's vocabulary lacks it" if token_id else "no tokenizer was given"
        raise ConfigError(f"mask_token={text!r} cannot be turned into a token id: {where}.")
    if declared is not None and found is not None and declared != found:
        raise ConfigError(
            f"mask_token_id={declared} conflicts with mask_token={text!r}, which the target's "
            f"tokenizer maps to {found}."
        )
    return declared if declared is not None else found  # type: ignore[return-value]


def _conv(fields: Fields, architecture: str) -> ConvConfig | None:
    kernel_size = fields.integer("conv_kernel_size", minimum=0, default=0)
    group_size = fields.integer("conv_group_size", minimum=0, default=0)
    static = architecture == STATIC_ARCHITECTURE
    kind = fields.get("conv_kind", "static" if static else "dynamic")
    if kind not in ("dynamic", "static") or (kind == "static") != static:
        raise ConfigError(
            f"conv_kind={kind!r} does not belong to the architecture {architecture}: "
            f"{STATIC_ARCHITECTURE} is static, every other one dynamic."
        )
    if static:
        if kernel_size not in (3, 5) or group_size > 1:
            raise ConfigError(
                "A static convolution has conv_kernel_size 3 or 5 and no conv_group_size, got "
                f"conv_kernel_size={kernel_size} and conv_group_size={group_size}."
            )
        return ConvConfig("static", kernel_size, 1)
    if bool(kernel_size) != bool(group_size):
        raise ConfigError(
            "A dynamic convolution needs conv_kernel_size and conv_group_size together, got "
            f"conv_kernel_size={kernel_size} and conv_group_size={group_size}."
        )
    return ConvConfig("dynamic", kernel_size, group_size) if kernel_size else None


def _selector(fields: Fields, architecture: str) -> SelectorConfig | None:
    rank = fields.integer("selector_rank", minimum=0, default=0)
    top_k = fields.integer("selector_top_k", minimum=0, default=0)
    if bool(rank) != bool(top_k):
        raise ConfigError(
            "A candidate selector needs selector_rank and selector_top_k together, got "
            f"selector_rank={rank} and selector_top_k={top_k}."
        )
    if rank and architecture in PLAIN_ARCHITECTURES:
        raise ConfigError(
            f"{architecture} has no candidate selector, but selector_rank={rank} is given."
        )
    if not rank and architecture in SELECTOR_ARCHITECTURES:
        raise ConfigError(f"{architecture} needs selector_rank and selector_top_k.")
    return SelectorConfig(rank, top_k) if rank else None


def _softcap(fields: Fields) -> float | None:
    cap = fields.get("final_logit_softcapping")
    if cap is None or cap == 0:
        return None
    return fields.number("final_logit_softcapping")


def _shift_label(fields: Fields) -> bool:
    """True when block position j predicts the token at anchor + j + 1 (see the algorithm notes)."""
    shift = fields.optional_boolean("shift_label")
    from_anchor = fields.optional_boolean("sample_from_anchor")
    if shift is not None and from_anchor is not None and shift != from_anchor:
        raise ConfigError(
            f"shift_label={shift} conflicts with sample_from_anchor={from_anchor}: both say whether "
            "the anchor's own position predicts a token."
        )
    return bool(shift if shift is not None else from_anchor)
