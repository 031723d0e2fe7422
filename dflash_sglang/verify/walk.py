"""From the target's tokens to the accepted path."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dflash_sglang.tree.build import DraftTree


class Verdict(NamedTuple):
    """What one verification step delivers; D is the depth up to which was walked."""

    node_path: Tensor  # [bs, D+1] int64, columns of the accepted nodes, root first; -1 behind
    accept_lens: Tensor  # [bs] int64, accepted draft tokens + 1 for the bonus token
    tokens: Tensor  # [bs, D+1] int64, accepted draft tokens, then the bonus token; 0 behind
    bonus: Tensor  # [bs] int64, the last delivered token: the next anchor


def walk(tree: DraftTree, target_tokens: Tensor, max_depth: int) -> Verdict:
    """Follow from the root the child that carries the target's token; the first miss is the bonus.

    Greedy and sampled requests walk alike, only the way the target's tokens were chosen differs.
    A node is accepted if it and all its ancestors carry the token that the target put after their
    parent; siblings carry distinct tokens, so the accepted nodes form one path. No token id is
    special here, not the mask token's either.

    Args:
        tree: the draft tree, N nodes a request.
        target_tokens: ``[bs, N]`` int64, the token that the target puts after each node.
        max_depth: D >= 0; deeper nodes are not accepted.

    Raises:
        ValueError: target_tokens does not fit the tree.
    """
    if target_tokens.shape != tree.tokens.shape:
        raise ValueError(
            f"target_tokens must be {list(tree.tokens.shape)} to fit the tree, "
            f"got {list(target_tokens.shape)}"
        )
    accepted = _accepted_nodes(tree, target_tokens, max_depth)  # [bs, N] bool
    bs, N = accepted.shape
    accept_lens = accepted.sum(dim=1)

    # There is one accepted node a depth. Its column goes to the slot of its depth, the columns of
    # all other nodes to one more slot, which is then cut off.
    slots = torch.where(accepted, tree.depths, max_depth + 1)  # [bs, N]
    columns = torch.arange(N, device=slots.device).expand(bs, N)
    node_path = slots.new_full((bs, max_depth + 2), -1).scatter_(1, slots, columns)
    node_path = node_path[:, : max_depth + 1]

    # A child is accepted because it carries the target's token: what is delivered is all target.
    delivered = target_tokens.gather(1, node_path.clamp(min=0)).masked_fill(node_path < 0, 0)
    bonus = delivered.gather(1, accept_lens.unsqueeze(1) - 1).squeeze(1)
    return Verdict(node_path, accept_lens, delivered, bonus)


def _accepted_nodes(tree: DraftTree, target_tokens: Tensor, max_depth: int) -> Tensor:
    """[bs, N] bool: the node and all ancestors match; a round doubles the ancestors looked at."""
    ancestor = tree.parents.clamp(min=0)  # [bs, N]; the root is its own
    accepted = tree.tokens == target_tokens.gather(1, ancestor)
    accepted &= (tree.parents >= 0) & (tree.depths <= max_depth)  # padding has no parent
    accepted[:, 0] = True
    covered = 1
    while covered < max_depth:
        accepted &= accepted.gather(1, ancestor)
        ancestor = ancestor.gather(1, ancestor)
        covered *= 2
    return accepted
