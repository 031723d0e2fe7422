"""From a lattice to the draft tree: the N nodes whose whole path is most likely accepted."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dflash_sglang.tree.beam import beam_tree
from dflash_sglang.tree.best_first import best_first_tree
from dflash_sglang.tree.lattice import Lattice, LatticeError


class DraftTree(NamedTuple):
    """N nodes a request; column 0 is the root, which carries the anchor.

    Nodes stand in the order of their value, best first, so a parent precedes its children and the
    first n columns are exactly the tree of n nodes. Padding (columns from ``num_nodes`` on) carries
    the anchor, parent -1, depth 0 and value ``-inf``. Siblings carry distinct tokens.
    """

    tokens: Tensor  # [bs, N] int64
    parents: Tensor  # [bs, N] int64, column of the parent; -1 for root and padding
    depths: Tensor  # [bs, N] int64; 0 for root and padding
    log_values: Tensor  # [bs, N] float32, log of the chance that the whole path is accepted
    num_nodes: Tensor  # [bs] int64, root included


def build_tree(
    lattice: Lattice,
    anchors: Tensor,
    num_nodes: int,
    max_depth: int,
    max_children: int,
) -> DraftTree:
    """Take the N best nodes of the lattice; their ancestors are among them.

    The value of a node is the product of the edge probabilities along its path. It never grows
    along a path, so the N largest values form a tree, and no other tree of N nodes has a larger
    expected accepted length under q. Ties are broken by depth, then candidate index, then the
    parent's order, so that the tree is a function of its input.

    On the CPU an exact best-first search runs on the host. On other devices a beam of N nodes a
    depth, which holds every node of the answer, chooses the same tree without waiting for the
    device (the two may part where two values differ by less than float32 rounding).

    Args:
        lattice: candidates and edge values.
        anchors: ``[bs]`` int64, the tokens at the roots.
        num_nodes: N >= 1, root included; what the lattice cannot fill is padding.
        max_depth: depth of the deepest node allowed, 0 <= max_depth <= g.
        max_children: only the best ``max_children`` >= 1 candidates of a node become its
            children; 1 makes a chain.

    Raises:
        LatticeError: a limit is out of range, or the anchors do not fit the lattice.
    """
    bs, g, _ = lattice.tokens.shape
    if tuple(anchors.shape) != (bs,):
        raise LatticeError(f"anchors must be [{bs}] to fit the lattice, got {list(anchors.shape)}")
    if num_nodes < 1:
        raise LatticeError(f"num_nodes counts the root and must be at least 1, got {num_nodes}")
    if not 0 <= max_depth <= g:
        raise LatticeError(
            f"max_depth must lie between 0 and the lattice's {g} positions, got {max_depth}"
        )
    if max_children < 1:
        raise LatticeError(f"max_children must be at least 1, got {max_children}")

    search = best_first_tree if lattice.tokens.device.type == "cpu" else beam_tree
    chosen = search(lattice, num_nodes, max_depth, max_children)

    # A node of depth d stands at position d - 1 of the lattice; root and padding carry the anchor.
    rows = torch.arange(bs, device=anchors.device).unsqueeze(1)  # [bs, 1]
    drafted = lattice.tokens[rows, (chosen.depths - 1).clamp(min=0), chosen.candidates]  # [bs, N]
    tokens = torch.where(chosen.depths > 0, drafted, anchors.unsqueeze(1))
    return DraftTree(tokens, chosen.parents, chosen.depths, chosen.log_values, chosen.num_nodes)
