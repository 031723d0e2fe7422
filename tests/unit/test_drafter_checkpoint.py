"""Drafter checkpoints: the published layout is read and written; damage gets one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from drafters import drafter_config, random_weights
from safetensors.torch import load_file, save_file
from torch import Tensor

from dflash_sglang.config import ConfigError, DFlash2Config
from dflash_sglang.drafter import CheckpointError, DFlash2Drafter, load_drafter, save_drafter

STATIC = {
    "architectures": ["DFlash2StaticDraftModel"],
    "drafter_fields": {"conv_kernel_size": 3},
}
DFLASH2 = {"conv": (2, 8), "selector": (8, 4)}


def saved(
    folder: Path, changes: dict[str, Any], dtype: torch.dtype = torch.float32
) -> DFlash2Drafter:
    drafter = DFlash2Drafter(DFlash2Config.from_dict(drafter_config(**changes)))
    random_weights(drafter)
    save_drafter(drafter.to(dtype), folder)
    return drafter


def rewrite(folder: Path, tensors: dict[str, Tensor]) -> None:
    save_file(tensors, folder / "model.safetensors")


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_drafter(folder)
    sentence = str(caught.value)
    assert sentence.endswith(".") and "\n" not in sentence
    return sentence


def assert_same_weights(ours: DFlash2Drafter, theirs: DFlash2Drafter) -> None:
    assert ours.config == theirs.config
    expected = theirs.state_dict()
    assert ours.state_dict().keys() == expected.keys()
    for name, tensor in ours.state_dict().items():
        assert tensor.dtype == expected[name].dtype and torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize("changes", [{}, DFLASH2, STATIC, {"attention_bias": True}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_saved_drafter_is_loaded_bit_for_bit(
    tmp_path: Path, changes: dict[str, Any], dtype: torch.dtype
) -> None:
    drafter = saved(tmp_path, changes, dtype)
    loaded = load_drafter(tmp_path)
    assert not loaded.training
    assert_same_weights(loaded, drafter)
    # Frequencies are not stored and stay float32 in every dtype.
    assert torch.equal(loaded.rotary.signed_frequencies, drafter.rotary.signed_frequencies)
    assert loaded.rotary.signed_frequencies.dtype == torch.float32


def test_tensors_carry_the_published_names_and_shapes(tmp_path: Path) -> None:
    saved(tmp_path, DFLASH2)
    shapes = {n: list(t.shape) for n, t in load_file(tmp_path / "model.safetensors").items()}
    layer = {
        "self_attn.q_proj.weight": [64, 64],
        "self_attn.k_proj.weight": [32, 64],
        "self_attn.v_proj.weight": [32, 64],
        "self_attn.o_proj.weight": [64, 64],
        "self_attn.q_norm.weight": [16],
        "self_attn.k_norm.weight": [16],
        "mlp.gate_proj.weight": [96, 64],
        "mlp.up_proj.weight": [96, 64],
        "mlp.down_proj.weight": [64, 96],
        "input_layernorm.weight": [64],
        "post_attention_layernorm.weight": [64],
        "attention_conv.base_kernel": [2, 2, 64],
        "attention_conv.kernel_projection.weight": [32, 64],
        "mlp_conv.base_kernel": [2, 2, 64],
        "mlp_conv.kernel_projection.weight": [32, 64],
    }
    expected = {f"layers.{i}.{name}": shape for i in range(3) for name, shape in layer.items()}
    expected |= {
        "fc.weight": [64, 192],
        "hidden_norm.weight": [64],
        "norm.weight": [64],
        "candidate_selector.predecessor_codebook": [97, 8],
        "candidate_selector.successor_codebook": [97, 8],
        "candidate_selector.hidden_projection.weight": [8, 64],
    }
    assert shapes == expected


def test_spellings_of_other_exporters_are_read(tmp_path: Path) -> None:
    drafter = saved(tmp_path, DFLASH2)
    tensors = load_file(tmp_path / "model.safetensors")
    renamed = {
        f"model.{name}.weight" if name.endswith("_codebook") else f"model.{name}": tensor
        for name, tensor in tensors.items()
        if name not in ("fc.weight", "hidden_norm.weight")
    }
    renamed["encoder.fc.weight"] = tensors["fc.weight"]
    renamed["encoder.output_norm_enc.weight"] = tensors["hidden_norm.weight"]
    renamed["rotary_emb.inv_freq"] = torch.ones(8)
    rewrite(tmp_path, renamed)
    assert_same_weights(load_drafter(tmp_path), drafter)


def test_sharded_checkpoint_is_read(tmp_path: Path) -> None:
    drafter = saved(tmp_path, DFLASH2)
    tensors = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    names = sorted(tensors)
    weight_map: dict[str, str] = {}
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        file = f"model-{number:05d}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, tmp_path / file)
        weight_map |= dict.fromkeys(part, file)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    assert_same_weights(load_drafter(tmp_path), drafter)

    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    assert "names model-00002-of-00002.safetensors" in refusal(tmp_path)
    index.write_text("{}")
    assert "weight_map" in refusal(tmp_path)
    index.unlink()
    assert "holds neither" in refusal(tmp_path)


def test_requested_dtype_is_the_only_cast(tmp_path: Path) -> None:
    drafter = saved(tmp_path, DFLASH2)
    loaded = load_drafter(tmp_path, torch.bfloat16)
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, drafter.state_dict()[name].bfloat16()), name


def test_missing_unexpected_and_misshapen_tensors_are_named(tmp_path: Path) -> None:
    saved(tmp_path, DFLASH2)
    tensors = load_file(tmp_path / "model.safetensors")

    rewrite(tmp_path, {n: t for n, t in tensors.items() if not n.startswith("candidate_selector")})
    assert "lacks the tensor candidate_selector" in refusal(tmp_path)
    assert "and 2 more" in refusal(tmp_path)

    rewrite(tmp_path, {**tensors, "lm_head.weight": torch.ones(97, 64)})
    assert "holds the tensor lm_head.weight, unknown" in refusal(tmp_path)

    rewrite(tmp_path, {**tensors, "fc.weight": torch.ones(64, 128)})
    sentence = refusal(tmp_path)
    assert "fc.weight" in sentence and "[64, 128]" in sentence and "[64, 192]" in sentence

    rewrite(tmp_path, {**tensors, "model.fc.weight": torch.ones(64, 192)})
    assert "fc.weight is stored twice" in refusal(tmp_path)

    rewrite(tmp_path, {**tensors, "fc.weight": torch.ones(64, 192, dtype=torch.int8)})
    assert "stored as I8" in refusal(tmp_path)


def test_truncated_file_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, {})
    file = tmp_path / "model.safetensors"
    content = file.read_bytes()
    for length in (0, 4, len(content) // 2, len(content) - 1):
        file.write_bytes(content[:length])
        assert "not a complete safetensors file" in refusal(tmp_path)


def test_folder_without_a_config_is_no_drafter(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a drafter"):
        load_drafter(tmp_path)
