"""The shape of a draft tree."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from dflash_sglang.tree import DraftTree, Lattice, build_tree

CANDIDATES = 16
"""Candidates a position for a drafter without a selector, which names none."""


class TreeShape(NamedTuple):
    """How many nodes go to verification, and how many children a node may have."""

    name: str
    nodes: int  # root included
    children: int

    @staticmethod
    def chain(block_size: int) -> TreeShape:
        return TreeShape("chain", block_size, 1)

    @staticmethod
    def tree(nodes: int) -> TreeShape:
        return TreeShape(f"tree{nodes}", nodes, CANDIDATES)

    def build(self, lattice: Lattice, anchors: Tensor) -> DraftTree:
        """The tree of this shape, as deep as the lattice allows; anchors [bs] int64."""
        return build_tree(lattice, anchors, self.nodes, lattice.tokens.shape[1], self.children)
