"""Decisions that depend on clocks and files are the first rank's, so that all ranks go one way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from sglang.srt.distributed.parallel_state import GroupCoordinator


def first_ranks(choices: tuple[int, ...], group: GroupCoordinator) -> tuple[int, ...]:
    """What the first rank of the group chose; every rank must ask, for as many choices."""
    if group.world_size == 1:
        return choices
    chosen = torch.tensor(choices)
    group.broadcast(chosen, src=0)
    return tuple(chosen.tolist())
