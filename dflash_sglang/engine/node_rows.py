"""SGLang's sampling parameters with a row for every draft node instead of one for every request."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo


def one_row_a_node(info: SamplingBatchInfo, nodes: int) -> SamplingBatchInfo:
    """The same sampling parameters with every request's row repeated for each of its nodes.

    Rows are adjusted by penalties, grammar and custom processors apart, so those are left out.
    """

    def repeat(values: torch.Tensor | None) -> torch.Tensor | None:
        return None if values is None else values.repeat_interleave(nodes, dim=0)

    return replace(
        info,
        temperatures=repeat(info.temperatures),
        top_ps=repeat(info.top_ps),
        top_ks=repeat(info.top_ks),
        min_ps=repeat(info.min_ps),
        sampling_seed=repeat(info.sampling_seed),
        has_custom_logit_processor=False,
        grammar_mask=None,
        penalizer_orchestrator=None,
        logit_bias=None,
    )
