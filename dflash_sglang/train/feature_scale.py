"""Tap features brought to one scale while a drafter trains, and the scale folded away afterwards.

Channels of a residual stream differ by orders of magnitude (a few "massive" ones hold most of it:
Sun et al., arXiv 2402.17762; Gemma's grow with depth as well). A projection that starts with equal
weights sees little beside those, and AdamW's steps, equal for all weights, are too coarse for their
columns and too small for the others. So the projection learns on features of unit size; a served
drafter reads the target's own, with the scale multiplied into the projection's columns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dflash_sglang.drafter import DFlash2Drafter

from .data import CaptureDataset

# Samples that are measured: a channel's size needs no more.
_SAMPLES = 64


def feature_scale(dataset: CaptureDataset) -> Tensor:
    """What brings every feature channel of the responses to a root mean square of 1.

    Returns [n_taps * D] fp32; 1 for a channel that is always 0. Prompts do not count: a text's
    first token has features unlike any other's.
    """
    stride = -(-len(dataset) // _SAMPLES)
    squares, count = torch.zeros(()), 0
    for index in range(0, len(dataset), stride):
        sample = dataset[index]
        features = sample.features[sample.response_start :].float()  # [t, n_taps * D]
        squares, count = squares + features.square().sum(dim=0), count + len(features)
    size = (squares / count).sqrt()
    return torch.where(size > 0, 1 / size, torch.ones_like(size))


@torch.no_grad()
def fold(drafter: DFlash2Drafter, scale: Tensor) -> None:
    """In place: a drafter of scaled features becomes one of the target's own features."""
    drafter.fc.weight.mul_(scale)  # [D, n_taps * D]


@torch.no_grad()
def unfold(drafter: DFlash2Drafter, scale: Tensor) -> None:
    """In place: a drafter of the target's own features becomes one of scaled features."""
    drafter.fc.weight.div_(scale)
