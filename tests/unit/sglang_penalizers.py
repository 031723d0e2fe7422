"""SGLang's penalizers, one request at a time: what the logits behind some output become."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.sampling.penaltylib import (
    BatchedFrequencyPenalizer,
    BatchedMinNewTokensPenalizer,
    BatchedPenalizerOrchestrator,
    BatchedPresencePenalizer,
    BatchedRepetitionPenalizer,
)
from sglang.srt.sampling.sampling_params import SamplingParams

_PENALIZERS = {
    BatchedFrequencyPenalizer,
    BatchedMinNewTokensPenalizer,
    BatchedPresencePenalizer,
    BatchedRepetitionPenalizer,
}
END = 1  # the tokenizer's end token


class PenalizedRequest:
    """As much of SGLang's request as its penalizers and ours read."""

    def __init__(
        self, output_ids: list[int], prompt: list[int] | None = None, **asked: Any
    ) -> None:
        self.rid = f"request-{id(self)}"
        self.origin_input_ids = array("q", prompt or [0])
        self.output_ids = array("q", output_ids)
        self.sampling_params = SamplingParams(**asked)
        self.eos_token_ids: set[int] | None = None
        self.tokenizer = SimpleNamespace(eos_token_id=END, additional_stop_token_ids=None)


@dataclass
class _Batch:
    reqs: list[PenalizedRequest]
    device: str = field(default="cpu")


def penalized_by_sglang(
    logits: torch.Tensor, request: PenalizedRequest, generated: list[int]
) -> torch.Tensor:
    """Logits [V] after SGLang's penalizers have taken in ``generated``, token by token."""
    batch = _Batch([request])
    orchestrator = BatchedPenalizerOrchestrator(logits.shape[0], batch, _PENALIZERS)
    for token in generated:
        orchestrator.cumulate_output_tokens(torch.tensor([token]))
    additive = torch.zeros(1, logits.shape[0])
    orchestrator.accumulate_additive_penalties(additive)
    adjusted = logits + additive[0]
    scaling = orchestrator.accumulate_scaling_penalties()
    if scaling is None:
        return adjusted
    # SGLang's own function is this expression, compiled.
    return torch.where(adjusted < 0, adjusted * scaling[0], adjusted / scaling[0])
