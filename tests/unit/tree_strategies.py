"""Lattices and trees for the property tests, and an enumeration that knows no search."""

from __future__ import annotations

from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

from dflash_sglang.tree import DraftTree, Lattice, build_lattice, build_tree


class TreeCase(NamedTuple):
    lattice: Lattice
    anchors: Tensor
    num_nodes: int
    max_depth: int
    max_children: int

    def build(self) -> DraftTree:
        return build_tree(*self)


def random_lattice(bs: int, g: int, K: int, seed: int, vocab: int = 50) -> Lattice:
    """Edge values are multiples of 2^-8, so that sums along a path are exact in any precision."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(bs, g, K, K, generator=generator) * 2
    scores[:, 0] = scores[:, 0, :1]
    tokens = torch.stack(
        [torch.randperm(vocab, generator=generator)[:K] for _ in range(bs * g)]
    ).view(bs, g, K)
    lattice = build_lattice(scores, tokens)
    return lattice._replace(log_probs=(lattice.log_probs * 256).round() / 256)


@st.composite
def tree_cases(draw: st.DrawFn, max_positions: int = 4, max_candidates: int = 4) -> TreeCase:
    bs = draw(st.integers(1, 3))
    g = draw(st.integers(1, max_positions))
    K = draw(st.integers(1, max_candidates))
    lattice = random_lattice(bs, g, K, seed=draw(st.integers(0, 2**31)))
    anchors = torch.randint(0, 50, (bs,), generator=torch.Generator().manual_seed(bs))
    return TreeCase(
        lattice,
        anchors,
        num_nodes=draw(st.integers(1, 24)),
        max_depth=draw(st.integers(0, g)),
        max_children=draw(st.integers(1, K)),
    )


def paths_of(tree: DraftTree, row: int) -> list[tuple[int, ...]]:
    """Tokens from the root (left out) to each node, in column order."""
    parents, tokens = tree.parents[row].tolist(), tree.tokens[row].tolist()
    paths: list[tuple[int, ...]] = []
    for column in range(int(tree.num_nodes[row])):
        parent = parents[column]
        paths.append((*paths[parent], tokens[column]) if parent >= 0 else ())
    return paths


def best_paths(case: TreeCase, row: int) -> list[tuple[int, ...]]:
    """Enumerate every allowed path, sort by the stated rule, keep the first N."""
    tokens, log_probs = case.lattice.tokens[row], case.lattice.log_probs[row]
    # value, candidate ranks of the path; the tie rule is depth, own rank, then the parent's order
    level: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    everything = list(level)
    for t in range(case.max_depth):
        grown = []
        for order, (value, path) in enumerate(level):
            edges = log_probs[t, path[-1] if path else 0]
            ranked = sorted(range(len(edges)), key=lambda c, e=edges: (-float(e[c]), c))
            for c in ranked[: case.max_children]:
                grown.append((-(value + float(edges[c])), c, order, (*path, c)))
        level = [(-cost, path) for cost, _, _, path in sorted(grown)]
        everything += level
    chosen = sorted(everything, key=lambda node: -node[0])[: case.num_nodes]  # stable: depth first
    return [tuple(int(tokens[t, c]) for t, c in enumerate(path)) for _, path in chosen]
