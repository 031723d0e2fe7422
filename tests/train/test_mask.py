"""Which features a block sees, and that both executors of the mask agree."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny_pair import tiny_drafter

from dflash_sglang.drafter import DenseAttention
from dflash_sglang.train.cores import FlexCore, SdpaCore
from dflash_sglang.train.data import Batch
from dflash_sglang.train.mask import LayerRule, dense_block_mask
from dflash_sglang.train.objective import DraftObjective

RULES = [
    LayerRule(causal=False, window=None),
    LayerRule(causal=True, window=None),
    LayerRule(causal=False, window=3),
    LayerRule(causal=True, window=5),
]


def make_batch(anchors: list[list[int]], length: int = 20, width: int = 96) -> Batch:
    torch.manual_seed(3)
    S = len(anchors)
    return Batch(
        torch.randint(0, 59, (S, length)),
        torch.randn(S, length, width),
        torch.full((S,), length),
        torch.tensor(anchors),
    )


@pytest.mark.parametrize("rule", RULES)
def test_mask_is_what_the_rule_says_position_by_position(rule: LayerRule):
    anchors = [[2, 7, -1]]
    T, B = 10, 4
    mask = dense_block_mask(torch.tensor(anchors), T, B, rule)
    assert mask.shape == (1, 3 * B, T + 3 * B)
    for query in range(3 * B):
        block, offset = divmod(query, B)
        anchor = anchors[0][block]
        for key in range(T + 3 * B):
            if key < T:
                near = rule.window is None or anchor + offset - key < rule.window
                expected = key < anchor and near
            else:
                other, other_offset = divmod(key - T, B)
                near = rule.window is None or abs(offset - other_offset) < rule.window
                expected = other == block and near and not (rule.causal and other_offset > offset)
            assert mask[0, query, key].item() == expected, (query, key)


@pytest.mark.parametrize("rule", RULES)
def test_no_query_is_blind(rule: LayerRule):
    mask = dense_block_mask(torch.tensor([[0, 9, -1]]), 10, 4, rule)
    assert mask.any(dim=-1).all()


def test_features_from_the_anchor_on_change_nothing(objective: DraftObjective):
    batch = make_batch([[5, 9], [1, 14]])
    before = objective.block_states(batch).hidden.view(2, 2, 3, -1)
    for sequence, anchors in enumerate(batch.anchors.tolist()):
        for block, anchor in enumerate(anchors):
            features = batch.features.clone()
            features[sequence, anchor:] += 10 * torch.randn_like(features[sequence, anchor:])
            after = objective.block_states(batch._replace(features=features)).hidden
            after = after.view(2, 2, 3, -1)[sequence, block]
            torch.testing.assert_close(after, before[sequence, block], rtol=0, atol=0)


def test_the_feature_before_the_anchor_is_seen(objective: DraftObjective):
    batch = make_batch([[5, 9]])
    before = objective.block_states(batch).hidden
    features = batch.features.clone()
    features[0, 4] += 1.0
    after = objective.block_states(batch._replace(features=features)).hidden
    assert not torch.allclose(before[0], after[0])
    assert not torch.allclose(before[1], after[1])


def test_blocks_do_not_see_one_another(objective: DraftObjective):
    together = objective.block_states(make_batch([[5, 9, 12]])).hidden
    alone = objective.block_states(make_batch([[9]])).hidden
    torch.testing.assert_close(together[1], alone[0], rtol=1e-5, atol=1e-5)


def test_packed_blocks_equal_a_block_over_its_own_prefix(objective: DraftObjective):
    """What training computes is what a drafter served at that anchor computes."""
    drafter, batch = objective.drafter, make_batch([[6, 11]])
    packed = objective.block_states(batch).hidden
    for block, anchor in enumerate([6, 11]):
        context = drafter.project_features(batch.features[0, :anchor])
        served = DenseAttention(
            drafter.config, drafter.context_keys_values(context, torch.arange(anchor))
        )
        embeddings = drafter.block_embeddings(
            batch.tokens[0, anchor : anchor + 1], lambda ids: objective.embedding[ids]
        )
        hidden = drafter(embeddings, torch.arange(anchor, anchor + 4)[None], served)
        torch.testing.assert_close(packed[block], hidden[0, 1:], rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("rule", RULES)
def test_flex_attention_equals_sdpa(rule: LayerRule):
    """Without a GPU FlexAttention runs uncompiled: slow, but with the same predicate."""
    config = tiny_drafter().config
    layer_types = ("sliding_attention" if rule.window else "full_attention",) * 2
    config = replace(
        config,
        layer_types=layer_types,
        sliding_window=rule.window,
        causal=(rule.causal,) * 2,
    )
    torch.manual_seed(5)
    S, A, B, T, H, Hkv, d = 2, 3, 4, 16, 4, 2, 16
    anchors = torch.tensor([[1, 6, 11], [4, 9, -1]])
    keys, values = torch.randn(2, 2, S, T, Hkv, d).unbind(0)
    q = torch.randn(S * A, B, H, d)
    k, v = torch.randn(2, S * A, B, Hkv, d).unbind(0)
    dense = SdpaCore(config, keys, values, anchors, B)(1, q, k, v)
    try:
        flex = FlexCore(config, keys, values, anchors, B)(1, q, k, v)
    except (NotImplementedError, RuntimeError) as error:
        pytest.skip(f"FlexAttention does not run on this machine: {error}")
    torch.testing.assert_close(flex, dense, rtol=1e-4, atol=1e-5)
