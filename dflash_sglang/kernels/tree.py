"""Draft trees: the best nodes of a lattice, and their layout for verification."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dflash_sglang.kernels import library
from dflash_sglang.kernels.beam import beam_tree
from dflash_sglang.kernels.best_first import best_first_tree


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


class TreeLayout(NamedTuple):
    """Positions, visibility and links of the N nodes of each request.

    ``mask[b, i, j]``: node i attends to node j, which is itself or one of its ancestors; padding
    attends to itself only. What node i sees of the committed prefix is not part of the mask.
    """

    positions: Tensor  # [bs, N] int64, prefix length + depth
    mask: Tensor  # [bs, N, N] bool
    first_child: Tensor  # [bs, N] int64, the most valuable child; -1 if there is none
    next_sibling: Tensor  # [bs, N] int64, the sibling next in value; -1 if there is none


def build_tree(
    tokens: Tensor,
    log_probs: Tensor,
    anchors: Tensor,
    num_nodes: int,
    max_depth: int,
    max_children: int,
) -> DraftTree:
    """The N nodes of the lattice with the largest values; their ancestors are among them.

    A node's value is the sum of the edges along its path. Ties are broken by depth, then candidate
    index, then the parent's order. The compiled kernel is an exact best-first search everywhere;
    the reference is one on the CPU and a beam that holds every node of the answer elsewhere.

    Args:
        tokens: ``[bs, g, K]`` int64, candidates of each position.
        log_probs: ``[bs, g, K, K]`` float32 edges (predecessor, candidate) <= 0 of any strides;
            the root's children follow row 0 of position 0. -inf and NaN are never taken.
        anchors: ``[bs]`` int64, the tokens at the roots.
        num_nodes: N >= 1, root included.
        max_depth: depth of the deepest node allowed, 0 <= max_depth <= g.
        max_children: children of a node at most, >= 1.

    Raises:
        ValueError: shapes or dtypes do not fit, or a limit is out of range (compiled kernels).
    """
    return DraftTree(
        *torch.ops.dflash2.build_tree(
            tokens, log_probs, anchors, num_nodes, max_depth, max_children
        )
    )


def tree_layout(parents: Tensor, depths: Tensor, prefix_lens: Tensor) -> TreeLayout:
    """Lay trees out behind their committed prefixes.

    Args:
        parents: ``[bs, N]`` int64; a parent precedes its children, -1 for root and padding.
        depths: ``[bs, N]`` int64.
        prefix_lens: ``[bs]`` int64, position of the anchor.

    Raises:
        ValueError: shapes or dtypes do not fit, or a parent does not precede its child (compiled
            CPU kernels).
    """
    return TreeLayout(*torch.ops.dflash2.tree_layout(parents, depths, prefix_lens))


def ancestor_bits(parents: Tensor) -> Tensor:
    """The mask of :func:`tree_layout` as bits: ``[bs, N]`` -> ``[bs, N, ceil(N / 64)]`` int64.

    Bit ``j % 64`` of word ``j // 64`` of node i: node j is i itself or one of its ancestors.
    """
    return torch.ops.dflash2.ancestor_bits(parents)


def _build_reference(
    tokens: Tensor,
    log_probs: Tensor,
    anchors: Tensor,
    num_nodes: int,
    max_depth: int,
    max_children: int,
) -> tuple[Tensor, ...]:
    search = best_first_tree if log_probs.device.type == "cpu" else beam_tree
    chosen = search(log_probs, num_nodes, max_depth, max_children)
    # A node of depth d stands at position d - 1 of the lattice; root and padding carry the anchor.
    rows = torch.arange(anchors.shape[0], device=anchors.device).unsqueeze(1)  # [bs, 1]
    drafted = tokens[rows, (chosen.depths - 1).clamp(min=0), chosen.candidates]  # [bs, N]
    node_tokens = torch.where(chosen.depths > 0, drafted, anchors.unsqueeze(1))
    return (
        node_tokens,
        chosen.parents.contiguous(),
        chosen.depths.contiguous(),
        chosen.log_values,
        chosen.num_nodes,
    )


def _layout_reference(parents: Tensor, depths: Tensor, prefix_lens: Tensor) -> tuple[Tensor, ...]:
    columns = torch.arange(parents.shape[1], device=parents.device)
    is_parent = parents.unsqueeze(2) == columns  # [bs, N, N], [b, i, j]: j is i's parent
    return (
        prefix_lens.unsqueeze(1) + depths,
        _ancestors_or_self(is_parent),
        _first(is_parent.mT),
        _first(_later_siblings(parents, columns)),
    )


def _bits_reference(parents: Tensor) -> Tensor:
    columns = torch.arange(parents.shape[1], device=parents.device)
    mask = _ancestors_or_self(parents.unsqueeze(2) == columns)  # [bs, N, N]
    words = [part.long() << (columns[: part.shape[-1]]) for part in mask.split(64, dim=-1)]
    return torch.stack([word.sum(dim=-1) for word in words], dim=-1)


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


def _build_fake(
    tokens: Tensor, log_probs: Tensor, anchors: Tensor, num_nodes: int, *_: int
) -> tuple[Tensor, ...]:
    bs = anchors.shape[0]
    columns = [tokens.new_empty(bs, num_nodes) for _ in range(3)]
    return (*columns, log_probs.new_empty(bs, num_nodes), tokens.new_empty(bs))


def _layout_fake(parents: Tensor, depths: Tensor, prefix_lens: Tensor) -> tuple[Tensor, ...]:
    bs, N = parents.shape
    mask = parents.new_empty(bs, N, N, dtype=torch.bool)
    return parents.new_empty(bs, N), mask, parents.new_empty(bs, N), parents.new_empty(bs, N)


library.define(
    library.Operator(
        "build_tree(Tensor tokens, Tensor log_probs, Tensor anchors, int num_nodes, "
        "int max_depth, int max_children) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
        reference=_build_reference,
        fake=_build_fake,
    )
)
library.define(
    library.Operator(
        "tree_layout(Tensor parents, Tensor depths, Tensor prefix_lens) "
        "-> (Tensor, Tensor, Tensor, Tensor)",
        reference=_layout_reference,
        fake=_layout_fake,
    )
)
library.define(
    library.Operator(
        "ancestor_bits(Tensor parents) -> Tensor",
        reference=_bits_reference,
        fake=lambda parents: parents.new_empty(*parents.shape, -(-parents.shape[1] // 64)),
    )
)
