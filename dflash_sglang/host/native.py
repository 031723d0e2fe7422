"""SGLang's built-in DFLASH on the CPU, so that it can be compared with.

Its worker has PyTorch code beside each of its GPU kernels; what keeps it from a CPU is a list of
devices, and two names that take a CUDA function whenever one is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dflash_sglang.host import ATTENTION_BACKEND


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

    view = resolving_view(server_args)
    if view.device != "cpu":
        original(server_args)
        return
    if (view.speculative_accept_threshold_single, view.speculative_accept_threshold_acc) != (1, 1):
        raise ValueError(
            "on a CPU, DFLASH keeps the target's law: leave --speculative-accept-threshold-single "
            "and --speculative-accept-threshold-acc at 1."
        )
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
    """Around SGLang's Triton kernel of chain rejection sampling: :func:`reject_chain` instead.

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
    length, bonus = reject_chain(
        candidates[:, 1:],
        target_probs,
        draft_probs,
        uniform_samples,
        uniform_samples_for_final_sampling,
    )
    rows = torch.arange(len(length))
    follows = torch.nn.functional.pad(candidates[:, 1:], (0, 1))  # [bs, g + 1]
    follows[rows, length] = bonus
    reached = torch.arange(candidates.shape[1]) <= length.unsqueeze(1)  # [bs, g + 1]
    accept_index[reached] = retrive_index[reached].to(accept_index.dtype)
    predicts[retrive_index[reached].long()] = follows[reached].to(predicts.dtype)
    accept_token_num.copy_(length)


def sampling_available() -> bool:
    """In place of ``is_dflash_sampling_verify_available``: :func:`accept_fixed_draft` is there."""
    return True


def accept_fixed_draft(
    original: Callable,
    *,
    candidates: torch.Tensor,
    next_token_logits: torch.Tensor,
    sampling_info: Any,
    max_top_k: int | None = None,
    uniform_top_k_value: int | None = None,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Around SGLang's sampled verification of a drafter without selector, a CUDA kernel.

    Without it SGLang would decode sampled requests greedily. Such a drafter proposes its best token
    at each position: a law that has all its mass there.

    Args:
        candidates: [bs, g + 1], the anchor and the drafted tokens.
        next_token_logits: [bs * (g + 1), V].

    Returns:
        accepted drafted tokens [bs] and the bonus tokens [bs].
    """
    if not candidates.is_cpu:
        return original(
            candidates=candidates, next_token_logits=next_token_logits, sampling_info=sampling_info,
            max_top_k=max_top_k, uniform_top_k_value=uniform_top_k_value, **options,
        )  # fmt: skip
    from sglang.srt.speculative.dflash_utils import build_speculative_verify_target_probs

    bs, width = candidates.shape
    target_probs = build_speculative_verify_target_probs(
        next_token_logits=next_token_logits,
        sampling_info=sampling_info,
        draft_token_num=width,
        bs=bs,
        max_top_k=max_top_k,
        uniform_top_k_value=uniform_top_k_value,
    )  # [bs, g + 1, V]
    drafted = candidates[:, 1:].long()  # [bs, g]
    draft_probs = torch.zeros_like(target_probs[:, :-1]).scatter_(2, drafted.unsqueeze(2), 1.0)
    return reject_chain(
        drafted, target_probs, draft_probs, torch.rand(bs, width - 1), torch.rand(bs)
    )


def reject_chain(
    drafted: torch.Tensor,
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor,
    coins: torch.Tensor,
    last_coin: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rejection sampling along a chain (Leviathan et al., 2023).

    Args:
        drafted: [bs, g].
        target_probs: [bs, g + 1, V].
        draft_probs: [bs, g, V], the law that each drafted token was drawn from.
        coins: [bs, g], uniform in [0, 1).
        last_coin: [bs], for the bonus token.

    Returns:
        accepted drafted tokens [bs] and the bonus tokens [bs].
    """
    chosen = drafted.unsqueeze(2)  # [bs, g, 1]
    p = target_probs[:, :-1].gather(2, chosen).squeeze(2)  # [bs, g]
    q = draft_probs.gather(2, chosen).squeeze(2)  # [bs, g]
    accepted = (q > 0) & (coins * q < p)
    length = accepted.long().cumprod(dim=1).sum(dim=1)  # [bs]
    rows = torch.arange(len(length))
    law = target_probs[rows, length]  # [bs, V]
    # Behind a whole accepted block there is nothing to subtract.
    beaten = torch.nn.functional.pad(draft_probs, (0, 0, 0, 1))[rows, length]  # [bs, V]
    residual = (law - beaten).clamp(min=0).cumsum(dim=1)
    threshold = last_coin * residual[:, -1]
    bonus = torch.searchsorted(residual, threshold.unsqueeze(1), right=True).squeeze(1)
    # Rounding can put the threshold at the very end.
    return length, bonus.clamp(max=law.shape[1] - 1)
