"""What one decode step hands to the next: the anchors, and where each request now ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from sglang.srt.speculative.dflash_info_v2 import DFlashDraftInputV2
from sglang.srt.speculative.eagle_utils import eagle_prepare_for_decode

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import ScheduleBatch


@dataclass
class DraftState(DFlashDraftInputV2):
    """SGLang's relay for DFLASH, with the room of a tree reserved ahead of each step."""

    def prepare_for_decode(self, batch: ScheduleBatch) -> None:
        """Reserve KV slots for the coming step and the one in flight.

        The reservation for EAGLE's trees is taken: it follows the number of nodes, whereas DFLASH's
        own takes the verified width for the block size.
        """
        if batch.reqs:
            eagle_prepare_for_decode(batch)


def carry(anchors: torch.Tensor, new_seq_lens: torch.Tensor) -> DraftState:
    """State behind a step.

    Args:
        anchors: [bs] the last token of each request, not yet in the cache.
        new_seq_lens: [bs] committed tokens in the cache.
    """
    bs, device = anchors.shape[0], anchors.device
    unused = torch.empty((bs, 0), device=device)  # fields of the EAGLE family's relay
    return DraftState(
        topk_p=unused,
        topk_index=unused,
        hidden_states=unused,
        bonus_tokens=anchors.to(torch.int64),
        new_seq_lens=new_seq_lens.to(torch.int64),
    )
