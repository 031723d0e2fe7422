"""Hidden states of a target, for every architecture that SGLang can tap.

SGLang's models offer one of two hooks. ``set_dflash_layers_to_capture`` takes the layers whose
*output* is wanted. ``set_eagle3_layers_to_capture`` exists on further models (Qwen 2.5 and Gemma 3
among them) and, given explicit layers, means the same: each model adds its own offset of one, since
SGLang captures the input of the following layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_SETUP = "sglang.srt.model_executor.model_runner_components.attention_backend_setup"


class CaptureError(ValueError):
    """The target offers no way to tap its hidden states."""


def register() -> None:
    """Let DFLASH-style capture fall back to a model's EAGLE-3 hook."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(
        f"{_SETUP}.configure_aux_hidden_state_capture", _configure_capture, HookType.AROUND
    )


def _configure_capture(original: Callable[..., None], *, model: Any, **options: Any) -> None:
    wants_taps = options["dflash_use_aux_hidden_state"]
    if not wants_taps or hasattr(model, "set_dflash_layers_to_capture"):
        original(model=model, **options)
        return
    tap_layers(model, options["dflash_target_layer_ids"])


def tap_layers(model: Any, layers: list[int]) -> None:
    """Make ``model`` return the outputs of ``layers`` beside its logits.

    Args:
        model: a model of SGLang's.
        layers: indices of decoder layers, 0-based; the hidden state *behind* each is captured.

    Raises:
        CaptureError: the model has neither hook.
    """
    if hasattr(model, "set_dflash_layers_to_capture"):
        model.set_dflash_layers_to_capture(layers)
    elif hasattr(model, "set_eagle3_layers_to_capture"):
        model.set_eagle3_layers_to_capture(layers)
    else:
        raise CaptureError(
            f"dflash2 needs the target's hidden states, but SGLang's {type(model).__name__} has "
            "neither set_dflash_layers_to_capture nor set_eagle3_layers_to_capture."
        )
