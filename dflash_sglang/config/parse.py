"""From a published ``config.json`` to :class:`DFlash2Config`.

The contract is that of the published DFlash and DFlash 2 drafters: Qwen3-style fields at the top
level and drafter fields in ``dflash_config``. A field may stand in either place; two places that
disagree are an error. What this package cannot honour is refused by name, never ignored: a drafter
that rotates or masks other than it was trained to still runs, it just stops being accepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_sglang.config.fields import ConfigError, Fields
from dflash_sglang.config.rope import RopeConfig
from dflash_sglang.config.schema import (
    ARCHITECTURES,
    FULL,
    PLAIN_ARCHITECTURES,
    SELECTOR_ARCHITECTURES,
    SLIDING,
    STATIC_ARCHITECTURE,
    ConvConfig,
    DFlash2Config,
    SelectorConfig,
    TokenLookup,
    default_causal,
    default_target_layer_ids,
)

# Fields that change the mathematics and are not implemented, with the values that mean "not used".
NOT_IMPLEMENTED: dict[str, tuple[Any, ...]] = {
    "hidden_act": (None, "silu"),
    "projector_type": (None,),
    "attention_sink_bias": (None, False),
    "attention_value_scale": (None, 1.0),
    "use_gemma_norm": (None, False),
    "has_embed_tokens": (None, False),
    "has_lm_head": (None, False),
    "quantization_config": (None,),
}


def parse_config(raw: Mapping[str, Any], token_id: TokenLookup | None) -> DFlash2Config:
    """See :meth:`DFlash2Config.from_dict`."""
    fields = Fields(raw)
    architecture = _architecture(fields)
    _refuse_not_implemented(fields)
    num_layers = fields.integer("num_hidden_layers")
    heads = fields.integer("num_attention_heads")
    head_dim = fields.integer("head_dim", default=128)  # Qwen3Config's own default
    layer_types = _layer_types(fields, num_layers)
    num_target_layers = fields.optional_integer("num_target_layers")
    return DFlash2Config(
        hidden_size=fields.integer("hidden_size"),
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
        block_size=fields.integer("block_size", default=16),  # the reference's default
        mask_token_id=_mask_token_id(fields, token_id),
        conv=_conv(fields, architecture),
        selector=_selector(fields, architecture),
        output_multiplier=fields.number("output_multiplier", default=1.0),
        final_logit_softcapping=_softcap(fields),
        input_embedding_scale=fields.number("input_embedding_scale", default=1.0),
        shift_label=_shift_label(fields),
        attention_bias=fields.boolean("attention_bias", default=False),
    )


def _architecture(fields: Fields) -> str:
    names = fields.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or names[0] not in ARCHITECTURES:
        raise ConfigError(
            f"architectures must name one of {', '.join(ARCHITECTURES)}, got {names!r}."
        )
    return names[0]


def _refuse_not_implemented(fields: Fields) -> None:
    for key, unused in NOT_IMPLEMENTED.items():
        value = fields.get(key)
        if value not in unused:
            allowed = ", ".join(repr(choice) for choice in unused if choice is not None)
            raise ConfigError(
                f"{key}={value!r} is not supported for a drafter; it must be {allowed or 'absent'}."
            )
    hidden_size = fields.integer("hidden_size")
    target_size = fields.get("target_hidden_size", hidden_size)
    if target_size != hidden_size:
        raise ConfigError(
            f"target_hidden_size={target_size} must equal hidden_size={hidden_size}, because the "
            "drafter shares the target's embedding and head."
        )
    vocab_size = fields.integer("vocab_size")
    draft_vocab = fields.get("draft_vocab_size", vocab_size)
    if draft_vocab != vocab_size:
        raise ConfigError(
            f"draft_vocab_size={draft_vocab} must equal vocab_size={vocab_size}: a drafter with a "
            "vocabulary of its own is not supported."
        )


def _layer_types(fields: Fields, num_layers: int) -> tuple[str, ...]:
    declared = fields.get("layer_types")
    if declared is None:
        # The rule of Qwen3Config for configs without layer_types.
        sliding_from = num_layers
        if fields.boolean("use_sliding_window", default=False):
            sliding_from = fields.integer("max_window_layers", minimum=0, default=28)
        return tuple(SLIDING if i >= sliding_from else FULL for i in range(num_layers))
    if not isinstance(declared, list):
        raise ConfigError(f"layer_types must be a list of layer types, got {declared!r}.")
    return tuple(declared)


def _sliding_window(fields: Fields, layer_types: tuple[str, ...]) -> int | None:
    if SLIDING not in layer_types:
        return None
    window = fields.optional_integer("sliding_window")
    if window is None or not fields.boolean("use_sliding_window", default=True):
        raise ConfigError(
            "layer_types has sliding_attention layers, so sliding_window must be a number of "
            f"tokens and use_sliding_window must not be false, got sliding_window={window} and "
            f"use_sliding_window={fields.get('use_sliding_window')}."
        )
    return window


def _causal(fields: Fields, layer_types: tuple[str, ...]) -> tuple[bool, ...]:
    declared = fields.optional_boolean("is_causal")
    return default_causal(layer_types) if declared is None else (declared,) * len(layer_types)


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
    if architecture == STATIC_ARCHITECTURE:
        if kernel_size not in (3, 5) or group_size:
            raise ConfigError(
                f"{architecture} needs conv_kernel_size 3 or 5 and no conv_group_size, got "
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
            f"shift_label={shift} conflicts with sample_from_anchor={from_anchor}: both say "
            "whether the anchor's own position predicts a token."
        )
    return bool(shift if shift is not None else from_anchor)
