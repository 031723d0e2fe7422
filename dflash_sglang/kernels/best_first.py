"""Reference of ``build_tree`` on the host: exact best-first search over the lattice."""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dflash_sglang.kernels.selection import Selection


class _Family(NamedTuple):
    """A taken node as a parent: what is needed to put its children on the frontier."""

    value: float
    edges: list[float]  # log q of every candidate after this node
    children: list[int]  # candidates, best first


# Sorts by cost (the negated value), then depth, candidate and parent: the rule that breaks ties.
# The last field is the node's rank among its siblings.
_Entry = tuple[float, int, int, int, int]


def best_first_tree(
    log_probs: Tensor, num_nodes: int, max_depth: int, max_children: int
) -> Selection:
    """Choose the best nodes, one request after the other. Arguments as in ``build_tree``."""
    edges = log_probs.detach().numpy()  # [bs, g, K, K]
    bs = edges.shape[0]
    nodes = np.zeros((3, bs, num_nodes), dtype=np.int64)  # candidate, parent, depth
    nodes[1] = -1
    log_values = np.full((bs, num_nodes), -inf, dtype=np.float32)
    counts = [
        _search(edges[b], nodes[:, b], log_values[b], max_depth, max_children) for b in range(bs)
    ]
    candidates, parents, depths = torch.from_numpy(nodes).unbind(0)
    return Selection(
        candidates, parents, depths, torch.from_numpy(log_values), torch.tensor(counts)
    )


def _search(
    log_probs: np.ndarray,  # [g, K, K]
    nodes: np.ndarray,  # [3, N], filled here
    log_values: np.ndarray,  # [N], filled here
    max_depth: int,
    max_children: int,
) -> int:
    """Take the best node of the frontier until there are N; returns how many there were.

    Only the best child of a taken node and its next sibling enter the frontier: every other node
    is worse than one of them, so at most 2N entries are ever pushed.
    """
    limit = log_values.shape[0]
    taken: list[tuple[int, int, int]] = []
    families: list[_Family] = []
    frontier: list[_Entry] = [(0.0, 0, 0, -1, 0)]

    while frontier and len(taken) < limit:
        cost, depth, candidate, parent, rank = heappop(frontier)
        edges = log_probs[depth, candidate].tolist() if depth < max_depth else []
        families.append(_Family(-cost, edges, _best_children(edges, max_children)))
        _push(frontier, families[-1], depth + 1, len(taken), rank=0)
        if parent >= 0:
            _push(frontier, families[parent], depth, parent, rank + 1)
        taken.append((candidate, parent, depth))

    nodes[:, : len(taken)] = np.array(taken).T
    log_values[: len(taken)] = [family.value for family in families]
    return len(taken)


def _best_children(edges: list[float], max_children: int) -> list[int]:
    """Candidates by falling edge, the lower index first in a tie; none that is -inf or NaN."""
    possible = [c for c, edge in enumerate(edges) if edge > -inf]
    return sorted(possible, key=edges.__getitem__, reverse=True)[:max_children]


def _push(frontier: list[_Entry], family: _Family, depth: int, parent: int, rank: int) -> None:
    """Put the parent's ``rank``-th best child on the frontier, if it has that many."""
    if rank < len(family.children):
        candidate = family.children[rank]
        value = family.value + family.edges[candidate]
        heappush(frontier, (-value, depth, candidate, parent, rank))
