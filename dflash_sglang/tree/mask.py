"""The attention mask of draft trees in the form that SGLang's accelerator backends read."""

from __future__ import annotations

import torch
from torch import Tensor


def flatten_mask(mask: Tensor, prefix_lens: Tensor, total_prefix: int) -> Tensor:
    """Extend a tree mask over the prefix and flatten it, request after request.

    Request b contributes N rows of ``prefix_lens[b] + N`` columns: every node sees the whole
    prefix, and of the tree itself and its ancestors.

    Args:
        mask: ``[bs, N, N]`` bool, ancestor or self.
        prefix_lens: ``[bs]`` int64 on the mask's device.
        total_prefix: the sum of ``prefix_lens`` or an upper bound, known on the host, so that
            nothing waits for the device.

    Returns:
        ``[N * (total_prefix + bs * N)]`` bool; what an upper bound leaves over stands at the end.
    """
    bs, nodes, _ = mask.shape
    columns = torch.arange(nodes, device=mask.device)
    widths = prefix_lens + nodes  # [bs], columns of one row
    starts = nodes * (widths.cumsum(0) - widths)  # [bs], where a request's rows begin
    row_starts = starts[:, None] + columns * widths[:, None]  # [bs, N]
    places = (row_starts + prefix_lens[:, None])[..., None] + columns  # [bs, N, N]
    flat = torch.ones(nodes * (total_prefix + bs * nodes), dtype=torch.bool, device=mask.device)
    return flat.scatter_(0, places.reshape(-1), mask.reshape(-1))
