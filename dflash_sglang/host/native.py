"""SGLang's built-in DFLASH on the CPU, so that it can be compared with.

Its worker has PyTorch code beside each of its GPU kernels; what keeps it from a CPU is a list of
devices, and two names that take a CUDA function whenever one is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

ATTENTION_BACKEND = "dflash2_cpu"


class _Platform:
    """Answers SGLang's questions to a platform of its own for the CPU."""

    def is_out_of_tree(self) -> bool:
        return True

    def supports_speculative_algorithm(self, algorithm: str) -> bool:
        return algorithm == "DFLASH"

    def supports_speculative_draft_attention_backend(self, _algorithm: str, backend: str) -> bool:
        return backend == ATTENTION_BACKEND

    def get_default_speculative_draft_attention_backend(self, _algorithm: str) -> str:
        return ATTENTION_BACKEND


def handle_dflash(original: Callable, server_args: Any) -> None:
    """Around ``_handle_dflash``, which knows CUDA, NPU and XPU, and platforms that say they can."""
    from sglang.srt.arg_groups import speculative_hook
    from sglang.srt.arg_groups.overrides import resolving_view

    if resolving_view(server_args).device != "cpu":
        original(server_args)
        return
    known = speculative_hook.current_platform
    speculative_hook.current_platform = _Platform()
    try:
        original(server_args)
    finally:
        speculative_hook.current_platform = known


def top_k(original: Callable, scores: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Around ``_radix_topk``, which calls FlashInfer's CUDA kernel wherever that is installed."""
    if scores.is_cpu:
        return torch.topk(scores, k, dim=-1)
    return original(scores, k)


def attention_init(original: Callable, attention: Any, *args: Any, **options: Any) -> None:
    """Around ``DFlashAttention.__init__``: bfloat16 takes the PyTorch path, as float32 does."""
    original(attention, *args, **options)
    attention.use_table_qk_norm_rope = False


def forward_arguments(
    original: Callable, runner: Any, forward_batch: Any, pp_proxy_tensors: Any
) -> dict[str, Any]:
    """Around ``ModelRunner._extend_forward_kwargs``, which rounds embeddings to bfloat16."""
    arguments = original(runner, forward_batch, pp_proxy_tensors)
    if forward_batch.input_embeds is not None and forward_batch.replace_embeds is None:
        arguments["input_embeds"] = forward_batch.input_embeds.to(runner.dtype)
    return arguments


def chain_sampling(
    original: Callable,
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    uniform_samples: torch.Tensor,
    uniform_samples_for_final_sampling: torch.Tensor,
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor,
    *further: Any,
    block_verification: bool = False,
    **options: Any,
) -> None:
    """Around SGLang's Triton kernel of chain rejection sampling (Leviathan et al., 2023).

    Args:
        predicts: [bs * (g + 1)], written at ``retrive_index``: the token behind each accepted slot.
        accept_index: [bs, g + 1], written: ``retrive_index`` of the accepted slots, root first.
        accept_token_num: [bs], written: accepted drafted tokens.
        candidates: [bs, g + 1], the anchor and the drafted tokens.
        retrive_index: [bs, g + 1].
        uniform_samples: [bs, g], a coin for each drafted token.
        uniform_samples_for_final_sampling: [bs].
        target_probs: [bs, g + 1, V].
        draft_probs: [bs, g, V].

    Raises:
        NotImplementedError: block verification, which this stand-in does not do.
    """
    if not candidates.is_cpu:
        original(
            predicts, accept_index, accept_token_num, candidates, retrive_index,
            retrive_next_token, retrive_next_sibling, uniform_samples,
            uniform_samples_for_final_sampling, target_probs, draft_probs, *further,
            block_verification=block_verification, **options,
        )  # fmt: skip
        return
    if block_verification:
        raise NotImplementedError("on a CPU, DFLASH verifies token by token, not block by block.")
    drafted = candidates[:, 1:]  # [bs, g]
    p = target_probs[:, :-1].gather(2, drafted.unsqueeze(2)).squeeze(2)  # [bs, g]
    q = draft_probs.gather(2, drafted.unsqueeze(2)).squeeze(2)  # [bs, g]
    accepted = (q > 0) & (uniform_samples * q < p)
    length = accepted.long().cumprod(dim=1).sum(dim=1)  # [bs]
    rows = torch.arange(len(length))
    law = target_probs[rows, length]  # [bs, V]
    # Behind a whole accepted block there is nothing to subtract.
    beaten = torch.nn.functional.pad(draft_probs, (0, 0, 0, 1))[rows, length]  # [bs, V]
    residual = (law - beaten).clamp(min=0).cumsum(dim=1)
    threshold = uniform_samples_for_final_sampling * residual[:, -1]
    bonus = torch.searchsorted(residual, threshold.unsqueeze(1), right=True).squeeze(1)

    slots = torch.arange(candidates.shape[1])
    follows = torch.nn.functional.pad(drafted, (0, 1))  # [bs, g + 1]
    follows[rows, length] = bonus.clamp(max=law.shape[1] - 1)
    reached = slots <= length.unsqueeze(1)  # [bs, g + 1]
    accept_index[reached] = retrive_index[reached].to(accept_index.dtype)
    predicts[retrive_index[reached].long()] = follows[reached].to(predicts.dtype)
    accept_token_num.copy_(length)
