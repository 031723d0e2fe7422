"""What stands around SGLang's layers gives what they give, and steps aside where it must."""

import os

os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")

from dflash_sglang.host import bootstrap

bootstrap.install()

from types import SimpleNamespace  # noqa: E402

import pytest  # noqa: E402
import torch  # noqa: E402
from sglang.srt.layers import activation, layernorm  # noqa: E402
from sglang.srt.layers.rotary_embedding.base import RotaryEmbedding  # noqa: E402

from dflash_sglang.host import layers, patches  # noqa: E402
from dflash_sglang.kernels import library  # noqa: E402

pytestmark = pytest.mark.skipif(library.load() != "compiled", reason="needs the compiled kernels")
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2}
dtypes = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)


def _normal(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)


def _refuse(*arguments, **options):
    raise AssertionError("the layer's own code was called")


def _assert_same(actual, expected) -> None:
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e, rtol=TOLERANCE[a.dtype], atol=TOLERANCE[a.dtype])


def _rms_norm(dtype: torch.dtype, **changes) -> SimpleNamespace:
    attributes = {
        "weight": 1 + _normal(64, dtype=dtype) / 4,
        "variance_epsilon": 1e-6,
        "hidden_size": 64,
        "cast_x_before_out_mul": False,
        "fp32_residual": False,
        "override_orig_dtype": None,
        "variance_size_override": None,
    }
    return SimpleNamespace(**attributes | changes)


@dtypes
@pytest.mark.parametrize("cast_first", [False, True])
def test_rms_norm_with_and_without_residual(dtype, cast_first):
    layer, x = _rms_norm(dtype, cast_x_before_out_mul=cast_first), _normal(5, 64, dtype=dtype)
    native = layernorm.RMSNorm.forward_native
    assert torch.is_tensor(layers.rms_norm(_refuse, layer, x))
    _assert_same([layers.rms_norm(_refuse, layer, x)], [native(layer, x)])
    residual = 3 * _normal(5, 64, dtype=dtype)
    expected = native(layer, x, residual.clone())
    _assert_same(layers.rms_norm(_refuse, layer, x, residual), expected)


@pytest.mark.parametrize(
    "changes", [{"fp32_residual": True}, {"override_orig_dtype": torch.float32}]
)
def test_unusual_norms_are_left_to_sglang(changes):
    layer, x = _rms_norm(torch.float32, **changes), _normal(5, 64, dtype=torch.float32)
    assert layers.rms_norm(lambda *_: "native", layer, x) == "native"


@dtypes
def test_gemma_norms_of_rows_and_of_transposed_heads(dtype):
    x, weight = _normal(5, 64, dtype=dtype), _normal(64, dtype=dtype) / 4
    gemma = SimpleNamespace(weight=weight, variance_epsilon=1e-6)
    residual = _normal(5, 64, dtype=dtype)
    expected = layernorm.GemmaRMSNorm.forward_native(gemma, x, residual.clone())
    _assert_same(layers.gemma_rms_norm(_refuse, gemma, x, residual), expected)

    gemma3 = SimpleNamespace(weight=weight, eps=1e-6)
    gemma3._norm = lambda value: layernorm.Gemma3RMSNorm._norm(gemma3, value)
    heads = _normal(7, 3 * 64, dtype=dtype).unflatten(1, (3, 64)).transpose(0, 1).unsqueeze(0)
    expected = layernorm.Gemma3RMSNorm.forward_native(gemma3, heads)
    _assert_same([layers.gemma_rms_norm(_refuse, gemma3, heads)], [expected])


@dtypes
@pytest.mark.parametrize("neox", [True, False])
def test_rotary_embedding_of_slices_of_a_projection(dtype, neox):
    angles = _normal(50, 16, dtype=torch.float32)
    layer = SimpleNamespace(
        head_size=64,
        rotary_dim=32,
        is_neox_style=neox,
        cos_sin_cache=torch.cat([angles.cos(), angles.sin()], -1).to(dtype),
    )
    from sglang.srt.layers.rotary_embedding.utils import apply_rotary_emb

    layer._apply_rotary_emb_wrapped = apply_rotary_emb
    positions = torch.tensor([3, 0, 49])
    qkv = _normal(3, 6 * 64, dtype=dtype)
    q, k, _ = qkv.split([4 * 64, 64, 64], -1)
    expected = RotaryEmbedding.forward_native(layer, positions, q, k)
    options = {"fused_set_kv_buffer_arg": None}  # models pass it by name
    _assert_same(layers.rotary_embedding(_refuse, layer, positions, q, k, **options), expected)


def test_a_rotation_that_also_writes_the_cache_is_left_to_sglang():
    def native(layer, positions, q, k, fused_set_kv_buffer_arg):
        return fused_set_kv_buffer_arg

    nothing = torch.zeros(1)
    assert layers.rotary_embedding(
        native, SimpleNamespace(), nothing, nothing, nothing, fused_set_kv_buffer_arg="write"
    ) == ("write")


@dtypes
def test_gated_activations(dtype):
    x = 3 * _normal(4, 96, dtype=dtype)
    expected = activation.SiluAndMul.forward_native(SimpleNamespace(), x)
    _assert_same([layers.silu_and_mul(_refuse, SimpleNamespace(), x)], [expected])
    layer = SimpleNamespace(approximate="tanh")
    expected = activation.GeluAndMul.forward_native(layer, x)
    _assert_same([layers.gelu_and_mul(_refuse, layer, x)], [expected])


def test_exact_gelu_is_left_to_sglang():
    layer = SimpleNamespace(approximate="none")
    assert layers.gelu_and_mul(lambda *_: "native", layer, torch.zeros(1, 4)) == "native"


@dtypes
def test_linear_with_bias(dtype):
    layer = SimpleNamespace(weight=_normal(24, 64, dtype=dtype))
    x, bias = _normal(5, 64, dtype=dtype), _normal(24, dtype=dtype)
    expected = torch.nn.functional.linear(x.float(), layer.weight.float(), bias.float()).to(dtype)
    _assert_same([layers.linear(_refuse, None, layer, x, bias)], [expected])


def test_linear_of_other_dtypes_is_left_to_sglang():
    layer = SimpleNamespace(weight=torch.zeros(4, 8, dtype=torch.int8))
    assert layers.linear(lambda *_: "native", None, layer, torch.zeros(1, 8)) == "native"


@dtypes
@pytest.mark.parametrize("gpt_oss", [False, True])
def test_mixture_of_experts(dtype, gpt_oss, monkeypatch):
    from sglang.srt.layers.moe import fused_moe_native

    experts, hidden, width = 5, 32, 24
    layer = SimpleNamespace(
        num_experts=experts,
        w13_weight=_normal(experts, 2 * width, hidden, dtype=dtype) / 4,
        w2_weight=_normal(experts, hidden, width, dtype=dtype) / 4,
    )
    if gpt_oss:
        layer.w13_weight_bias = _normal(experts, 2 * width, dtype=torch.float32)
        layer.w2_weight_bias = _normal(experts, hidden, dtype=torch.float32)
    config = SimpleNamespace(
        activation="silu",
        apply_router_weight_on_input=False,
        gemm1_alpha=1.702 if gpt_oss else None,
        gemm1_clamp_limit=7.0 if gpt_oss else None,
    )
    x = _normal(9, hidden, dtype=dtype)
    scores = _normal(9, experts, dtype=torch.float32).softmax(-1).topk(2)
    topk = (scores.values, scores.indices.int(), None)
    # Outside of a server SGLang's activation layer cannot be built; its formula can be called.
    monkeypatch.setattr(
        fused_moe_native,
        "SiluAndMul",
        lambda: lambda rows: activation.SiluAndMul.forward_native(SimpleNamespace(), rows),
    )
    expected = fused_moe_native.moe_forward_native(layer, x, topk, config)
    actual = layers.mixture_of_experts(_refuse, layer, x, topk, config)
    _assert_same([actual], [expected])
    alone = layers.mixture_of_experts(
        _refuse, layer, x[4:5], (topk[0][4:5], topk[1][4:5], None), config
    )
    assert torch.equal(alone, actual[4:5])


def test_every_patched_name_exists():
    from pkgutil import resolve_name

    for patch in (*patches.PATCHES, *patches.LAYER_PATCHES):
        assert callable(resolve_name(patch.target)), patch.target
        assert patch.reason
