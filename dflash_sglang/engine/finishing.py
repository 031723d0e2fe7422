"""Where a text ends when a step delivers several tokens: at the first token that ends it.

SGLang 0.5.23 looks for stop strings in all of a step's tokens before it looks for stop tokens in
any, and for one string of the request's list before the next. So a step that delivers a stop token
and then the end of a stop string ends at the string, behind the stop token, and of two strings in
one step the one listed first counts. One token at a time neither can happen: that is how tokens are
checked here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req


def register() -> None:
    """Let SGLang's check of finished requests see the tokens of a step one after the other."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(
        "sglang.srt.managers.schedule_batch.Req.update_finish_state",
        finish_at_first_end,
        HookType.AROUND,
    )


def finish_at_first_end(original: Callable[..., None], req: Req, new_accepted_len: int = 1) -> None:
    """SGLang's ``Req.update_finish_state``, which may set ``finished_reason`` and ``finished_len``.

    Args:
        original: SGLang's own.
        req: its output ends with what the step delivered.
        new_accepted_len: number of tokens that the step delivered.
    """
    params = req.sampling_params
    if new_accepted_len < 2 or not (params.stop_strs or params.stop_regex_strs):
        return original(req, new_accepted_len)  # the first stop token is found in any case
    delivered = req.output_ids[-new_accepted_len:]
    del req.output_ids[-new_accepted_len:]
    # A grammar is complete behind the last of its tokens, and has taken all of them already.
    grammar, req.grammar = req.grammar, None
    for count, token in enumerate(delivered, start=1):
        req.output_ids.append(token)
        if count == new_accepted_len:
            req.grammar = grammar
        original(req)
        if req.finished():
            req.output_ids.extend(delivered[count:])
            break
    req.grammar = grammar
