"""Anchors: the response positions that blocks start from, drawn anew for every epoch."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

UNUSED = -1
"""Anchor of a block that pads the batch."""


def anchor_range(response_start: int, length: int) -> range:
    """All anchors of a sample: response tokens that have at least one token behind them.

    The first one is the response's first token: prefill delivers it before any block is drafted.
    """
    return range(response_start, length - 1)


def draw_anchors(
    response_start: int, length: int, count: int, seed: int, epoch: int, sample: int
) -> Tensor:
    """Distinct random anchors of one sample, ascending, [count] int64, padded with UNUSED.

    Depends on (seed, epoch, sample) only, so an interrupted run resumes with the same anchors.
    Source: DFlash, arXiv 2602.06036 (random anchors of the response).
    """
    choices = anchor_range(response_start, length)
    rng = np.random.default_rng([seed, epoch, sample])
    drawn = rng.choice(len(choices), size=min(count, len(choices)), replace=False)
    anchors = torch.full((count,), UNUSED, dtype=torch.int64)
    anchors[: len(drawn)] = torch.from_numpy(np.sort(drawn)) + response_start
    return anchors
