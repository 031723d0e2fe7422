"""What requests ask of their own speculation, kept by their row in SGLang's request table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from dflash_sglang.adaptive.acceptance import Floats, Ints
from dflash_sglang.request_limits import parse_limits
from dflash_sglang.tree.build import DraftTree

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req

_NO_TOKEN = -1  # no target says it, so a node that carries it is not accepted


class LimitTable:
    """The bounds of every request that a server can hold at once.

    Args:
        rows: number of requests.
        nodes: nodes that the server verifies a step, root included.
        depth: greatest depth of a draft.
        device: where steps are computed.
    """

    def __init__(self, rows: int, nodes: int, depth: int, device: torch.device | str) -> None:
        self._server = (nodes, depth)
        self._host = np.tile(np.array(self._server), (rows, 1))  # [rows, 2] nodes, depth
        self._device = torch.from_numpy(self._host).to(device, copy=True)
        self._is_bound = np.zeros(rows, dtype=bool)
        self._was_used = False  # whether any request ever had limits

    def admit(self, requests: list[Req]) -> None:
        """New requests, whose limits were found to be valid."""
        nodes, depth = self._server
        for request in requests:
            limits = parse_limits(request.sampling_params.custom_params)
            bounds = (limits.most_nodes(nodes), limits.most_depth(depth))
            row = request.kv.req_pool_idx
            if bounds != tuple(self._host[row]):
                self._host[row] = bounds
                self._device[row] = torch.tensor(bounds)
            self._is_bound[row] = bounds != self._server
            self._was_used |= bounds != self._server

    def may_speculate(self, requests: list[Req]) -> bool:
        """Whether any of these requests may be drafted for."""
        if not self._was_used:
            return True
        return bool((self._host[[request.kv.req_pool_idx for request in requests], 0] > 1).any())

    def bound(self, requests: list[Req], rows: torch.Tensor, tree: DraftTree) -> DraftTree:
        """The same tree, in which what lies beyond a request's limits cannot be accepted.

        Args:
            rows: [bs] int64, the requests' rows on the device.
        """
        if not self._binds([request.kv.req_pool_idx for request in requests]):
            return tree
        nodes, depths = self._device[rows].unbind(1)  # [bs] each
        columns = torch.arange(tree.tokens.shape[1], device=rows.device)
        beyond = (columns >= nodes[:, None]) | (tree.depths > depths[:, None])  # [bs, N]
        return tree._replace(tokens=tree.tokens.masked_fill(beyond, _NO_TOKEN))

    def are_bound(self, rows: Ints) -> NDArray[np.bool_]:
        """Whether these requests, [bs], have limits of their own."""
        return self._is_bound[rows]

    def values(self, rows: Ints, depths: Ints, values: Floats) -> Floats:
        """Values of nodes at these depths, best first, [bs, N] both; 0 beyond the limits."""
        if not self._binds(rows):
            return values
        most_nodes, most_depth = self._host[rows].T[:, :, None]  # [bs, 1] each
        return values * ((np.arange(depths.shape[1]) < most_nodes) & (depths <= most_depth))

    def bounds(self, rows: Ints) -> Ints:
        """Nodes, root included, and depth that these requests allow at most, [bs, 2]."""
        return self._host[rows]

    def tokens(self, rows: Ints, tokens: Floats) -> Floats:
        """Expected tokens a step [bs, W], no more than the limits allow."""
        if not self._binds(rows):
            return tokens
        nodes, depths = self._host[rows].T
        return np.minimum(tokens, np.minimum(nodes, depths + 1)[:, None])

    def _binds(self, rows: Ints | list[int]) -> bool:
        """Whether any of these requests has limits of its own."""
        return self._was_used and bool(self._is_bound[rows].any())
