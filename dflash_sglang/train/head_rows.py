"""Which rows of the target's output head a training step computes.

With a vocabulary of 262,144 rows the head costs more than the drafter. Serving always uses the
whole head; training may use the rows that the data needs: the most frequent labels, and, fresh each
step, some of the others as negatives. Their logits are raised by log(population / sample), which
keeps the softmax denominator an unbiased estimate of the full one (sampled softmax; Jean et al.,
2015).
Labels outside the frequent rows are ignored by the loss; `label_share` says how few they are.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .data import CaptureDataset
from .errors import TrainingError
from .losses import IGNORED
from .options import TrainOptions


class HeadRows(NamedTuple):
    """Rows of one step. Full vocabulary: ids is None and the correction 0."""

    ids: Tensor | None  # [R] int64 token ids, frequent ones first
    correction: Tensor | None  # [R] fp32, added to the logits
    row_of: Tensor | None  # [V] int64, row of a trained label, IGNORED for every other id

    def labels(self, tokens: Tensor) -> Tensor:
        """Token ids -> rows (IGNORED stays)."""
        if self.row_of is None:
            return tokens
        return torch.where(tokens == IGNORED, IGNORED, self.row_of[tokens.clamp_min(0)])

    def tokens(self, rows: Tensor) -> Tensor:
        """Rows -> token ids."""
        return rows if self.ids is None else self.ids[rows]


class RowSampler:
    """Chooses the rows of every step.

    Args:
        counts: [V] int64 label counts of the data.
        frequent: how many of the most frequent rows every step computes; None means all of them.
        sampled: how many of the others each step draws.

    Raises:
        TrainingError: more rows asked for than there are.
    """

    def __init__(self, counts: Tensor, frequent: int | None, sampled: int, seed: int):
        vocab = counts.numel()
        self.seed, self.sampled = seed, sampled
        self.frequent: Tensor | None = None
        self.label_share = 1.0
        if frequent is None or frequent >= vocab:
            return
        if frequent < 1 or frequent + sampled > vocab:
            raise TrainingError(
                f"{frequent} + {sampled} head rows asked of a vocabulary of {vocab}"
            )
        order = counts.argsort(descending=True, stable=True)
        self.frequent, self.others = order[:frequent], order[frequent:]
        self.label_share = float(counts[self.frequent].sum() / counts.sum().clamp_min(1))
        self._row_of = torch.full((vocab,), IGNORED, dtype=torch.int64)
        self._row_of[self.frequent] = torch.arange(frequent)

    def rows(self, micro_batch: int, device: torch.device) -> HeadRows:
        """The rows of a micro-batch: a function of (seed, micro_batch)."""
        if self.frequent is None:
            return HeadRows(None, None, None)
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + micro_batch)
        # With replacement: duplicates are rare and leave the estimate unbiased.
        drawn = torch.randint(len(self.others), (self.sampled,), generator=generator)
        ids = torch.cat([self.frequent, self.others[drawn]])
        correction = torch.zeros(len(ids))
        if self.sampled:
            correction[len(self.frequent) :] = math.log(len(self.others) / self.sampled)
        return HeadRows(ids.to(device), correction.to(device), self._row_of.to(device))


def row_sampler(dataset: CaptureDataset, options: TrainOptions) -> RowSampler:
    """The sampler of a run; labels are counted only where they choose rows."""
    counts = dataset.label_counts() if options.head_rows else torch.zeros(0)
    return RowSampler(counts, options.head_rows, options.sampled_rows, options.seed)
