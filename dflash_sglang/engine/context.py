"""The drafter's context: the target's hidden states, injected before a draft reads them.

Steps that decode plainly append a token a request, and an injection costs nearly as much for one
token as for many. So their hidden states wait, and go in together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from sglang.srt.speculative.spec_utils import draft_tp_context

from dflash_sglang.engine.drafting import BlockDrafter

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.speculative.draft_worker_common import DraftParallelLayout

_MOST_WAITING = 16  # steps; bounds their memory


class Features(NamedTuple):
    """Tapped hidden states of committed tokens, and where the drafter keeps what it makes of them.

    Slot 0 is SGLang's bin for unwanted rows.
    """

    hidden: torch.Tensor  # [T, n * D] the target's
    slots: torch.Tensor  # [T] int64, KV slots
    positions: torch.Tensor  # [T] int64, absolute


class DrafterContext:
    """Writes the drafter's keys and values of committed tokens.

    Args:
        drafter: whose context it is.
        parallel_layout: SGLang's placement of it.
    """

    def __init__(self, drafter: BlockDrafter, parallel_layout: DraftParallelLayout) -> None:
        self._drafter = drafter
        self._parallel_layout = parallel_layout
        self._waiting: list[Features] = []
        self._requests: list[str] = []  # whose features wait

    def append(self, features: Features) -> None:
        """Inject features, behind all that wait."""
        self.catch_up()
        self._inject(features)

    def append_later(self, batch: ScheduleBatch, features: Features) -> None:
        """Let features of a plain decode step wait.

        They wait only while the same requests go on decoding: the slots of one that has ended may
        be given to another.
        """
        requests = [request.rid for request in batch.reqs]
        if requests != self._requests or len(self._waiting) == _MOST_WAITING:
            self.catch_up()
        self._requests = requests
        # They outlive the step: its tensors may lie where a graph's next replay writes.
        self._waiting.append(Features(*(part.clone() for part in features)))

    def catch_up(self) -> None:
        """Inject all that waits, as a draft needs it."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            self._inject(Features(*(torch.cat(parts) for parts in zip(*waiting, strict=True))))

    @torch.inference_mode()
    def _inject(self, features: Features) -> None:
        with draft_tp_context(self._parallel_layout):
            self._drafter.inject(features.hidden, features.slots, features.positions)
