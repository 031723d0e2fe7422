"""Reference of ``build_tree`` on accelerators: the same choice by operations of fixed shape."""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor
from torch.nn.functional import pad

from dflash_sglang.kernels.selection import Selection


def beam_tree(log_probs: Tensor, num_nodes: int, max_depth: int, max_children: int) -> Selection:
    """Keep the N best nodes of each depth, then the N best of all. Arguments as in ``build_tree``.

    A beam of N loses nothing: a chosen node is among the N best of its depth, and so are its
    ancestors. No shape depends on a value, so nothing waits for the device.
    """
    edges = _allowed_edges(log_probs, max_children)  # [bs, g, K, K]
    bs = edges.shape[0]
    rows = torch.arange(bs, device=edges.device).unsqueeze(1)  # [bs, 1]

    # The pool holds the beams of all depths one after the other; `parents` index it.
    values = edges.new_zeros(bs, 1)
    candidates = torch.zeros_like(values, dtype=torch.int64)
    pool = [(candidates, candidates, candidates, values)]  # the root: candidate, parent, depth 0
    beam_start = 0
    for depth in range(1, max_depth + 1):
        width = values.shape[1]
        # Candidates outermost: the stable sort breaks ties by candidate first, parent second.
        grown = (values.unsqueeze(2) + edges[rows, depth - 1, candidates]).mT  # [bs, K, width]
        ranked = grown.flatten(1).sort(dim=1, descending=True, stable=True)  # [bs, K * width]
        values, chosen = ranked.values[:, :num_nodes], ranked.indices[:, :num_nodes]
        candidates, parents = chosen // width, chosen % width + beam_start  # [bs, <= N]
        pool.append((candidates, parents, torch.full_like(chosen, depth), values))
        beam_start += width

    columns = [torch.cat(parts, dim=1) for parts in zip(*pool, strict=True)]  # 4 x [bs, P]
    return _best_of_pool(*columns, num_nodes=num_nodes)


def _allowed_edges(log_probs: Tensor, max_children: int) -> Tensor:
    """Edge values with all but the ``max_children`` best of each row, and NaN, set to -inf."""
    edges = log_probs.nan_to_num(nan=-inf, neginf=-inf)
    best = edges.sort(dim=-1, descending=True, stable=True).indices[..., :max_children]
    return torch.full_like(edges, -inf).scatter(-1, best, edges.gather(-1, best))


def _best_of_pool(*columns: Tensor, num_nodes: int) -> Selection:
    """The N best nodes of the pool by falling value; parents become columns of the result."""
    missing = max(num_nodes - columns[0].shape[1], 0)
    candidates, parents, depths = (pad(column, (0, missing)) for column in columns[:3])
    values = pad(columns[3], (0, missing), value=-inf)  # [bs, P'], P' >= N

    order = values.sort(dim=1, descending=True, stable=True).indices  # [bs, P']
    column_of = order.argsort(dim=1)  # the inverse permutation: pool index -> column
    order = order[:, :num_nodes]
    log_values = values.gather(1, order)  # [bs, N]
    is_node = log_values > -inf

    parent_columns = column_of.gather(1, parents.gather(1, order)).masked_fill(~is_node, -1)
    parent_columns[:, 0] = -1  # the root
    return Selection(
        candidates=candidates.gather(1, order).masked_fill(~is_node, 0),
        parents=parent_columns,
        depths=depths.gather(1, order).masked_fill(~is_node, 0),
        log_values=log_values,
        num_nodes=is_node.sum(dim=1),
    )
