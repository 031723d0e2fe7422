"""SGLang's sampling parameters of a greedy batch, for tests without a server."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor
from sglang.srt.sampling.sampling_batch_info import ProcessorEntry, SamplingBatchInfo


def sampling_info_with(
    processor: CustomLogitProcessor,
    rows: list[int],
    params: list[dict[str, Any] | None],
    vocab_size: int,
    logit_bias: torch.Tensor | None = None,
) -> SamplingBatchInfo:
    """A batch of ``len(params)`` greedy requests, some of them with a custom processor."""
    bs = len(params)
    return SamplingBatchInfo(
        temperatures=torch.ones(bs, 1),
        top_ps=torch.ones(bs),
        top_ks=torch.ones(bs, dtype=torch.int32),
        min_ps=torch.zeros(bs),
        is_all_greedy=True,
        is_any_greedy=True,
        need_top_p_sampling=False,
        need_top_k_sampling=False,
        need_min_p_sampling=False,
        vocab_size=vocab_size,
        logit_bias=logit_bias,
        has_custom_logit_processor=True,
        custom_params=params,
        custom_logit_processor={0: ProcessorEntry(processor, rows, torch.tensor(rows))},
        device="cpu",
    )
