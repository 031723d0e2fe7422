"""A drafter's configuration: the published contract, its variants, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from drafters import drafter_config
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_sglang.config import (
    ConfigError,
    ConvConfig,
    DFlash2Config,
    SelectorConfig,
    default_target_layer_ids,
)

FULL, SLIDING = "full_attention", "sliding_attention"


def parse(**changes: Any) -> DFlash2Config:
    return DFlash2Config.from_dict(drafter_config(**changes))


def refusal(raw: dict[str, Any]) -> str:
    """The one sentence with which ``raw`` is refused."""
    with pytest.raises(ConfigError) as caught:
        DFlash2Config.from_dict(raw)
    sentence = str(caught.value)
    assert sentence.endswith(".") and "\n" not in sentence
    return sentence


def test_published_dflash2_config_is_read() -> None:
    config = DFlash2Config.from_dict(
        {
            "architectures": ["DFlash2DraftModel"],
            "hidden_size": 5120,
            "num_hidden_layers": 5,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 17408,
            "vocab_size": 248320,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000000,
            "layer_types": [SLIDING] * 5,
            "sliding_window": 2048,
            "use_sliding_window": True,
            "is_causal": False,
            "num_target_layers": 64,
            "block_size": 8,
            "dflash_config": {
                "target_layer_ids": [1, 16, 31, 46, 61],
                "mask_token_id": 248070,
                "block_size": 8,
                "conv_group_size": 16,
                "conv_kernel_size": 2,
                "selector_rank": 256,
                "selector_top_k": 16,
            },
        }
    )
    assert config.conv == ConvConfig("dynamic", 2, 16)
    assert config.selector == SelectorConfig(256, 16)
    assert config.target_layer_ids == (1, 16, 31, 46, 61)
    assert config.layer_window(0) == 2048 and config.causal == (False,) * 5
    assert config.rope.theta == 1e7 and config.rope.rotary_dim == 128
    assert config.num_draft_tokens == 7 and config.mask_token_id == 248070


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"conv": (2, 8), "selector": (8, 4)},
        {"conv": (2, 8)},
        {"selector": (8, 4)},
        {"layer_types": [SLIDING, FULL, SLIDING], "sliding_window": 5},
        {"layer_types": [SLIDING, FULL, FULL], "sliding_window": 5, "is_causal": True},
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}},
        {"rope_scaling": {"type": "yarn", "factor": 4.0}, "rope_theta": 1e6},
        {"rope_parameters": {"rope_dim": 8, "rope_theta": 1e6}},
        {"output_multiplier": 0.5, "final_logit_softcapping": 30.0},
        {"drafter_fields": {"input_embedding_scale": 8.0, "shift_label": True}},
        {
            "architectures": ["DFlash2StaticDraftModel"],
            "selector": (8, 4),
            "drafter_fields": {"conv_kernel_size": 5},
        },
    ],
)
def test_written_config_is_read_back_equal(changes: dict[str, Any]) -> None:
    config = parse(**changes)
    assert DFlash2Config.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize(
    "name", ["DFlash2DraftModel", "DFlash2BeamDraftModel", "MiniMaxDFlash2DraftModel"]
)
def test_aliases_of_the_dflash2_architecture_are_read(name: str) -> None:
    config = parse(architectures=[name], conv=(2, 8), selector=(8, 4))
    assert config.architecture == "DFlash2DraftModel"


def test_plain_dflash_has_neither_convolution_nor_selector() -> None:
    for name in ("DFlashDraftModel", "MuseGlimmerAssistantModel"):
        config = parse(architectures=[name])
        assert config.conv is None and config.selector is None


@pytest.mark.parametrize("names", [None, [], ["LlamaForCausalLM"], ["DFlashDraftModel", "X"], "x"])
def test_unknown_architecture_is_refused_with_the_known_ones(names: Any) -> None:
    assert "DFlash2DraftModel" in refusal(drafter_config(architectures=names))


def test_a_field_may_stand_at_the_top_level_or_in_dflash_config() -> None:
    raw = drafter_config(conv=(2, 8), selector=(8, 4))
    flat = {**raw, **raw["dflash_config"], "dflash_config": {}}
    assert DFlash2Config.from_dict(flat) == DFlash2Config.from_dict(raw)


@settings(deadline=None, max_examples=50)
@given(field=st.sampled_from(["block_size", "mask_token_id", "selector_rank", "conv_group_size"]))
def test_a_field_with_two_values_is_a_conflict(field: str) -> None:
    raw = drafter_config(conv=(2, 8), selector=(8, 4))
    raw["block_size"] = raw["dflash_config"]["block_size"] = 8
    raw[field] = raw["dflash_config"][field]
    DFlash2Config.from_dict(raw)
    raw[field] = raw["dflash_config"][field] * 2
    sentence = refusal(raw)
    assert field in sentence
    assert str(raw[field]) in sentence and str(raw["dflash_config"][field]) in sentence


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"hidden_size": None}, ["hidden_size is missing"]),
        ({"vocab_size": "97"}, ["vocab_size", "'97'"]),
        ({"num_hidden_layers": 0}, ["num_hidden_layers", "0"]),
        ({"num_key_value_heads": 3}, ["num_attention_heads=4", "num_key_value_heads=3"]),
        ({"rms_norm_eps": -1.0}, ["rms_norm_eps", "-1.0"]),
        ({"block_size": 1}, ["block_size", "1"]),
        ({"vocab_size": 96}, ["mask_token_id=96", "vocab_size=96"]),
        ({"num_target_layers": 4}, ["layer 4", "num_target_layers=4"]),
        ({"layer_types": [FULL]}, ["num_hidden_layers=3", "got 1"]),
        ({"layer_types": [FULL, FULL, "linear_attention"]}, ["layer_types[2]", "linear_attention"]),
        ({"layer_types": [SLIDING] * 3}, ["sliding_window=None"]),
        ({"is_causal": "yes"}, ["is_causal", "'yes'"]),
        ({"conv": (2, 7)}, ["conv_group_size=7", "hidden_size=64"]),
        ({"conv": (2, 0)}, ["conv_kernel_size=2", "conv_group_size=0"]),
        ({"selector": (8, 0)}, ["selector_rank=8", "selector_top_k=0"]),
        ({"selector": (8, 98)}, ["selector_top_k=98", "vocab_size=97"]),
        ({"architectures": ["DFlash2DraftModel"]}, ["DFlash2DraftModel", "selector_rank"]),
        ({"architectures": ["DFlashDraftModel"], "selector": (8, 4)}, ["selector_rank=8"]),
        ({"architectures": ["DFlash2StaticDraftModel"], "conv": (3, 8)}, ["conv_group_size=8"]),
        ({"drafter_fields": {"conv_kernel_size": 4}}, ["conv_kernel_size=4"]),
        ({"target_hidden_size": 128}, ["target_hidden_size=128", "hidden_size=64"]),
        ({"draft_vocab_size": 32}, ["draft_vocab_size=32", "vocab_size=97"]),
        ({"quantization_config": {"bits": 4}}, ["quantization_config"]),
        ({"hidden_act": "gelu"}, ["hidden_act='gelu'", "'silu'"]),
        ({"drafter_fields": {"projector_type": "domino"}}, ["projector_type='domino'"]),
        ({"drafter_fields": {"attention_sink_bias": True}}, ["attention_sink_bias=True"]),
        ({"drafter_fields": {"target_layer_ids": [3, 1]}}, ["target_layer_ids", "[3, 1]"]),
        ({"drafter_fields": {"target_layer_ids": []}}, ["target_layer_ids", "[]"]),
        ({"drafter_fields": {"target_layer_ids": [1.5]}}, ["target_layer_ids", "[1.5]"]),
        ({"dflash_config": [1]}, ["dflash_config", "list"]),
    ],
)
def test_bad_field_is_refused_in_one_sentence_with_what_was_found(
    changes: dict[str, Any], parts: list[str]
) -> None:
    sentence = refusal(drafter_config(**changes))
    for part in parts:
        assert part in sentence


def test_sliding_layers_are_causal_unless_the_checkpoint_says_otherwise() -> None:
    layers = {"layer_types": [FULL, SLIDING, FULL], "sliding_window": 4}
    assert parse(**layers).causal == (False, True, False)
    assert parse(**layers, is_causal=False).causal == (False, False, False)
    assert parse(**layers, is_causal=True).causal == (True, True, True)
    assert [parse(**layers).layer_window(i) for i in range(3)] == [None, 4, None]


def test_sliding_layers_with_the_window_switched_off_are_refused() -> None:
    raw = drafter_config(layer_types=[SLIDING] * 3, sliding_window=4)
    raw["use_sliding_window"] = False
    assert "use_sliding_window=False" in refusal(raw)


def test_without_layer_types_the_window_starts_at_max_window_layers() -> None:
    config = parse(sliding_window=4, max_window_layers=1)
    assert config.layer_types == (FULL, SLIDING, SLIDING)
    assert parse().layer_types == (FULL, FULL, FULL)


# Case 9: RoPE fields copied from a multimodal or partially rotating target.


def test_rope_dim_is_the_trained_width_whatever_was_copied_along() -> None:
    copied = {"partial_rotary_factor": 0.25, "mrope_section": [1, 1, 0], "mrope_interleaved": True}
    config = parse(rope_parameters={"rope_theta": 1e6, "rope_dim": 16, **copied})
    assert config.rope.rotary_dim == 16
    assert parse(rope_parameters={"rope_dim": 4, **copied}).rope.rotary_dim == 4


@pytest.mark.parametrize("place", ["rope_parameters", "rope_scaling", "top"])
def test_partial_rotary_factor_alone_is_refused_because_trainers_disagree(place: str) -> None:
    fields = {"partial_rotary_factor": 0.25}
    sentence = refusal(drafter_config(**(fields if place == "top" else {place: fields})))
    assert "partial_rotary_factor=0.25" in sentence and "rope_dim" in sentence


def test_mrope_section_of_another_width_is_refused() -> None:
    raw = drafter_config(rope_parameters={"mrope_section": [11, 11, 10], "rope_type": "default"})
    sentence = refusal(raw)
    assert "64 channels" in sentence and "head_dim=16" in sentence


def test_mrope_section_over_the_whole_head_is_plain_rope() -> None:
    rope = parse(rope_scaling={"type": "mrope", "mrope_section": [4, 2, 2]}).rope
    assert rope.kind == "default" and rope.rotary_dim == 16


def test_original_length_of_yarn_may_stand_beside_its_parameters() -> None:
    inside = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    beside = {"rope_type": "yarn", "factor": 4.0}
    assert (
        parse(rope_parameters=beside, original_max_position_embeddings=128).rope
        == parse(rope_parameters=inside).rope
    )


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"rope_parameters": {"rope_dim": 18}}, ["rope_dim", "18", "head_dim=16"]),
        ({"rope_parameters": {"rope_dim": 7}}, ["rope_dim", "7"]),
        ({"rope_parameters": {"rope_type": "longrope"}}, ["'longrope'", "llama3"]),
        ({"rope_parameters": {"rope_type": "linear"}}, ["'linear'", "factor"]),
        ({"rope_parameters": {"rope_type": "linear", "factor": "2"}}, ["factor", "'2'"]),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2, "beta": 1}}, ["beta"]),
        ({"rope_parameters": {FULL: {"rope_theta": 1e4}}}, ["full_attention"]),
        ({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e6}}, ["10000.0", "1000000.0"]),
        ({"rope_scaling": {"a": 1}, "rope_parameters": {"a": 2}}, ["rope_scaling"]),
        ({"rope_theta": -1}, ["rope_theta", "-1"]),
        ({"is_neox_style": False}, ["is_neox_style=False"]),
        ({"rope_parameters": {"rope_interleaved": True}}, ["rope_interleaved=True"]),
    ],
)
def test_unclear_rope_is_refused_by_name(fields: dict[str, Any], parts: list[str]) -> None:
    sentence = refusal(drafter_config(**fields))
    for part in parts:
        assert part in sentence


# Case 10: drafters trained with shifted labels.


@pytest.mark.parametrize("field", ["shift_label", "sample_from_anchor"])
@pytest.mark.parametrize("nested", [True, False])
def test_shifted_labels_are_detected_under_both_names(field: str, nested: bool) -> None:
    for shifted in (True, False):
        fields = {field: shifted}
        config = parse(drafter_fields=fields) if nested else parse(**fields)
        assert config.shift_label is shifted


def test_contradicting_label_shifts_are_refused() -> None:
    sentence = refusal(drafter_config(shift_label=True, sample_from_anchor=False))
    assert "shift_label=True" in sentence and "sample_from_anchor=False" in sentence


def test_draft_positions_follow_the_label_shift() -> None:
    positions = list(range(8))
    assert positions[parse().draft_positions()] == [1, 2, 3, 4, 5, 6, 7]
    assert positions[parse(shift_label=True).draft_positions()] == [0, 1, 2, 3, 4, 5, 6]


def test_mask_token_given_by_text_is_looked_up() -> None:
    raw = drafter_config(drafter_fields={"mask_token": "<mask>"})
    vocabulary = {"<mask>": 96, "<other>": 5}
    assert DFlash2Config.from_dict(raw, vocabulary.get).mask_token_id == 96
    assert DFlash2Config.from_dict(raw).mask_token_id == 96  # the id needs no tokenizer
    del raw["dflash_config"]["mask_token_id"]
    assert DFlash2Config.from_dict(raw, vocabulary.get).mask_token_id == 96
    assert "no tokenizer" in refusal(raw)
    raw["dflash_config"]["mask_token"] = "<absent>"
    with pytest.raises(ConfigError, match="vocabulary lacks it"):
        DFlash2Config.from_dict(raw, vocabulary.get)


def test_mask_token_that_the_tokenizer_maps_elsewhere_is_a_conflict() -> None:
    raw = drafter_config(drafter_fields={"mask_token": "<other>"})
    with pytest.raises(ConfigError, match=r"mask_token_id=96 conflicts.*maps to 5"):
        DFlash2Config.from_dict(raw, {"<other>": 5}.get)


def test_missing_mask_is_refused() -> None:
    raw = drafter_config()
    del raw["dflash_config"]["mask_token_id"]
    assert "mask_token_id and mask_token" in refusal(raw)


def test_shorter_blocks_work_and_longer_ones_are_refused() -> None:
    config = parse()
    assert config.with_block_size(4).num_draft_tokens == 3
    for size in (1, 9):
        with pytest.raises(ConfigError, match=f"2 to 8.*got {size}"):
            config.with_block_size(size)


def test_taps_are_spread_from_the_second_layer_to_the_third_last() -> None:
    assert default_target_layer_ids(36, 5) == (1, 9, 17, 25, 33)
    assert default_target_layer_ids(8, 1) == (4,)
    raw = drafter_config(num_target_layers=12)
    del raw["dflash_config"]["target_layer_ids"]
    assert DFlash2Config.from_dict(raw).target_layer_ids == default_target_layer_ids(12, 3)
    with pytest.raises(ConfigError, match="4 layers has no 3 distinct tap layers"):
        default_target_layer_ids(4, 3)


def test_unreadable_config_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        DFlash2Config.from_pretrained(tmp_path)
    file = tmp_path / "config.json"
    for text in ("{", "[]", "\xff"):
        file.write_text(text, encoding="latin-1")
        with pytest.raises(ConfigError, match=r"config\.json"):
            DFlash2Config.from_pretrained(tmp_path)
