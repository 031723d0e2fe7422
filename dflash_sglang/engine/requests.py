"""What a request may ask of a dflash2 server, and what is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dflash_sglang.request_limits import LimitsError, parse_limits, without_limits

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req

# Further outputs that SGLang would take from the verify forward as it takes them from a chain's.
_UNSUPPORTED_OUTPUTS = (
    "return_hidden_states",
    "return_sampling_mask",
    "return_routed_experts",
    "return_indexer_topk",
)


def register() -> None:
    """Let SGLang's check of a DFLASH request ask ours as well."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(
        "sglang.srt.managers.scheduler.validate_dflash_request", _validate, HookType.AROUND
    )


def _validate(original: Callable[..., str | None], req: Req, enable_overlap: bool) -> str | None:
    from sglang.srt.runtime_context import get_exec

    seeded = get_exec().deterministic.enable_deterministic_inference
    reason = refusal(req, seeded) or original(req, enable_overlap)
    if reason is not None:
        disarm(req)
    return reason


def disarm(req: Req) -> None:
    """Take from a refused request what it was refused for.

    SGLang answers it with the reason, but only after a token of it was in a batch with others.
    """
    for name in _UNSUPPORTED_OUTPUTS:
        setattr(req, name, False)
    req.sampling_params.min_p = 0.0
    req.sampling_params.min_new_tokens = 0
    # Its other parameters belong to its custom logit processor, which runs until then.
    req.sampling_params.custom_params = without_limits(req.sampling_params.custom_params)


def refusal(req: Req, seeded: bool) -> str | None:
    """Why this request cannot be served exactly, in one sentence; None where it can.

    Args:
        seeded: the server runs with ``--enable-deterministic-inference``.
    """
    for name in _UNSUPPORTED_OUTPUTS:
        if getattr(req, name):
            return f"dflash2 does not support {name} yet: expected false, got {getattr(req, name)}."
    params = req.sampling_params
    try:
        parse_limits(params.custom_params)
    except LimitsError as error:
        return f"{error}"
    if seeded and params.min_p > 0:
        # SGLang's sampler asserts, and the server would end, for greedy requests beside others too.
        return (
            "SGLang's sampler for --enable-deterministic-inference does not know min_p: expected "
            f"0, got {params.min_p}."
        )
    if params.min_new_tokens > 0 and req.tokenizer is None:
        return (
            "min_new_tokens (min_tokens) needs the tokens that end a text: expected 0 on a server "
            f"with --skip-tokenizer-init, got {params.min_new_tokens}."
        )
    return None
