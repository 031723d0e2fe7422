"""Tiny random checkpoints. A vocabulary of 64 lets even an untrained drafter be right now and then,
so that accepted paths, their KV moves and the drafter's context are exercised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from dflash_sglang.config import DFlash2Config
from dflash_sglang.drafter.checkpoint import save_drafter
from dflash_sglang.drafter.model import DFlash2Drafter

VOCAB = 64
MASK_TOKEN = VOCAB - 1
LISTED = tuple(range(VOCAB - 1, 15, -1))  # of a draft vocabulary
LAYERS = 6

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}

TARGETS: dict[str, Any] = {
    "qwen3": lambda: transformers.Qwen3Config(**_COMMON),
    "qwen2": lambda: transformers.Qwen2Config(**_COMMON),
    "llama": lambda: transformers.LlamaConfig(**_COMMON),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **_COMMON, sliding_window=32, query_pre_attn_scalar=16
    ),
    "gpt_oss": lambda: transformers.GptOssConfig(
        **_COMMON, sliding_window=32, num_local_experts=4, num_experts_per_tok=2
    ),
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(
        **_COMMON, moe_intermediate_size=64, num_experts=4, num_experts_per_tok=2
    ),
}


def save_target(architecture: str, folder: Path) -> Path:
    """A random target of this architecture; weights large enough that its text varies."""
    torch.manual_seed(0)
    config = TARGETS[architecture]()
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(std=0.15)
    model.save_pretrained(folder)
    return folder


def save_random_drafter(folder: Path, spread: float | None = None, **overrides: Any) -> Path:
    """A random drafter for the targets above; ``overrides`` replace fields of its config.json.

    With the weights of an initialisation the context hardly counts; ``spread`` is another standard
    deviation, with which what is drafted depends on every feature.
    """
    torch.manual_seed(1)
    drafter = DFlash2Drafter(DFlash2Config.from_dict({**drafter_fields(), **overrides}))
    for parameter in drafter.parameters():
        if spread is not None and parameter.dim() > 1:
            parameter.data.normal_(std=spread)
    save_drafter(drafter, folder)
    return folder


def drafter_fields() -> dict[str, Any]:
    """``config.json`` of a published DFlash 2 drafter that fits the targets above."""
    return {
        "architectures": ["DFlash2DraftModel"],
        "model_type": "qwen3",
        **{key: _COMMON[key] for key in ("vocab_size", "hidden_size", "intermediate_size")},
        **{key: _COMMON[key] for key in ("num_attention_heads", "num_key_value_heads")},
        "head_dim": _COMMON["head_dim"],
        "max_position_embeddings": _COMMON["max_position_embeddings"],
        "num_hidden_layers": 2,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        "num_target_layers": LAYERS,
        "block_size": 8,
        "dtype": "float32",
        "dflash_config": {
            "target_layer_ids": [1, 2, 3],
            "mask_token_id": MASK_TOKEN,
            "conv_kernel_size": 3,
            "conv_group_size": 16,
            "selector_rank": 16,
            "selector_top_k": 16,
        },
    }
