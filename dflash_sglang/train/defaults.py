"""The drafter this package would train for a target, when the user says nothing else."""

from __future__ import annotations

from typing import Any, Literal

from dflash_sglang.config import (
    ConvConfig,
    DFlash2Config,
    RopeConfig,
    SelectorConfig,
    default_target_layer_ids,
)
from dflash_sglang.drafter import DFlash2Drafter

from .errors import TrainingError

ConvKind = Literal["none", "static3", "static5", "dynamic"]


def make_config(
    target_config: Any,
    mask_token_id: int,
    block_size: int = 8,
    num_layers: int = 3,
    num_taps: int = 5,
    tap_layer_ids: tuple[int, ...] | None = None,
    conv: ConvKind = "dynamic",
    kernel_size: int = 4,
    group_size: int | None = None,
    selector_rank: int = 64,
    top_k: int = 16,
    intermediate_size: int | None = None,
) -> DFlash2Config:
    """A drafter config that fits `target_config` (a transformers config; its text part is used).

    Attention heads are the target's, the MLP is 3 hidden sizes wide, taps are those of
    `default_taps`, every layer attends to the whole context and to the whole block. selector_rank 0
    leaves the selector out.

    Raises:
        ConfigError: sizes that do not go together (see DFlash2Config).
    """
    text = target_config.get_text_config()
    hidden, heads = text.hidden_size, text.num_attention_heads
    head_dim = getattr(text, "head_dim", None) or hidden // heads
    depth = text.num_hidden_layers
    taps = tap_layer_ids or default_taps(depth, num_taps)
    return DFlash2Config(
        hidden_size=hidden,
        num_hidden_layers=num_layers,
        num_attention_heads=heads,
        num_key_value_heads=getattr(text, "num_key_value_heads", None) or heads,
        head_dim=head_dim,
        intermediate_size=intermediate_size or 3 * hidden,
        vocab_size=text.vocab_size,
        rms_norm_eps=text.rms_norm_eps,
        rope=RopeConfig(
            theta=10_000.0,
            rotary_dim=head_dim,
            max_positions=text.max_position_embeddings,
        ),
        layer_types=("full_attention",) * num_layers,
        sliding_window=None,
        causal=(False,) * num_layers,
        num_target_layers=depth,
        target_layer_ids=taps,
        block_size=block_size,
        mask_token_id=mask_token_id,
        conv=_conv(conv, hidden, kernel_size, group_size),
        selector=SelectorConfig(selector_rank, top_k) if selector_rank else None,
        final_logit_softcapping=getattr(text, "final_logit_softcapping", None),
        input_embedding_scale=_embedding_scale(text),
    )


def default_taps(num_target_layers: int, num_taps: int = 5) -> tuple[int, ...]:
    """Tap layers spread evenly from layer 1 to layer L-3, fewer on targets too shallow for all."""
    return default_target_layer_ids(num_target_layers, max(1, min(num_taps, num_target_layers - 3)))


def choose_mask_token(tokenizer: Any, vocab_size: int) -> int:
    """An id that no text contains: the tokenizer's mask token, or one that it leaves free.

    Raises:
        TrainingError: there is none; the user has to name one.
    """
    if tokenizer is not None:
        vocabulary = tokenizer.get_vocab()
        named = tokenizer.mask_token_id or vocabulary.get("<|mask|>")
        if named is not None:
            return named
        used = set(vocabulary.values())
        free = [i for i in range(vocab_size - 1, -1, -1) if i not in used]
        if free:
            return free[0]
    raise TrainingError(
        "the target's tokenizer has no mask token and leaves no embedding row free; "
        "name a special token that no text uses with --mask-token-id"
    )


def num_parameters(drafter: DFlash2Drafter) -> int:
    return sum(parameter.numel() for parameter in drafter.parameters())


def _conv(
    kind: ConvKind, hidden_size: int, kernel_size: int, group_size: int | None
) -> ConvConfig | None:
    if kind == "none":
        return None
    if kind in ("static3", "static5"):
        return ConvConfig("static", int(kind[-1]), 1)
    return ConvConfig("dynamic", kernel_size, group_size or max(1, hidden_size // 16))


def _embedding_scale(text: Any) -> float:
    # Gemma multiplies embedding rows by sqrt(D) inside the model; a drafter reads the raw rows.
    return float(text.hidden_size**0.5) if text.model_type.startswith("gemma") else 1.0
