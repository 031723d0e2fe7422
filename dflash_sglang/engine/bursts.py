"""Plain decode steps in a row, without the scheduler in between.

SGLang's scheduling, answering and counting cost a small model's plain step a good part of its time.
So several plain forwards make one step of the scheduler, which receives their tokens together, as
it does those of an accepted draft.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dflash_sglang.algorithm import NAME
from dflash_sglang.engine.penalties import stop_tokens

if TYPE_CHECKING:
    import torch
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.managers.utils import GenerationBatchResult


_COMPONENTS = "sglang.srt.managers.scheduler_components"


def register() -> None:
    """Let SGLang's statistics of speculation count every forward of a burst."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(
        f"{_COMPONENTS}.metrics_reporter.SchedulerMetricsReporter.update_spec_metrics",
        count_forwards,
        HookType.AROUND,
    )
    HookRegistry.register(
        f"{_COMPONENTS}.batch_result_processor.SchedulerBatchResultProcessor"
        "._resolve_spec_v2_tokens",
        count_verifications,
        HookType.AROUND,
    )


class BurstBounds:
    """How many plain steps a batch may take in a row.

    It reads tokens on the host, so it is for devices that share the host's memory.
    """

    def __init__(self) -> None:
        self._ended: set[str] = set()  # requests of the last step
        self._follows_prefill = False

    def after_prefill(self) -> None:
        """The next step follows prompts, whose first tokens are answered behind it."""
        self._follows_prefill = True

    def longest(self, batch: ScheduleBatch) -> int:
        """Plain steps that a batch can take in a row, at least one.

        One where the host has to see every token before the next (grammars, custom logit
        processors, log-probabilities), where the first tokens of prompts wait for the step, and
        where a request has ended: the scheduler, which learns of it a step later, would let it
        decode on. And no more than the request that is nearest to its limit still wants.

        Args:
            batch: its ``seq_lens_cpu`` count what is in the cache, the last token left out.
        """
        follows_prefill, self._follows_prefill = self._follows_prefill, False
        if follows_prefill or batch.has_grammar or batch.return_logprob:
            return 1
        if batch.sampling_info.has_custom_logit_processor:
            return 1
        if any(request.rid in self._ended for request in batch.reqs):
            return 1
        lens = batch.seq_lens_cpu.tolist()
        return max(1, min(map(_tokens_left, batch.reqs, lens)))

    def ends(self, batch: ScheduleBatch, tokens: torch.Tensor) -> bool:
        """Whether any request ends with the token [bs] int64 that it got."""
        pairs = zip(batch.reqs, tokens.tolist(), strict=True)
        self._ended = {request.rid for request, token in pairs if _ends_with(request, token)}
        return bool(self._ended)


def count_forwards(
    original: Callable[..., None],
    reporter: Any,
    bs: int,
    num_correct_drafts: int,
    num_accept_tokens: int,
    **others: Any,
) -> None:
    """SGLang's ``update_spec_metrics``, which divides tokens by requests that were verified.

    Every forward brings each of the ``bs`` requests one token that is no draft's.
    """
    if _is_ours(reporter.scheduler.spec_algorithm):
        bs = num_accept_tokens - num_correct_drafts
    original(reporter, bs, num_correct_drafts, num_accept_tokens, **others)


def count_verifications(
    original: Callable[..., list[list[int]]],
    processor: Any,
    result: GenerationBatchResult,
    batch: ScheduleBatch,
) -> list[list[int]]:
    """SGLang's ``_resolve_spec_v2_tokens``, which counts a verification for each request.

    The forwards of a burst beyond the first are counted here, without drafts.
    """
    going_on = [req for req in batch.reqs if not (req.is_retracted or req.finished())]
    tokens = original(processor, result, batch)
    if _is_ours(batch.spec_algorithm):
        for request in going_on:
            for _ in range(result.num_non_draft_tokens_per_req - 1):
                request.spec_verify_ct += 1
                request.update_spec_correct_drafts_histogram(0)
    return tokens


def _is_ours(algorithm: Any) -> bool:
    return algorithm.name == NAME


def _tokens_left(request: Req, length: int) -> int:
    generated = length + 1 - len(request.origin_input_ids)
    return request.sampling_params.max_new_tokens - generated


def _ends_with(request: Req, token: int) -> bool:
    return not request.sampling_params.ignore_eos and token in stop_tokens(request)
