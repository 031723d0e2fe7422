"""Where the drafter runs: whole, on every rank, so that drafting communicates with nobody."""

from __future__ import annotations

from sglang.srt.configs.draft_parallel import DraftParallelLayout
from sglang.srt.distributed.parallel_state import get_self_pp_group
from sglang.srt.runtime_context import get_parallel


def replicated_drafter() -> DraftParallelLayout:
    """SGLang's placement of a drafter, for one that each rank holds completely."""
    if get_parallel().tp_size == 1:
        return DraftParallelLayout(tp_group=None, attn_tp_size=1)
    # SGLang keeps a group of this rank alone, for drafters that must not see pipeline stages.
    return DraftParallelLayout(tp_group=get_self_pp_group(), attn_tp_size=1)
