"""Inspecting a drafter: memory by part, and every mismatch with a target in one sentence."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from drafters import drafter_config
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, Qwen3Config

from dflash_sglang.config import ConfigError, DFlash2Config
from dflash_sglang.drafter import CheckpointError, DFlash2Drafter, save_drafter
from dflash_sglang.drafter.inspect import InspectionError, inspect_checkpoint

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "dynamic": {"conv": (2, 8), "selector": (8, 4)},
    "static": {
        "architectures": ["DFlash2StaticDraftModel"],
        "drafter_fields": {"conv_kernel_size": 5},
    },
    "biased": {"attention_bias": True},
}


def save(folder: Path, **changes: Any) -> DFlash2Drafter:
    drafter = DFlash2Drafter(DFlash2Config.from_dict(drafter_config(**changes)))
    save_drafter(drafter, folder)
    return drafter


def target(folder: Path, **changes: Any) -> Path:
    shape = {"vocab_size": 97, "hidden_size": 64, "num_hidden_layers": 8}
    Qwen3Config(**{**shape, **changes}).save_pretrained(folder)
    return folder


def tokenizer(folder: Path, words: int) -> None:
    vocabulary = {f"w{i}": i for i in range(words)}
    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(vocabulary, unk_token="w0"))
    ).save_pretrained(folder)


@pytest.mark.parametrize("name", VARIANTS)
def test_parts_add_up_to_the_drafter(tmp_path: Path, name: str) -> None:
    drafter = save(tmp_path, **VARIANTS[name])
    seen = inspect_checkpoint(tmp_path)
    assert seen.parameters == sum(p.numel() for p in drafter.parameters())
    assert seen.parameters == sum(part.parameters for part in seen.parts)
    assert seen.bytes == 2 * seen.parameters  # bfloat16
    assert inspect_checkpoint(tmp_path, serving_dtype=torch.float32).bytes == 4 * seen.parameters
    assert seen.stored_dtype == "float32" and seen.serving_dtype == "bfloat16"
    names = {part.name for part in seen.parts}
    assert ("convolution" in names) == (drafter.config.conv is not None)
    assert ("selector" in names) == (drafter.config.selector is not None)
    assert json.loads(json.dumps(dataclasses.asdict(seen)))["architecture"] == seen.architecture


def test_sizes_follow_from_the_shapes(tmp_path: Path) -> None:
    save(tmp_path, conv=(2, 8), selector=(8, 4))
    sizes = {part.name: part.parameters for part in inspect_checkpoint(tmp_path).parts}
    assert sizes == {
        "context projection": 64 * 3 * 64,
        "attention": 3 * (2 * 64 * 64 + 2 * 32 * 64 + 2 * 16),
        "MLP": 3 * 3 * 64 * 96,
        "norms": 3 * 2 * 64 + 2 * 64,
        "convolution": 3 * 2 * 2 * 2 * 64 * (1 + 64 // 8),
        "selector": 2 * 97 * 8 + 8 * 64,
    }


def test_description_names_taps_attention_and_label_shift(tmp_path: Path) -> None:
    save(
        tmp_path,
        layer_types=["full_attention", "sliding_attention", "full_attention"],
        sliding_window=16,
        shift_label=True,
    )
    seen = inspect_checkpoint(tmp_path)
    assert seen.attention == ("full bidirectional", "sliding 16 causal", "full bidirectional")
    assert seen.shift_label and seen.block_size == 8 and seen.target_layer_ids == (1, 3, 4)
    assert seen.context_bytes_per_token == 2 * 3 * 2 * 16 * 2
    assert seen.shared_bytes == 2 * 97 * 64 * 2
    assert seen.target is None and seen.mismatches == ()


def test_fitting_target_has_no_mismatch_and_names_the_mask(tmp_path: Path) -> None:
    save(tmp_path / "drafter")
    tokenizer(target(tmp_path / "target"), 97)
    tokenizer(tmp_path / "drafter", 97)
    seen = inspect_checkpoint(tmp_path / "drafter", tmp_path / "target")
    assert seen.mismatches == ()
    assert seen.mask_token == "w96"


@pytest.mark.parametrize(
    ("changes", "sentences"),
    [
        ({"hidden_size": 128}, [("hidden size is 64", "is 128")]),
        ({"vocab_size": 99}, [("97 tokens", "has 99")]),
        ({"vocab_size": 90}, [("97 tokens", "has 90"), ("id 96", "id 89")]),
        ({"num_hidden_layers": 4}, [("taps layer 4", "has 4 layers"), ("8 layers", "has 4")]),
        ({"num_hidden_layers": 9}, [("8 layers", "has 9")]),
    ],
)
def test_every_mismatch_is_one_sentence_with_both_numbers(
    tmp_path: Path, changes: dict[str, int], sentences: list[tuple[str, str]]
) -> None:
    save(tmp_path / "drafter")
    seen = inspect_checkpoint(tmp_path / "drafter", target(tmp_path / "target", **changes))
    assert len(seen.mismatches) == len(sentences)
    for found, (ours, theirs) in zip(seen.mismatches, sentences, strict=True):
        assert ours in found and theirs in found and found.endswith(".")


def test_tokenizer_of_another_target_is_a_mismatch(tmp_path: Path) -> None:
    save(tmp_path / "drafter")
    tokenizer(tmp_path / "drafter", 90)
    tokenizer(target(tmp_path / "target"), 97)
    (sentence,) = inspect_checkpoint(tmp_path / "drafter", tmp_path / "target").mismatches
    assert "90 tokens" in sentence and "97" in sentence and "7 tokens differ" in sentence


def test_broken_drafter_and_unreadable_target_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a drafter"):
        inspect_checkpoint(tmp_path)
    save(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InspectionError, match="is not a readable target"):
        inspect_checkpoint(tmp_path, tmp_path / "empty")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="holds neither"):
        inspect_checkpoint(tmp_path)
