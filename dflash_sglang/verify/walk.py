"""From the target's tokens to the accepted path."""

from __future__ import annotations

from torch import Tensor

from dflash_sglang.kernels.walk import Verdict, walk_tree
from dflash_sglang.tree.build import DraftTree


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
    return walk_tree(tree.tokens, tree.parents, tree.depths, target_tokens, max_depth)
