"""What a request may ask of a dflash2 server, and what is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req

_PATH_DEPENDENT = ("frequency_penalty", "presence_penalty")


def register() -> None:
    """Let SGLang's check of a DFLASH request ask ours as well."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(
        "sglang.srt.managers.scheduler.validate_dflash_request", _validate, HookType.AROUND
    )


def _validate(original: Callable[..., str | None], req: Req, enable_overlap: bool) -> str | None:
    return original(req, enable_overlap) or refusal(req)


def refusal(req: Req) -> str | None:
    """Why this request cannot be served exactly, in one sentence; None where it can."""
    params = req.sampling_params
    for name in _PATH_DEPENDENT:
        if getattr(params, name) != 0:
            return f"dflash2 does not support {name} yet: expected 0, got {getattr(params, name)}."
    if params.repetition_penalty != 1:
        return (
            "dflash2 does not support repetition_penalty yet: expected 1, got "
            f"{params.repetition_penalty}."
        )
    if params.min_new_tokens > 0:
        return (
            "dflash2 does not support min_new_tokens (min_tokens) yet: expected 0, got "
            f"{params.min_new_tokens}."
        )
    if req.custom_logit_processor is not None:
        return "dflash2 does not support custom logit processors yet."
    return None
