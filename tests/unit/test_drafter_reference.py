"""The module against the reference implementation (package ``dflash``), which no one here wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from drafters import drafter_config, random_weights
from torch import Tensor
from transformers import Qwen3Config

from dflash_sglang.config import DFlash2Config
from dflash_sglang.drafter import (
    ContextKV,
    DenseAttention,
    DFlash2Drafter,
    load_drafter,
    save_drafter,
)
from dflash_sglang.drafter.checkpoint import canonical_name

reference = pytest.importorskip("dflash.model", reason="needs the reference package dflash==0.1.0")

FULL, SLIDING = "full_attention", "sliding_attention"
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "plain_wide_heads": {"num_key_value_heads": 1, "head_dim": 32, "num_hidden_layers": 2},
    "plain_biased": {"attention_bias": True},
    "plain_sliding": {"layer_types": [SLIDING, FULL, SLIDING], "sliding_window": 5},
    "plain_sliding_not_causal": {
        "layer_types": [FULL, SLIDING, SLIDING],
        "sliding_window": 5,
        "is_causal": False,
    },
    "plain_causal": {"is_causal": True},
    "dflash2": {"conv": (2, 8), "selector": (8, 4)},
    "dflash2_wide_kernel": {"conv": (4, 16), "selector": (4, 3), "block_size": 5},
    "dflash2_sliding": {
        "conv": (3, 4),
        "selector": (8, 6),
        "layer_types": [SLIDING] * 3,
        "sliding_window": 4,
        "block_size": 7,
    },
    "dflash2_scaled_logits": {
        "conv": (2, 8),
        "selector": (8, 4),
        "output_multiplier": 0.5,
        "final_logit_softcapping": 3.0,
    },
}
ROPE: dict[str, dict[str, Any]] = {
    "theta": {"rope_type": "default", "rope_theta": 1e6},
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 4.0,
        "original_max_position_embeddings": 8,
    },
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 1e4,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
}


def reference_pair(tmp_path: Path, raw: dict[str, Any]) -> tuple[Any, DFlash2Drafter]:
    """A reference model with random weights, and our drafter loaded from its checkpoint."""
    cls = (
        reference.DFlash2DraftModel
        if raw["architectures"] == ["DFlash2DraftModel"]
        else reference.DFlashDraftModel
    )
    theirs = cls(Qwen3Config(**raw)).eval()
    random_weights(theirs)
    theirs.save_pretrained(tmp_path)
    return theirs, load_drafter(tmp_path, torch.float32)


def their_hidden(theirs: Any, features: Tensor, embeddings: Tensor, cache: Any = None) -> Tensor:
    """features [T', n D] after what the cache holds, embeddings [1, B, D] -> hidden [1, B, D]."""
    cached = 0 if cache is None else cache.get_seq_length()
    end = cached + features.shape[0] + embeddings.shape[1]
    with torch.no_grad():
        return theirs(
            position_ids=torch.arange(cached, end)[None],
            noise_embedding=embeddings,
            target_hidden=features[None],
            past_key_values=cache,
            use_cache=cache is not None,
        )


def our_context(drafter: DFlash2Drafter, features: Tensor, start: int = 0) -> ContextKV:
    positions = torch.arange(start, start + features.shape[0])
    return drafter.context_keys_values(drafter.project_features(features), positions)


@torch.no_grad()
def our_hidden(drafter: DFlash2Drafter, context: ContextKV, embeddings: Tensor) -> Tensor:
    length = context.keys.shape[1]
    positions = torch.arange(length, length + embeddings.shape[1])[None]
    return drafter(embeddings, positions, DenseAttention(drafter.config, context))


def random_input(config: DFlash2Config, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Context features [T, n D], a block's embeddings [1, B, D], an output head [V, D]."""
    taps = len(config.target_layer_ids)
    return (
        torch.randn(length, taps * config.hidden_size),
        torch.randn(1, config.block_size, config.hidden_size),
        torch.randn(config.vocab_size, config.hidden_size) / 8,
    )


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("length", [1, 3, 17])
@pytest.mark.parametrize("name", SHAPES)
def test_hidden_states_and_logits_equal_the_reference(
    name: str, length: int, tmp_path: Path
) -> None:
    torch.manual_seed(length)
    theirs, drafter = reference_pair(tmp_path, drafter_config(**SHAPES[name]))
    features, embeddings, head = random_input(drafter.config, length)

    hidden = our_hidden(drafter, our_context(drafter, features), embeddings)
    expected = their_hidden(theirs, features, embeddings)

    assert_close(hidden, expected)
    assert_close(
        drafter.unary_logits(hidden, lambda h: h @ head.T),
        theirs.compute_logits(expected, lambda h: h @ head.T),
    )


@pytest.mark.parametrize("name", SHAPES)
def test_context_grown_block_by_block_equals_the_reference_cache(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    theirs, drafter = reference_pair(tmp_path, drafter_config(**SHAPES[name]))
    cache = reference._make_cache(theirs.config)
    context: ContextKV | None = None
    for length in (9, 1, 4, 2):
        features, embeddings, _ = random_input(drafter.config, length)
        start = 0 if context is None else context.keys.shape[1]
        new = our_context(drafter, features, start)
        context = new if context is None else context.append(new)

        expected = their_hidden(theirs, features, embeddings, cache)
        reference._crop_to(cache, context.keys.shape[1])

        assert_close(our_hidden(drafter, context, embeddings), expected)
        assert cache.get_seq_length() == context.keys.shape[1]


@pytest.mark.parametrize("length", [4, 40])
@pytest.mark.parametrize("name", ROPE)
def test_every_rope_scaling_equals_the_reference(name: str, length: int, tmp_path: Path) -> None:
    torch.manual_seed(1)
    raw = drafter_config(max_position_embeddings=32, rope_parameters=ROPE[name])
    theirs, drafter = reference_pair(tmp_path, raw)
    features, embeddings, _ = random_input(drafter.config, length)

    hidden = our_hidden(drafter, our_context(drafter, features), embeddings)

    assert_close(hidden, their_hidden(theirs, features, embeddings))


@pytest.mark.parametrize("name", [name for name, shape in SHAPES.items() if "selector" in shape])
def test_greedy_path_through_pair_scores_equals_the_reference_selector(
    name: str, tmp_path: Path
) -> None:
    torch.manual_seed(2)
    theirs, drafter = reference_pair(tmp_path, drafter_config(**SHAPES[name]))
    config = drafter.config
    assert drafter.selector is not None
    hidden = torch.randn(6, config.num_draft_tokens, config.hidden_size)
    logits = torch.randn(6, config.num_draft_tokens, config.vocab_size)
    anchors = torch.randint(config.vocab_size, (6,))
    expected, _, _ = theirs.candidate_selector.select(hidden, logits, anchors, temperature=0.0)

    unary, candidates = logits.topk(drafter.selector.top_k)
    scores = drafter.selector.pair_scores(hidden, anchors, candidates, unary)

    assert torch.equal(scores[:, 0], scores[:, 0, :1].expand_as(scores[:, 0]))
    index = torch.zeros(6, dtype=torch.long)
    for position in range(config.num_draft_tokens):
        index = scores[torch.arange(6), position, index].argmax(-1)
        token = candidates[:, position].gather(1, index[:, None])[:, 0]
        assert torch.equal(token, expected[:, position])


def test_checkpoint_written_here_is_read_by_the_reference(tmp_path: Path) -> None:
    torch.manual_seed(3)
    drafter = DFlash2Drafter(DFlash2Config.from_dict(drafter_config(conv=(2, 8), selector=(8, 4))))
    random_weights(drafter)
    save_drafter(drafter, tmp_path)
    theirs = reference.DFlash2DraftModel.from_pretrained(tmp_path).eval()

    stored = {canonical_name(name): value for name, value in theirs.state_dict().items()}
    assert stored.keys() == drafter.state_dict().keys()
    for name, value in drafter.state_dict().items():
        assert torch.equal(stored[name], value), name
    features, embeddings, _ = random_input(drafter.config, 6)
    hidden = our_hidden(drafter, our_context(drafter, features), embeddings)
    assert_close(hidden, their_hidden(theirs, features, embeddings))
