"""Draft lattices and trees for the blocks of a batch, as the engine would build them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dflash_sglang.tree import DraftTree, Lattice, build_lattice, build_tree

from .data import Batch
from .objective import DraftObjective

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


class BlockLattice(NamedTuple):
    """Lattices of all blocks of a batch, row n = sequence * A + block."""

    lattice: Lattice
    anchors: Tensor  # [n] int64 token ids

    def tree(self, shape: TreeShape) -> DraftTree:
        depth = self.lattice.tokens.shape[1]
        return build_tree(self.lattice, self.anchors, shape.nodes, depth, shape.children)


@torch.no_grad()
def greedy_lattice(objective: DraftObjective, batch: Batch) -> BlockLattice:
    """Noise-free lattice of every block: K best candidates, pair scores if there is a selector."""
    states = objective.block_states(batch)
    selector = objective.drafter.selector
    top_k = CANDIDATES if selector is None else selector.top_k
    unary, candidates = objective.full_logits(states.hidden).topk(top_k, dim=-1)  # [n, g, K]
    scores = unary
    if selector is not None:
        scores = selector.pair_scores(states.hidden, states.anchors, candidates, unary)
    return BlockLattice(build_lattice(scores, candidates), states.anchors)
