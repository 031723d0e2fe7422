"""How a draft tree is laid out for the target's verification forward."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dflash_sglang.tree.build import DraftTree
from dflash_sglang.tree.lattice import LatticeError


class TreeLayout(NamedTuple):
    """Positions, visibility and links of the N nodes of each request.

    ``mask[b, i, j]``: node i attends to node j, which is itself or one of its ancestors; padding
    attends to itself only. What node i sees of the committed prefix is not part of the mask.
    """

    positions: Tensor  # [bs, N] int64, prefix length + depth
    mask: Tensor  # [bs, N, N] bool
    first_child: Tensor  # [bs, N] int64, the most valuable child; -1 if there is none
    next_sibling: Tensor  # [bs, N] int64, the sibling next in value; -1 if there is none


def make_layout(tree: DraftTree, prefix_lens: Tensor) -> TreeLayout:
    """Lay the tree out behind the committed prefix.

    Args:
        tree: the draft tree, on any device.
        prefix_lens: ``[bs]`` int64, committed tokens before the anchor = position of the anchor.

    Raises:
        LatticeError: prefix_lens does not fit the tree.
    """
    bs, N = tree.parents.shape
    if tuple(prefix_lens.shape) != (bs,):
        raise LatticeError(
            f"prefix_lens must be [{bs}] to fit the tree, got {list(prefix_lens.shape)}"
        )
    columns = torch.arange(N, device=tree.parents.device)
    is_parent = tree.parents.unsqueeze(2) == columns  # [bs, N, N], [b, i, j]: j is i's parent
    return TreeLayout(
        positions=prefix_lens.unsqueeze(1) + tree.depths,
        mask=_ancestors_or_self(is_parent),
        first_child=_first(is_parent.mT),
        next_sibling=_first(_later_siblings(tree.parents, columns)),
    )


def _ancestors_or_self(is_parent: Tensor) -> Tensor:
    """All that is reached along parents, [bs, N, N] bool; a squaring doubles the steps covered."""
    N = is_parent.shape[-1]
    reach = is_parent.float() + torch.eye(N, device=is_parent.device)
    steps = 1
    while steps < N - 1:
        reach = (reach @ reach).clamp(max=1.0)
        steps *= 2
    return reach > 0


def _later_siblings(parents: Tensor, columns: Tensor) -> Tensor:
    """[bs, N, N] bool, [b, i, j]: j stands behind i and has the same parent."""
    same_parent = parents.unsqueeze(2) == parents.unsqueeze(1)
    has_parent = (parents >= 0).unsqueeze(2)
    return same_parent & has_parent & (columns > columns.unsqueeze(1))


def _first(choices: Tensor) -> Tensor:
    """Lowest true column of each row, or -1: [bs, N, N] bool -> [bs, N] int64."""
    return torch.where(choices.any(dim=-1), choices.int().argmax(dim=-1), -1)
