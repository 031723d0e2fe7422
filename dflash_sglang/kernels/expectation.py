"""Tokens that the first nodes of draft trees are expected to bring, for every number of them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dflash_sglang.kernels import library


class NodeWorth(NamedTuple):
    """What multiplies a node's value to its chance, by request, depth and size of the value."""

    log_edges: Tensor  # [S - 1] float64, ascending: logarithms of the values between two sizes
    factors: Tensor  # [bs, D + 1, S] float64


def expected_tokens(
    log_values: Tensor, depths: Tensor, worth: NodeWorth, bounds: Tensor, counts: Tensor
) -> Tensor:
    """Sums over each tree's first nodes of the chances that their paths are accepted.

    The root's chance is 1 and stands for the bonus token; any other node's is its value times what
    that is worth, 1 at most. It is asked in every step of a server that chooses its widths, beside
    a model that leaves nothing in the processor's caches: one call, not a dozen.

    Args:
        log_values: ``[bs, N]`` float32, best nodes first, root and padding included.
        depths: ``[bs, N]`` int64, 0 to D.
        worth: how values become chances.
        bounds: ``[bs, 2]`` int64, nodes, root included, and depth that a request allows; what lies
            beyond counts 0.
        counts: ``[W]`` int64, numbers of first nodes, at least 1; more than N are N.

    Returns:
        ``[bs, W]`` float64.

    Raises:
        ValueError: shapes or dtypes do not fit together (compiled kernels).
        IndexError: a depth is beyond D, or a count below 1 (compiled kernels).
    """
    return torch.ops.dflash2.expected_tokens.default(log_values, depths, *worth, bounds, counts)


def _expected_tokens_reference(
    log_values: Tensor,
    depths: Tensor,
    log_edges: Tensor,
    factors: Tensor,
    bounds: Tensor,
    counts: Tensor,
) -> Tensor:
    bs, N = depths.shape
    values = log_values.double()
    sizes = torch.searchsorted(log_edges, values)  # [bs, N]
    requests = torch.arange(bs, device=depths.device).unsqueeze(1)
    chances = (values.exp() * factors[requests, depths, sizes]).clamp(max=1.0)
    most_nodes, most_depth = bounds.unsqueeze(1).unbind(2)  # [bs, 1] each
    is_allowed = (torch.arange(N, device=depths.device) < most_nodes) & (depths <= most_depth)
    chances = chances * is_allowed
    chances[:, 0] = 1.0
    return chances.cumsum(1)[:, counts.clamp(max=N) - 1]


library.define(
    library.Operator(
        "expected_tokens(Tensor log_values, Tensor depths, Tensor log_edges, Tensor factors, "
        "Tensor bounds, Tensor counts) -> Tensor",
        reference=_expected_tokens_reference,
        fake=lambda log_values, depths, log_edges, factors, bounds, counts: factors.new_empty(
            depths.shape[0], counts.shape[0]
        ),
    )
)
