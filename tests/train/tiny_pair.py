"""The tiny models and captures that the training tests share."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import Qwen3Config

from dflash_sglang.drafter import DFlash2Drafter
from dflash_sglang.train.capture import CaptureOptions, capture, make_plan
from dflash_sglang.train.defaults import make_config
from dflash_sglang.train.prompts import read_prompts
from dflash_sglang.train.store import Manifest
from dflash_sglang.train.target import Target

VOCAB, MASK = 60, 59
TAPS = (1, 3, 5)


def tiny_config() -> Qwen3Config:
    return Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        eos_token_id=None,
        bos_token_id=None,
    )


def tiny_drafter(seed: int = 0, **changes) -> DFlash2Drafter:
    torch.manual_seed(seed)
    settings = {
        "block_size": 4,
        "num_layers": 2,
        "tap_layer_ids": TAPS,
        "group_size": 8,
        "selector_rank": 8,
        "top_k": 6,
    }
    drafter = DFlash2Drafter(make_config(tiny_config(), MASK, **(settings | changes)))
    with torch.no_grad():
        # Convolutions and codebooks start at identity and zero: move off, so that tests see them.
        for parameter in drafter.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return drafter


def make_capture(
    target: Target, target_path: Path, prompts_path: Path, out: Path, temperature: float
) -> Manifest:
    options = CaptureOptions(20, (temperature,), batch_size=8, shard_size=10, seed=1)
    prompts = read_prompts(prompts_path, None)
    plan = make_plan(target, target_path, prompts_path, len(prompts), options)
    return capture(target, prompts, [], options, plan, out)
