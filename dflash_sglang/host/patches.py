"""Corrections of SGLang names on a CPU-only machine, through SGLang's own hook registry.

One entry of the table below is one name: what stands in for it, how, and why. They are registered
by :func:`register` while SGLang loads its plugins, which applies them before the engine starts,
and only in processes that run the CPU engine.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from dflash_sglang.host import ATTENTION_BACKEND, layers, native
from dflash_sglang.kernels import library


class Patch(NamedTuple):
    """One corrected name."""

    target: str  # dotted path of the SGLang (or torch) name
    kind: str  # member of SGLang's HookType: AROUND or REPLACE
    function: Callable
    reason: str


def register() -> None:
    """Register every patch, and the attention backend with SGLang's parsers and factory."""
    from sglang.srt.arg_groups import choices
    from sglang.srt.layers.attention.attention_registry import register_attention_backend
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for patch in (*PATCHES, *(LAYER_PATCHES if _kernels_compiled() else ())):
        HookRegistry.register(patch.target, patch.function, HookType[patch.kind])
    for names in (
        choices.ATTENTION_BACKEND_CHOICES,
        choices.DRAFT_ATTENTION_BACKEND_CHOICES,
        choices.DETERMINISTIC_ATTENTION_BACKEND_CHOICES,
        choices.RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND,
    ):
        if ATTENTION_BACKEND not in names:
            names.append(ATTENTION_BACKEND)
    register_attention_backend(ATTENTION_BACKEND)(_create_attention_backend)


def _kernels_compiled() -> bool:
    return library.serve("cpu") == "compiled"


def _create_attention_backend(runner: Any) -> Any:
    from dflash_sglang.host.attention import CPUAttentionBackend

    return CPUAttentionBackend(runner)


def _record_stream(original: Callable, tensor: torch.Tensor, stream: Any) -> None:
    if not tensor.is_cpu:
        original(tensor, stream)


def _communicator_init(
    original: Callable, communicator: Any, group: Any, device: Any, *args: Any, **kwargs: Any
) -> None:
    if torch.device(device).type != "cpu":
        original(communicator, group, device, *args, **kwargs)
        return
    communicator.rank = torch.distributed.get_rank(group)
    communicator.world_size = torch.distributed.get_world_size(group)
    communicator.group = group
    communicator.available = False
    communicator.disabled = True


def _last_loc(
    req_to_token: torch.Tensor, req_pool_indices: torch.Tensor, prefix_lens: torch.Tensor
) -> torch.Tensor:
    from sglang.srt.mem_cache.allocation import get_last_loc_torch

    return get_last_loc_torch(req_to_token, req_pool_indices, prefix_lens)


def _threads_of_rank(original: Callable, *, numa_index: int, world_size: int) -> Any:
    from sglang.srt.utils.common import get_cpu_ids_by_node

    if os.environ.get("SGLANG_CPU_OMP_THREADS_BIND") or world_size <= len(get_cpu_ids_by_node()):
        return original(numa_index=numa_index, world_size=world_size)
    share = sorted(os.sched_getaffinity(0))[numa_index::world_size]
    torch.set_num_threads(max(1, len(share)))
    return ",".join(map(str, share))


def _handle_cpu_backends(original: Callable, server_args: Any) -> None:
    from sglang.srt.arg_groups.overrides import declare_resolution, resolving_view
    from sglang.srt.runtime_context import get_platform

    view = resolving_view(server_args)
    if view.device == "cpu" and view.attention_backend is None and not get_platform().has_amx:
        declare_resolution(server_args, "_handle_cpu_backends", attention_backend=ATTENTION_BACKEND)
    original(server_args)


def _keep_pytorch_operators(original: Callable, runner: Any) -> None:
    if runner.device != "cpu":
        original(runner)


def _no_triton_kernels() -> bool:
    return False


def _adjust_model_arguments(original: Callable, server_args: Any) -> None:
    from sglang.srt.arg_groups import model_hook

    read = model_hook.attention_backends_of

    def read_as_known(view: Any) -> tuple:
        return tuple("intel_amx" if name == ATTENTION_BACKEND else name for name in read(view))

    model_hook.attention_backends_of = read_as_known
    try:
        original(server_args)
    finally:
        model_hook.attention_backends_of = read


PATCHES = (
    Patch(
        "torch.Tensor.record_stream",
        "AROUND",
        _record_stream,
        "the overlap scheduler marks tensors for a stream; a CPU tensor has none and raises",
    ),
    Patch(
        "sglang.srt.distributed.device_communicators.pynccl.PyNcclCommunicator.__init__",
        "AROUND",
        _communicator_init,
        "with tensor parallelism a CUDA build of torch would open a NCCL communicator for the "
        "CPU device and die; marked unavailable, the collectives run over gloo",
    ),
    Patch(
        "sglang.srt.utils.numa_utils.init_threads_binding",
        "AROUND",
        _threads_of_rank,
        "more ranks than NUMA nodes are refused unless SGLANG_CPU_OMP_THREADS_BIND is set; the "
        "cores are shared out evenly instead",
    ),
    Patch(
        "sglang.srt.mem_cache.allocation.get_last_loc",
        "REPLACE",
        _last_loc,
        "chosen by the attention backend's name, which sends every name but two to Triton",
    ),
    Patch(
        "sglang.srt.arg_groups.platform_hook.handle_cpu_backends",
        "AROUND",
        _handle_cpu_backends,
        "without AMX the default would be torch_native, which has neither tree masks nor sinks",
    ),
    Patch(
        "sglang.srt.arg_groups.model_hook.handle_model_specific_adjustments",
        "AROUND",
        _adjust_model_arguments,
        "some models accept a fixed list of backends; ours does what they ask of intel_amx, the "
        "list's CPU backend (sinks, sliding windows)",
    ),
    Patch(
        "sglang.srt.utils.common.is_triton_kernels_available",
        "REPLACE",
        _no_triton_kernels,
        "installed, but it cannot run on a CPU; gpt-oss would lay its experts out for it",
    ),
    Patch(
        "sglang.srt.arg_groups.speculative_hook._handle_dflash",
        "AROUND",
        native.handle_dflash,
        "SGLang's own DFLASH refuses the CPU, though its worker has PyTorch code for every step",
    ),
    Patch(
        "sglang.srt.models.dflash._radix_topk",
        "AROUND",
        native.top_k,
        "FlashInfer's kernel is called wherever the package is installed; it is CUDA only",
    ),
    Patch(
        "sglang.srt.models.dflash.DFlashAttention.__init__",
        "AROUND",
        native.attention_init,
        "in bfloat16 the built-in drafter takes a Triton kernel; Triton has no CPU driver",
    ),
    Patch(
        "sglang.srt.model_executor.model_runner.ModelRunner._extend_forward_kwargs",
        "AROUND",
        native.forward_arguments,
        "the built-in drafter gets its embeddings in bfloat16 whatever its weights are",
    ),
    Patch(
        "sglang.kernels.ops.speculative.dspark.dspark_accept.chain_speculative_sampling_triton",
        "AROUND",
        native.chain_sampling,
        "as the built-in drafter, for its sampled requests",
    ),
    Patch(
        "sglang.srt.speculative.dflash_utils.is_dflash_sampling_verify_available",
        "REPLACE",
        native.sampling_available,
        "a drafter without selector would have its sampled requests decoded greedily",
    ),
    Patch(
        "sglang.srt.speculative.dflash_utils.compute_dflash_sampling_correct_drafts_and_bonus",
        "AROUND",
        native.accept_fixed_draft,
        "as is_dflash_sampling_verify_available",
    ),
    Patch(
        "sglang.srt.model_executor.model_runner.ModelRunner.maybe_enable_batch_invariant_mode",
        "AROUND",
        _keep_pytorch_operators,
        "--enable-deterministic-inference would put Triton kernels in place of PyTorch's, which a "
        "CPU cannot run; the compiled kernels are batch-invariant by themselves",
    ),
)

# These need the compiled kernels; SGLang's own code is the reference for them.
LAYER_PATCHES = (
    Patch(
        "sglang.srt.layers.layernorm.RMSNorm.forward_native",
        "AROUND",
        layers.rms_norm,
        "seven small operations without AMX; one kernel",
    ),
    Patch(
        "sglang.srt.layers.layernorm.GemmaRMSNorm.forward_native",
        "AROUND",
        layers.gemma_rms_norm,
        "as RMSNorm",
    ),
    Patch(
        "sglang.srt.layers.layernorm.Gemma3RMSNorm.forward_native",
        "AROUND",
        layers.gemma_rms_norm,
        "as RMSNorm",
    ),
    Patch(
        "sglang.srt.layers.rotary_embedding.base.RotaryEmbedding.forward_native",
        "AROUND",
        layers.rotary_embedding,
        "some twenty small operations without AMX, rounding between them; one kernel",
    ),
    Patch(
        "sglang.srt.layers.activation.SiluAndMul.forward_native",
        "AROUND",
        layers.silu_and_mul,
        "two operations without AMX, rounding between them; one kernel",
    ),
    Patch(
        "sglang.srt.layers.activation.GeluAndMul.forward_native",
        "AROUND",
        layers.gelu_and_mul,
        "as SiluAndMul",
    ),
    Patch(
        "sglang.srt.layers.quantization.unquant.UnquantizedLinearMethod.apply",
        "AROUND",
        layers.linear,
        "PyTorch's product is slow in bfloat16 without AMX, and in float32 the bits of a row "
        "depend on how many rows there are",
    ),
    Patch(
        "sglang.srt.layers.quantization.unquant.UnquantizedEmbeddingMethod.apply",
        "AROUND",
        layers.linear,
        "as UnquantizedLinearMethod",
    ),
    Patch(
        "sglang.srt.layers.logits_processor.LogitsProcessor._compute_lm_head",
        "AROUND",
        layers.lm_head,
        "as UnquantizedLinearMethod",
    ),
    Patch(
        "sglang.srt.mem_cache.memory_pool._set_kv_buffer_impl",
        "AROUND",
        layers.store_kv,
        "two indexed assignments without AMX; one kernel",
    ),
    Patch(
        "sglang.srt.layers.moe.fused_moe_native.moe_forward_native",
        "AROUND",
        layers.mixture_of_experts,
        "as UnquantizedLinearMethod, for each expert's rows",
    ),
)
