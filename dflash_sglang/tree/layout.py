"""How a draft tree is laid out for the target's verification forward."""

from __future__ import annotations

from torch import Tensor

from dflash_sglang.kernels import tree as kernels
from dflash_sglang.kernels.tree import DraftTree, TreeLayout
from dflash_sglang.tree.lattice import LatticeError


def make_layout(tree: DraftTree, prefix_lens: Tensor) -> TreeLayout:
    """Lay the tree out behind the committed prefix.

    Args:
        tree: the draft tree, on any device.
        prefix_lens: ``[bs]`` int64, committed tokens before the anchor = position of the anchor.

    Raises:
        LatticeError: prefix_lens does not fit the tree.
    """
    bs = tree.parents.shape[0]
    if tuple(prefix_lens.shape) != (bs,):
        raise LatticeError(
            f"prefix_lens must be [{bs}] to fit the tree, got {list(prefix_lens.shape)}"
        )
    return kernels.tree_layout(tree.parents, tree.depths, prefix_lens)
