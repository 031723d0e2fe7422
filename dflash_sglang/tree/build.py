"""From a lattice to the draft tree: the N nodes whose whole path is most likely accepted."""

from __future__ import annotations

import torch
from torch import Tensor

from dflash_sglang.kernels import tree as kernels
from dflash_sglang.kernels.tree import DraftTree
from dflash_sglang.tree.lattice import Lattice, LatticeError


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

    Nothing waits for the device; ``kernels.tree`` says how the nodes are found.

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

    return kernels.build_tree(*lattice, anchors, num_nodes, max_depth, max_children)


def first_nodes(tree: DraftTree, count: int) -> DraftTree:
    """The tree of the ``count`` best nodes, 1 <= count <= N.

    Nodes stand best first, so it is what ``build_tree`` makes when asked for so many.
    """
    if not 1 <= count <= tree.tokens.shape[1]:
        raise LatticeError(f"count must lie between 1 and {tree.tokens.shape[1]}, got {count}")
    tokens, parents, depths, log_values = (part[:, :count].contiguous() for part in tree[:4])
    return DraftTree(tokens, parents, depths, log_values, tree.num_nodes.clamp(max=count))


def bare_root(anchors: Tensor) -> DraftTree:
    """The tree without a draft: a step of plain decoding. anchors: ``[bs]`` int64."""
    tokens = anchors[:, None]  # [bs, 1]
    return DraftTree(
        tokens=tokens,
        parents=torch.full_like(tokens, -1),
        depths=torch.zeros_like(tokens),
        log_values=torch.zeros_like(tokens, dtype=torch.float32),
        num_nodes=torch.ones_like(anchors),
    )
