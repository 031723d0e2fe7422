"""The drafter's parts against their formulas, and what must not leak from one place to another."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from drafters import drafter_config, random_weights
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_sglang.config import ConvConfig, DFlash2Config, SelectorConfig
from dflash_sglang.drafter import CandidateSelector, DenseAttention, DFlash2Drafter, visible
from dflash_sglang.drafter.convolution import GroupedDynamicConv, StaticConv
from dflash_sglang.drafter.rotary import RotaryEmbedding, rotate
from dflash_sglang.kernels import library

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "dynamic": {"conv": (3, 8), "selector": (8, 4)},
    "static": {
        "architectures": ["DFlash2StaticDraftModel"],
        "drafter_fields": {"conv_kernel_size": 3},
    },
}


def drafter(**changes: Any) -> DFlash2Drafter:
    module = DFlash2Drafter(DFlash2Config.from_dict(drafter_config(**changes)))
    random_weights(module)
    return module.eval()


def run(module: DFlash2Drafter, features: torch.Tensor, embeddings: torch.Tensor) -> torch.Tensor:
    """features [T, n D], embeddings [n, B, D] -> hidden [n, B, D], blocks behind the context."""
    length = features.shape[0]
    context = module.context_keys_values(module.project_features(features), torch.arange(length))
    positions = torch.arange(length, length + embeddings.shape[1]).expand(embeddings.shape[:2])
    return module(embeddings, positions, DenseAttention(module.config, context))


@settings(deadline=None, max_examples=50)
@given(kernel=st.integers(1, 4), size=st.integers(1, 6), group=st.sampled_from([1, 2, 4]))
def test_dynamic_convolution_follows_its_formula(kernel: int, size: int, group: int) -> None:
    torch.manual_seed(kernel * 10 + size)
    conv = GroupedDynamicConv(8, ConvConfig("dynamic", kernel, group))
    random_weights(conv)
    x, y = torch.randn(2, size, 8), torch.randn(2, size, 8)
    delta = conv.kernel_projection(x).view(2, size, 2, kernel, 8 // group)

    def by_hand(side: int, stream: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(stream)
        for t in range(size):
            for c in range(8):
                for tap in range(min(kernel, t + 1)):
                    weight = conv.base_kernel[side, tap, c] + delta[:, t, side, tap, c // group]
                    out[:, t, c] += weight * stream[:, t - tap, c]
        return out

    with torch.no_grad():
        before, kernels = conv.before(x)
        torch.testing.assert_close(before, by_hand(0, x), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(conv.after(y, kernels), by_hand(1, y), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kernel", [3, 5])
def test_static_convolution_follows_its_formula(kernel: int) -> None:
    torch.manual_seed(kernel)
    conv = StaticConv(6, ConvConfig("static", kernel, 1))
    random_weights(conv)
    x = torch.randn(2, 7, 6)
    expected = conv.bias.expand_as(x).clone()
    for t in range(7):
        for tap in range(min(kernel, t + 1)):
            expected[:, t] += conv.weight[tap] * x[:, t - tap]
    torch.testing.assert_close(conv(x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["dynamic", "static"])
def test_convolutions_start_as_the_identity(name: str) -> None:
    torch.manual_seed(4)
    convolved = DFlash2Drafter(DFlash2Config.from_dict(drafter_config(**VARIANTS[name])))
    plain = DFlash2Drafter(DFlash2Config.from_dict(drafter_config()))
    plain.load_state_dict(convolved.state_dict(), strict=False)
    features, embeddings = torch.randn(5, 192), torch.randn(2, 8, 64)
    torch.testing.assert_close(
        run(convolved, features, embeddings), run(plain, features, embeddings), rtol=0, atol=1e-6
    )


@settings(deadline=None, max_examples=50)
@given(bs=st.integers(1, 3), g=st.integers(1, 4), k=st.integers(1, 5), seed=st.integers(0, 99))
def test_pair_scores_follow_their_formula(bs: int, g: int, k: int, seed: int) -> None:
    torch.manual_seed(seed)
    selector = CandidateSelector(8, 11, SelectorConfig(4, k))
    random_weights(selector)
    hidden, unary = torch.randn(bs, g, 8), torch.randn(bs, g, k)
    anchors, candidates = torch.randint(11, (bs,)), torch.randint(11, (bs, g, k))
    scores = selector.pair_scores(hidden, anchors, candidates, unary)
    assert scores.shape == (bs, g, k, k) and scores.dtype == torch.float32
    gate = selector.hidden_projection(hidden)
    for b in range(bs):
        for t in range(g):
            for a in range(k):
                before = anchors[b] if t == 0 else candidates[b, t - 1, a]
                left = selector.predecessor_codebook[before] * gate[b, t]
                for c in range(k):
                    right = selector.successor_codebook[candidates[b, t, c]]
                    expected = unary[b, t, c] + left @ right
                    torch.testing.assert_close(scores[b, t, a, c], expected, rtol=1e-4, atol=1e-5)


def test_selector_starts_as_the_unary_ranking() -> None:
    selector = CandidateSelector(8, 11, SelectorConfig(4, 3))
    selector.reset_parameters()
    unary = torch.randn(2, 3, 3)
    scores = selector.pair_scores(
        torch.randn(2, 3, 8), torch.tensor([1, 2]), torch.randint(11, (2, 3, 3)), unary
    )
    assert torch.equal(scores, unary[:, :, None].expand_as(scores))


@settings(deadline=None, max_examples=50)
@given(
    query=st.integers(0, 30),
    key=st.integers(0, 30),
    causal=st.booleans(),
    window=st.one_of(st.none(), st.integers(1, 8)),
)
def test_visibility_depends_on_the_distance_alone(
    query: int, key: int, causal: bool, window: int | None
) -> None:
    seen = visible(torch.tensor([query]), torch.tensor([key]), causal, window)
    near = window is None or abs(query - key) < window
    assert seen.item() == (near and (key <= query or not causal))


@pytest.mark.parametrize("name", VARIANTS)
def test_blocks_of_one_call_do_not_see_each_other(name: str) -> None:
    torch.manual_seed(5)
    module = drafter(**VARIANTS[name])
    features, embeddings = torch.randn(6, 192), torch.randn(3, 8, 64)
    together = run(module, features, embeddings)
    for block in range(3):
        alone = run(module, features, embeddings[block : block + 1])
        torch.testing.assert_close(together[block : block + 1], alone, rtol=1e-5, atol=1e-5)


def test_rotation_leaves_channels_beyond_its_width_untouched() -> None:
    raw = drafter_config(rope_parameters={"rope_dim": 6, "rope_theta": 1e4})
    rotary = RotaryEmbedding(DFlash2Config.from_dict(raw).rope)
    heads = torch.randn(2, 5, 3, 16)
    turned = rotate(heads, rotary(torch.arange(5), torch.float32))
    assert torch.equal(turned[..., 6:], heads[..., 6:])
    # Position 0 does not turn; pairs (i, i + 3) keep their length.
    assert torch.equal(turned[:, 0], heads[:, 0])
    for i in range(3):
        torch.testing.assert_close(
            turned[..., [i, i + 3]].norm(dim=-1), heads[..., [i, i + 3]].norm(dim=-1)
        )
    angle = torch.tensor(2.0)  # position 2, first pair: frequency 1
    expected = heads[:, 2, :, 0] * angle.cos() - heads[:, 2, :, 3] * angle.sin()
    torch.testing.assert_close(turned[:, 2, :, 0], expected)


def test_far_positions_stay_distinct_in_bfloat16() -> None:
    rotary = RotaryEmbedding(DFlash2Config.from_dict(drafter_config()).rope).to(torch.bfloat16)
    cos = rotary(torch.tensor([30000, 30001]), torch.bfloat16).cos
    assert cos.dtype == torch.bfloat16
    exact = rotary(torch.tensor([30000, 30001]), torch.float32).cos
    assert (exact[0] - exact[1]).abs().max() > 0.1
    assert (cos.float() - exact).abs().max() < 2**-8


@pytest.mark.parametrize("name", VARIANTS)
def test_bfloat16_drafter_follows_the_float32_one(name: str) -> None:
    torch.manual_seed(6)
    module = drafter(**VARIANTS[name])
    features, embeddings = torch.randn(6, 192), torch.randn(2, 8, 64)
    exact = run(module, features, embeddings)
    rounded = run(module.to(torch.bfloat16), features.bfloat16(), embeddings.bfloat16())
    assert rounded.dtype == torch.bfloat16
    assert (rounded.float() - exact).abs().mean() < 0.02 * exact.abs().mean()


def test_features_and_embeddings_of_another_dtype_are_cast_once_at_the_door() -> None:
    module = drafter()
    features = torch.randn(6, 192)
    context = module.project_features(features.bfloat16())
    assert context.dtype == torch.float32
    torch.testing.assert_close(context, module.project_features(features.bfloat16().float()))
    table = torch.randn(97, 64, dtype=torch.bfloat16)
    block = module.block_embeddings(torch.tensor([3, 7]), lambda ids: table[ids])
    assert block.dtype == torch.float32 and block.shape == (2, 8, 64)
    assert torch.equal(block[1, 0], table[7].float()) and torch.equal(
        block[1, 1], table[96].float()
    )


def test_features_of_another_width_are_refused_with_both_numbers() -> None:
    with pytest.raises(ValueError, match=r"width 192 \(3 taps x 64\), got 128"):
        drafter().project_features(torch.randn(4, 128))


def test_block_is_the_anchor_and_masks_even_when_the_anchor_is_the_mask() -> None:
    blocks = drafter().block_tokens(torch.tensor([5, 96]))  # case 1: 96 is the mask's id
    assert blocks.tolist() == [[5] + [96] * 7, [96] * 8]


def test_embedding_scale_logit_multiplier_and_soft_cap_are_applied() -> None:
    module = drafter(
        output_multiplier=0.5,
        final_logit_softcapping=2.0,
        drafter_fields={"input_embedding_scale": 3.0},
    )
    table = torch.randn(97, 64)
    block = module.block_embeddings(torch.tensor([1]), lambda ids: table[ids])
    torch.testing.assert_close(block[0, 0], 3 * table[1])
    hidden = torch.randn(2, 64, dtype=torch.bfloat16)
    logits = module.unary_logits(hidden, lambda h: h @ table.bfloat16().T)
    assert logits.dtype == torch.float32
    raw = (hidden @ table.bfloat16().T).float()
    torch.testing.assert_close(logits, 2 * torch.tanh(raw * 0.5 / 2))


@pytest.mark.parametrize("changes", [{}, {"attention_bias": True}])
def test_frozen_drafter_computes_the_same_and_follows_its_dtype(changes: dict[str, Any]) -> None:
    torch.manual_seed(8)
    module = drafter(**changes)
    context, positions = torch.randn(5, 64), torch.arange(5)
    expected = module.context_keys_values(context, positions)
    names = set(module.state_dict())
    frozen = module.freeze()
    assert set(frozen.state_dict()) == names
    assert not any(parameter.requires_grad for parameter in frozen.parameters())
    for ours, theirs in zip(frozen.context_keys_values(context, positions), expected, strict=True):
        assert torch.equal(ours, theirs)
    keys, values = frozen.to(torch.bfloat16).context_keys_values(context.bfloat16(), positions)
    assert keys.dtype == values.dtype == torch.bfloat16


@pytest.mark.parametrize("changes", [*VARIANTS.values(), {"attention_bias": True}])
@pytest.mark.parametrize("rope", [{}, {"rope_parameters": {"rope_theta": 1e4, "rope_dim": 8}}])
def test_drafter_on_the_kernels_computes_the_same(
    changes: dict[str, Any], rope: dict[str, Any]
) -> None:
    torch.manual_seed(9)
    module = drafter(**changes, **rope)
    features, embeddings = torch.randn(6, 192), torch.randn(2, 8, 64)
    with torch.no_grad():
        expected = run(module, features, embeddings)
        library.load()
        served = run(module.freeze(fused=True), features, embeddings)
    torch.testing.assert_close(served, expected, rtol=1e-5, atol=1e-5)


def test_training_after_freezing_sees_the_new_weights() -> None:
    module = drafter().freeze(fused=True).train()
    context, positions = torch.randn(5, 64), torch.arange(5)
    before = module.context_keys_values(context, positions)
    with torch.no_grad():
        for layer in module.layers:
            layer.self_attn.v_proj.weight.mul_(2)
    after = module.context_keys_values(context, positions)
    torch.testing.assert_close(after.values, 2 * before.values)


@pytest.mark.parametrize("name", VARIANTS)
def test_every_parameter_learns(name: str) -> None:
    torch.manual_seed(7)
    module = drafter(**VARIANTS[name]).train()
    hidden = run(module, torch.randn(6, 192), torch.randn(2, 8, 64))
    loss = hidden.square().sum() * hidden[:, 0].sum()
    if module.selector is not None:
        candidates = torch.randint(97, (2, 8, 4))
        scores = module.selector.pair_scores(
            hidden, torch.tensor([1, 2]), candidates, torch.randn(2, 8, 4)
        )
        loss = loss + scores.square().sum()
    loss.backward()
    for parameter_name, parameter in module.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, parameter_name
