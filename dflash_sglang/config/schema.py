"""What a drafter is: the fields of its configuration, their relations, and how they are written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from dflash_sglang.config.fields import ConfigError
from dflash_sglang.config.rope import RopeConfig

PLAIN_ARCHITECTURES = ("DFlashDraftModel", "MuseGlimmerAssistantModel")
SELECTOR_ARCHITECTURES = (
    "DFlash2DraftModel",
    "DFlash2BeamDraftModel",
    "MiniMaxDFlash2DraftModel",
)
# Our own: the seeds' static convolution, with or without a selector. Other engines do not know it
# and must not take it for a published drafter.
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
    """One drafter, DFlash 2 or plain DFlash.

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
    sliding_window: int | None  # in tokens, the query included
    causal: tuple[bool, ...]  # per layer
    num_target_layers: int | None  # depth of its target, where the checkpoint states it
    target_layer_ids: tuple[int, ...]
    block_size: int  # anchor included
    mask_token_id: int
    conv: ConvConfig | None = None
    selector: SelectorConfig | None = None
    output_multiplier: float = 1.0
    final_logit_softcapping: float | None = None
    input_embedding_scale: float = 1.0
    shift_label: bool = False  # block position j predicts anchor + j + 1 instead of anchor + j
    attention_bias: bool = False

    def __post_init__(self) -> None:
        self._check_shapes()
        self._check_layers()
        self._check_taps()

    @property
    def target_hidden_size(self) -> int:
        """The target's hidden size: embedding and head are shared, so it is the drafter's own."""
        return self.hidden_size

    @property
    def num_draft_tokens(self) -> int:
        """gamma: tokens that one block proposes, the anchor not counted."""
        return self.block_size - 1

    def draft_positions(self) -> slice:
        """The gamma block positions whose logits propose the first, second, ... draft token."""
        return slice(0, -1) if self.shift_label else slice(1, None)

    @property
    def architecture(self) -> str:
        """The name that ``config.json`` carries for this drafter."""
        if self.conv is not None and self.conv.kind == "static":
            return STATIC_ARCHITECTURE
        return PLAIN_ARCHITECTURES[0] if self.selector is None else SELECTOR_ARCHITECTURES[0]

    def layer_window(self, layer: int) -> int | None:
        """Sliding window of ``layer`` in tokens, the query included; None for full attention."""
        return self.sliding_window if self.layer_types[layer] == SLIDING else None

    def with_block_size(self, block_size: int) -> DFlash2Config:
        """The same drafter with shorter blocks: fewer draft tokens work, more were never trained.

        Raises :class:`ConfigError` outside 2 to the checkpoint's block size.
        """
        if not 2 <= block_size <= self.block_size:
            raise ConfigError(
                f"The block size must be 2 to {self.block_size}, which the drafter was trained "
                f"with, got {block_size}."
            )
        return replace(self, block_size=block_size)

    @classmethod
    def from_pretrained(
        cls, path: str | Path, token_id: TokenLookup | None = None
    ) -> DFlash2Config:
        """Read ``path/config.json``; see :meth:`from_dict`. Raises :class:`ConfigError`."""
        file = Path(path) / "config.json"
        try:
            raw = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(f"{file} does not exist, so {path} is not a drafter.") from None
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

        ``token_id`` resolves ``mask_token`` when the checkpoint names the mask by its text. Raises
        :class:`ConfigError`, one sentence, for anything missing, contradictory or unsupported.
        """
        from dflash_sglang.config.parse import parse_config

        return parse_config(raw, token_id)

    def to_dict(self) -> dict[str, Any]:
        """The published ``config.json``; ``from_dict(to_dict())`` gives an equal config."""
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
            "dflash_config": self._drafter_fields(),
        }
        if self.num_target_layers is not None:
            top["num_target_layers"] = self.num_target_layers
        if self.causal != default_causal(self.layer_types):
            top["is_causal"] = self.causal[0]
        return top

    def _drafter_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "target_layer_ids": list(self.target_layer_ids),
            "mask_token_id": self.mask_token_id,
            "block_size": self.block_size,
        }
        if self.shift_label:
            fields["shift_label"] = True
        if self.conv is not None:
            fields["conv_kernel_size"] = self.conv.kernel_size
            if self.conv.kind == "dynamic":
                fields["conv_group_size"] = self.conv.group_size
        if self.selector is not None:
            fields["selector_rank"] = self.selector.rank
            fields["selector_top_k"] = self.selector.top_k
        if self.output_multiplier != 1.0:
            fields["output_multiplier"] = self.output_multiplier
        if self.final_logit_softcapping is not None:
            fields["final_logit_softcapping"] = self.final_logit_softcapping
        if self.input_embedding_scale != 1.0:
            fields["input_embedding_scale"] = self.input_embedding_scale
        return fields

    def _check_shapes(self) -> None:
        if self.block_size < 2:
            raise ConfigError(
                f"block_size={self.block_size} must be at least 2: an anchor and one draft token."
            )
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
                f"conv_group_size={self.conv.group_size} must divide "
                f"hidden_size={self.hidden_size}."
            )
        if self.selector is not None and self.selector.top_k > self.vocab_size:
            raise ConfigError(
                f"selector_top_k={self.selector.top_k} exceeds vocab_size={self.vocab_size}."
            )

    def _check_layers(self) -> None:
        if not len(self.layer_types) == len(self.causal) == self.num_hidden_layers:
            raise ConfigError(
                f"layer_types must have one entry for each of num_hidden_layers="
                f"{self.num_hidden_layers}, got {len(self.layer_types)}."
            )
        for index, name in enumerate(self.layer_types):
            if name not in (FULL, SLIDING):
                raise ConfigError(
                    f"layer_types[{index}] must be {FULL} or {SLIDING}, got {name!r}."
                )
        if (SLIDING in self.layer_types) != (self.sliding_window is not None):
            raise ConfigError(
                f"sliding_window={self.sliding_window} does not fit the layer types "
                f"{list(self.layer_types)}."
            )

    def _check_taps(self) -> None:
        ids, depth = self.target_layer_ids, self.num_target_layers
        if not ids or list(ids) != sorted(set(ids)) or ids[0] < 0:
            raise ConfigError(
                f"target_layer_ids must be ascending, distinct and not negative, got {list(ids)}."
            )
        if depth is not None and ids[-1] >= depth:
            raise ConfigError(
                f"target_layer_ids taps layer {ids[-1]}, but a target of "
                f"num_target_layers={depth} ends at layer {depth - 1}."
            )


def default_causal(layer_types: tuple[str, ...]) -> tuple[bool, ...]:
    """The reference's rule: sliding layers are causal, full ones see the whole block."""
    return tuple(name == SLIDING for name in layer_types)


def default_target_layer_ids(num_target_layers: int, num_taps: int) -> tuple[int, ...]:
    """Tap layers spread evenly from layer 1 to layer L - 3, both included (the DFlash paper).

    One tap takes the middle layer. Raises :class:`ConfigError` when the target is too shallow for
    ``num_taps`` distinct layers.
    """
    if num_taps == 1:
        return (num_target_layers // 2,)
    first, last = 1, num_target_layers - 3
    ids = tuple(round(first + i * (last - first) / (num_taps - 1)) for i in range(num_taps))
    if last < first or len(set(ids)) != num_taps:
        raise ConfigError(
            f"A target of {num_target_layers} layers has no {num_taps} distinct tap layers "
            f"from layer {first} to layer {last}."
        )
    return ids
