"""Hidden states of a target, for every architecture that SGLang can tap.

SGLang's models offer one of two hooks. ``set_dflash_layers_to_capture`` takes the layers whose
*output* is wanted. ``set_eagle3_layers_to_capture`` exists on further models (Qwen 2.5 and Gemma 3
among them) and, given explicit layers, means the same: each model adds its own offset of one, since
SGLang captures the input of the following layer. Gemma 3's hook forgets the residual, which the
layers hand on apart, and is replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

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
        for module in model.modules():
            if type(module).__name__ == "Gemma3TextModel":
                _tap_with_residual(module, layers)
    else:
        raise CaptureError(
            f"dflash2 needs the target's hidden states, but SGLang's {type(model).__name__} has "
            "neither set_dflash_layers_to_capture nor set_eagle3_layers_to_capture."
        )


def _tap_with_residual(text_model: Any, layers: list[int]) -> None:
    """Capture the sum of both parts of what a layer of Gemma 3 hands on."""
    taps: list[torch.Tensor] = []

    def keep(_layer: Any, _inputs: Any, output: tuple[torch.Tensor, torch.Tensor]) -> None:
        hidden, residual = output
        taps.append(hidden + residual)

    def hand_on(
        _model: Any, _inputs: Any, hidden: torch.Tensor
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        found = list(taps)
        taps.clear()
        return hidden, found

    text_model.layers_to_capture = []
    for layer in layers:
        text_model.layers[layer].register_forward_hook(keep)
    text_model.register_forward_hook(hand_on)
