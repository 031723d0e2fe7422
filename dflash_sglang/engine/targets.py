"""Does this drafter fit this target? Answered once at start, in one sentence with both numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang.srt.configs.hybrid_arch import mambaish_config

from dflash_sglang.config import DFlash2Config

if TYPE_CHECKING:
    from sglang.srt.configs.model_config import ModelConfig


class TargetError(ValueError):
    """A drafter and a target that do not belong together, or a target that cannot be verified."""


def check_target(drafter: DFlash2Config, target: ModelConfig) -> None:
    """Refuse a pair that would serve wrong tokens, or none.

    Raises:
        TargetError: hidden size, depth or vocabulary do not fit, or the target keeps recurrent
            state, which a tree of candidates cannot share.
    """
    name = target.model_path
    if mambaish_config(target) is not None:
        raise TargetError(
            f"dflash2 does not support hybrid targets yet: {name} keeps recurrent state between "
            "tokens, which the branches of a tree would overwrite for each other."
        )
    text: Any = target.hf_text_config
    _expect(
        drafter.hidden_size == text.hidden_size,
        "hidden size",
        drafter.hidden_size,
        name,
        text.hidden_size,
    )
    _expect(
        drafter.vocab_size == target.vocab_size,
        "vocabulary",
        drafter.vocab_size,
        name,
        target.vocab_size,
    )
    deepest = max(drafter.target_layer_ids)
    if deepest >= text.num_hidden_layers:
        raise TargetError(
            f"the drafter taps the target's layer {deepest} (counted from 0), but {name} has "
            f"{text.num_hidden_layers} layers."
        )


def _expect(fits: bool, what: str, drafter: int, name: str, target: int) -> None:
    if not fits:
        raise TargetError(
            f"this drafter was made for a target of {what} {drafter}, but {name} has {target}."
        )
