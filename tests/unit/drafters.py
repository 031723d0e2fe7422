"""Small drafters for tests: the published config contract with a few fields changed."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def drafter_config(
    *,
    conv: tuple[int, int] | None = None,
    selector: tuple[int, int] | None = None,
    drafter_fields: dict[str, Any] | None = None,
    **top_level: Any,
) -> dict[str, Any]:
    """A ``config.json``. ``conv`` is (kernel size, group size), ``selector`` (rank, top k)."""
    dflash = {"target_layer_ids": [1, 3, 4], "mask_token_id": 96}
    if conv is not None:
        dflash |= {"conv_kernel_size": conv[0], "conv_group_size": conv[1]}
    if selector is not None:
        dflash |= {"selector_rank": selector[0], "selector_top_k": selector[1]}
    for key in ("output_multiplier", "final_logit_softcapping"):
        if key in top_level:
            dflash[key] = top_level.pop(key)
    return {
        "architectures": ["DFlash2DraftModel" if selector else "DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 96,
        "vocab_size": 97,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 512,
        "num_target_layers": 8,
        "block_size": 8,
        "use_sliding_window": "sliding_window" in top_level,
        "dflash_config": dflash | (drafter_fields or {}),
        **top_level,
    }


def random_weights(module: nn.Module) -> None:
    """Every parameter different from its initial value, norms around one."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = torch.randn_like(parameter)
            if "norm" in name:
                parameter.copy_(1 + 0.1 * noise)
            elif "kernel_projection" in name:
                # Stronger content-dependent kernels multiply rounding errors beyond the tolerance,
                # in the reference itself as well.
                parameter.copy_(noise / 32)
            else:
                parameter.copy_(noise / 8)
