"""SGLang's layers on the CPU kernels.

Without AMX, SGLang runs each layer's ``forward_native``, a chain of small PyTorch operations, and
bfloat16 matrix products take a library path several times slower than the memory allows. Each
function below goes around one SGLang method: it takes the kernel where the kernel covers the call,
and otherwise calls the method itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dflash_sglang.kernels.rows import Activation

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def rms_norm(
    original: Callable,
    layer: Any,
    x: torch.Tensor,
    residual: torch.Tensor | None = None,
    post_residual_addition: torch.Tensor | None = None,
    quant_linear: Any = None,
) -> Any:
    """Around ``RMSNorm.forward_native``; the residual is updated in place, as on CUDA."""
    plain = (
        post_residual_addition is None
        and not layer.fp32_residual
        and layer.override_orig_dtype is None
        and layer.variance_size_override is None
        and _normable(x, residual, layer.weight)
    )
    if not plain:
        return original(layer, x, residual, post_residual_addition, quant_linear)
    out = _norm(x, residual, layer.weight, layer.variance_epsilon, 0.0, layer.cast_x_before_out_mul)
    return out if residual is None else (out, residual)


def gemma_rms_norm(
    original: Callable,
    layer: Any,
    x: torch.Tensor,
    residual: torch.Tensor | None = None,
    *extra: Any,
    **options: Any,
) -> Any:
    """Around ``GemmaRMSNorm.forward_native`` and ``Gemma3RMSNorm.forward_native``."""
    if not (_all_absent(extra, options) and _normable(x, residual, layer.weight)):
        return original(layer, x, residual, *extra, **options)
    eps = layer.eps if hasattr(layer, "eps") else layer.variance_epsilon
    out = _norm(x, residual, layer.weight, eps, 1.0, False, round_sum=True)
    return out if residual is None else (out, residual)


def _all_absent(extra: tuple, options: dict[str, Any]) -> bool:
    return all(argument is None for argument in (*extra, *options.values()))


def _normable(x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor) -> bool:
    if x.dtype not in _DTYPES or weight.dtype != x.dtype or weight.shape != x.shape[-1:]:
        return False
    if residual is None:
        return True
    return x.dim() == 2 and residual.dtype == x.dtype and residual.stride(1) == 1


def _norm(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    offset: float,
    round_normalized: bool,
    round_sum: bool = False,
) -> torch.Tensor:
    rows = x[0] if x.dim() == 4 and x.shape[0] == 1 else x  # Gemma 3 norms [1, heads, tokens, d]
    if rows.dim() not in (2, 3) or rows.stride(-1) != 1:
        rows = x.reshape(-1, x.shape[-1]).contiguous()
    out = torch.ops.dflash2.rms_norm(
        rows, residual, weight, eps, offset, round_normalized, round_sum
    )
    return out if rows is x else out.view(x.shape)


def rotary_embedding(
    original: Callable,
    layer: Any,
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    *extra: Any,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Around ``RotaryEmbedding.forward_native``; rotates in place, as on CUDA."""
    plain = (
        _all_absent(extra, options)
        and positions.dim() == 1
        and query.dtype in _DTYPES
        and not hasattr(layer, "sin_cos_cache")
    )
    if not plain:
        return original(layer, positions, query, key, *extra, **options)
    tokens, head_size = positions.shape[0], layer.head_size
    torch.ops.dflash2.rotary_embedding(
        positions.to(torch.int64),
        query.view(tokens, -1, head_size),
        key.view(tokens, -1, head_size),
        layer.cos_sin_cache,
        layer.is_neox_style,
    )
    return query, key


def silu_and_mul(original: Callable, layer: Any, x: torch.Tensor) -> torch.Tensor:
    """Around ``SiluAndMul.forward_native``."""
    if x.dtype not in _DTYPES:
        return original(layer, x)
    return torch.ops.dflash2.gated_activation(x, int(Activation.SILU))


def gelu_and_mul(original: Callable, layer: Any, x: torch.Tensor) -> torch.Tensor:
    """Around ``GeluAndMul.forward_native``."""
    if x.dtype not in _DTYPES or layer.approximate != "tanh":
        return original(layer, x)
    return torch.ops.dflash2.gated_activation(x, int(Activation.GELU_TANH))


def linear(
    original: Callable,
    method: Any,
    layer: Any,
    x: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Around ``UnquantizedLinearMethod.apply`` and ``UnquantizedEmbeddingMethod.apply``."""
    if not _multipliable(x, layer.weight) or (bias is not None and bias.dtype != x.dtype):
        return original(method, layer, x, bias)
    return torch.ops.dflash2.linear(x, layer.weight, bias)


def lm_head(
    original: Callable,
    processor: Any,
    hidden_states: torch.Tensor,
    head: Any,
    embedding_bias: torch.Tensor | None = None,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Around ``LogitsProcessor._compute_lm_head``: the ordinary head, and that one only."""
    from sglang.srt.layers.logits_processor import should_apply_lm_head_quant_method

    weight: Any = getattr(head, "weight", None)
    plain = (
        weight is not None
        and not processor.use_fp32_lm_head
        and processor.rl_on_policy_target is None
        and not hasattr(head, "set_lora")
        and not should_apply_lm_head_quant_method(head, getattr(head, "quant_method", None))
    )
    if plain and _multipliable(hidden_states.to(weight.dtype), weight):
        return torch.ops.dflash2.linear(hidden_states.to(weight.dtype), weight, None)
    return original(processor, hidden_states, head, embedding_bias, out=out)


def _multipliable(x: torch.Tensor, weight: Any) -> bool:
    return (
        isinstance(weight, torch.Tensor)
        and x.is_cpu
        and x.dtype in _DTYPES
        and weight.dtype == x.dtype
        and weight.dim() == 2
        and weight.shape[1] == x.shape[-1]
        and weight.stride(1) == 1
    )


def mixture_of_experts(
    original: Callable, layer: Any, x: torch.Tensor, topk_output: Any, config: Any
) -> torch.Tensor:
    """Around ``moe_forward_native``: gated experts with SiLU, gpt-oss's variant included."""
    plain = (
        config.activation == "silu"
        and not config.apply_router_weight_on_input
        and x.dtype in _DTYPES
        and layer.w13_weight.dtype == layer.w2_weight.dtype == x.dtype
    )
    if not plain:
        return original(layer, x, topk_output, config)
    weights, ids, _ = topk_output  # [tokens, k] each
    order = ids.reshape(-1).argsort(stable=True)  # [tokens * k] by expert
    counts = ids.reshape(-1).to(torch.int64).bincount(minlength=layer.num_experts).tolist()
    sorted_x = x[order // ids.shape[1]]  # [tokens * k, hidden]
    outputs = torch.empty_like(sorted_x)
    start = 0
    for expert, count in enumerate(counts):
        if count > 0:
            rows = slice(start, start + count)
            gate_up = _expert_linear(layer, "w13_weight", expert, sorted_x[rows])
            active = _gated(gate_up, config)
            outputs[rows] = _expert_linear(layer, "w2_weight", expert, active)
            start += count
    by_token = torch.empty_like(outputs)
    by_token[order] = outputs
    by_token = by_token.view(*ids.shape, -1).to(weights.dtype)  # [tokens, k, hidden]
    return (by_token * weights.unsqueeze(-1)).sum(1).to(x.dtype)


def _expert_linear(layer: Any, name: str, expert: int, x: torch.Tensor) -> torch.Tensor:
    out = torch.ops.dflash2.linear(x, getattr(layer, name)[expert], None)
    bias = getattr(layer, f"{name}_bias", None)
    return out if bias is None else (out.float() + bias[expert]).to(x.dtype)


def _gated(gate_up: torch.Tensor, config: Any) -> torch.Tensor:
    if config.gemm1_alpha is None:
        return torch.ops.dflash2.gated_activation(gate_up, int(Activation.SILU))
    from sglang.srt.layers.moe.fused_moe_native import swiglu_gpt_oss_sigmoid_alpha

    return swiglu_gpt_oss_sigmoid_alpha(gate_up, config.gemm1_alpha, config.gemm1_clamp_limit)


def store_kv(
    original: Callable,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    indices: torch.Tensor,
    *arguments: Any,
    **options: Any,
) -> None:
    """Around ``memory_pool._set_kv_buffer_impl``."""
    if k.is_cpu and k.dtype == k_cache.dtype and v.dtype == v_cache.dtype:
        torch.ops.dflash2.store_kv(k, v, k_cache, v_cache, indices.to(torch.int64))
    else:
        original(k, v, k_cache, v_cache, indices, *arguments, **options)
