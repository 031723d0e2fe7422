"""Does this drafter fit this target? Answered once at start, in one sentence with both numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang.srt.configs.hybrid_arch import mambaish_config

from dflash_sglang.config import DFlash2Config
from dflash_sglang.drafter.inspect import TargetFacts, target_mismatches

if TYPE_CHECKING:
    from sglang.srt.configs.model_config import ModelConfig


class TargetError(ValueError):
    """A drafter and a target that do not belong together, or a target that cannot be verified."""


def check_target(drafter: DFlash2Config, target: ModelConfig) -> None:
    """Refuse a pair that would serve wrong tokens, or none.

    Raises:
        TargetError: hidden size, depth or vocabulary do not fit, or the target keeps recurrent
            state, which the branches of a tree cannot share.
    """
    if mambaish_config(target) is not None:
        raise TargetError(
            f"dflash2 does not support hybrid targets yet: {target.model_path} keeps recurrent "
            "state between tokens, which the branches of a tree would overwrite for each other."
        )
    facts = TargetFacts(
        name=target.model_path,
        hidden_size=target.hf_text_config.hidden_size,
        num_layers=target.hf_text_config.num_hidden_layers,
        vocab_size=target.vocab_size,
    )
    mismatches = target_mismatches(drafter, facts)
    if mismatches:
        raise TargetError(" ".join(mismatches))
