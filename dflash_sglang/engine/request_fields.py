"""The field ``dflash2`` of an OpenAI request, which SGLang's endpoints would pass over.

They read a body into the fields that they know. One of these, ``custom_params``, goes on to the
scheduler, where :mod:`dflash_sglang.engine.requests` checks it; so ours is put into it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from dflash_sglang.request_limits import KEY


def register() -> None:
    """Let SGLang's OpenAI endpoints read the field."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(
        "sglang.srt.entrypoints.openai.serving_base.OpenAIServingBase.handle_request",
        _handle_request,
        HookType.AROUND,
    )


async def _handle_request(
    original: Callable[..., Awaitable[Any]], serving: Any, request: Any, raw_request: Any
) -> Any:
    # Only text generation has such parameters, and gRPC brings no body that could hold the field.
    if hasattr(request, "custom_params") and hasattr(raw_request, "json"):
        body = await raw_request.json()  # parsed before, for SGLang's own fields
        if KEY in body:
            custom_params = request.custom_params or {}
            if KEY in custom_params:
                return serving.create_error_response(
                    f'expected "{KEY}" once in a request, got it both as a field of its own and '
                    "in custom_params."
                )
            request.custom_params = {**custom_params, KEY: body[KEY]}
    return await original(serving, request, raw_request)
