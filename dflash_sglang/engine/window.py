"""The KV slots and positions behind each request's prefix that one decode step writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from sglang.srt.mem_cache.kv_loc_plan import KVLocPlan

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.model_executor.model_runner import ModelRunner


class StepWindow(NamedTuple):
    """One step's room. W is the wider of the draft block and the verified tree."""

    anchors: torch.Tensor  # [bs] int64, the last committed token of each request
    prefix_lens: torch.Tensor  # [bs] int64, committed tokens in the cache, anchor excluded
    slots: torch.Tensor  # [bs, W] int64, KV slots of positions prefix_len .. prefix_len + W - 1
    plan: KVLocPlan  # SGLang's view of the slots of the whole step, for every pool it writes
    begin: int = 0  # the plan's column of slots[:, 0]

    def columns(self, width: int) -> slice | None:
        """The part of the plan that a forward of ``width`` tokens a request writes."""
        is_whole = self.begin == 0 and width == self.slots.shape[1]
        return None if is_whole else slice(self.begin, self.begin + width)

    def behind(self, tokens: torch.Tensor) -> StepWindow:
        """What is left once the anchors are in the cache: tokens [bs] int64 are the next ones."""
        return StepWindow(
            tokens, self.prefix_lens + 1, self.slots[:, 1:], self.plan, self.begin + 1
        )


def open_window(batch: ScheduleBatch, runner: ModelRunner, width: int) -> StepWindow:
    """Look up the slots that the scheduler reserved behind each request's prefix.

    Args:
        batch: a decode batch whose ``spec_info`` carries the anchors.
        runner: the target's runner.
        width: W, tokens a request.
    """
    prefix_lens = batch.seq_lens
    offsets = torch.arange(width, device=prefix_lens.device)
    reserved = prefix_lens[:, None] + offsets  # [bs, W]
    table = runner.req_to_token_pool.req_to_token  # [requests, longest] int32
    slots = table[batch.req_pool_indices[:, None], reserved].to(torch.int64)
    plan = runner.kv_index_translator.plan(
        req_pool_indices=batch.req_pool_indices,
        seq_lens=prefix_lens,
        seq_lens_cpu=batch.seq_lens_cpu,
        write_virtual=slots.reshape(-1),
        read_extent=width,
    )
    return StepWindow(batch.spec_info.bonus_tokens, prefix_lens, slots, plan)
