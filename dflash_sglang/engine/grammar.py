"""Grammars on a tree: which tokens each node's own path may be followed by.

SGLang walks a request's grammar over its tree on the host, depth first, and takes every step back.
A node whose path breaks the grammar, and what stands behind it, gets no mask: its parent's mask
already keeps the walk from going there. So does the end of a text: nothing behind a token that
completes the grammar is delivered.

The host must know the trees, and the tokens of the step before. Both are copied while the target
runs, so the only wait is the one that SGLang's grammars take in any case.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sglang.srt.speculative.spec_utils import GrammarTree, build_grammar_vocab_mask

from dflash_sglang.tree.build import DraftTree
from dflash_sglang.tree.layout import TreeLayout

if TYPE_CHECKING:
    from sglang.srt.constrained.base_grammar_backend import GrammarMask
    from sglang.srt.managers.schedule_batch import ScheduleBatch


def copy_trees(batch: ScheduleBatch, tree: DraftTree, layout: TreeLayout) -> GrammarTree | None:
    """Start the copy of a batch's trees to the host; None where no request has a grammar."""
    if not batch.has_grammar:
        return None
    return GrammarTree.from_device(layout.first_child, layout.next_sibling, tree.tokens)


def node_masks(
    batch: ScheduleBatch, trees: GrammarTree, barrier: Callable[[], None] | None
) -> GrammarMask | None:
    """Masks of all nodes, [bs * N, V] in the grammar backend's own form.

    Args:
        trees: from :func:`copy_trees`, made before the target's forward was started.
        barrier: SGLang's, which takes the tokens of the step before into the grammars.
    """
    return build_grammar_vocab_mask(
        reqs=batch.reqs,
        tree=trees,
        sampling_info=batch.sampling_info,
        device=batch.device,
        barrier=barrier,
    )
