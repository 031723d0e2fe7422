"""Which nodes of the lattice a search has chosen: what the two searches hand to ``build_tree``."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Selection(NamedTuple):
    """N columns a request, best node first; columns from ``num_nodes`` on are padding."""

    candidates: Tensor  # [bs, N] int64, index into the K candidates; 0 for root and padding
    parents: Tensor  # [bs, N] int64, column of the parent; -1 for root and padding
    depths: Tensor  # [bs, N] int64; 0 for root and padding
    log_values: Tensor  # [bs, N] float32; 0 for the root, -inf for padding
    num_nodes: Tensor  # [bs] int64, root included
