"""Classical speculative sampling, as the yardstick for shared noise.

It is lossless in law, but not seed for seed, and wants the probabilities the children were drawn
with. A chain is the method of Leviathan et al. (arXiv 2211.17192): accept with probability
min(1, p/q), else draw from the residual. With several children a node it is recursive rejection
sampling without replacement (Jeon et al., arXiv 2402.14160). No serving path uses it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dflash_sglang.tree.build import DraftTree
from dflash_sglang.tree.layout import TreeLayout, make_layout
from dflash_sglang.verify.walk import Verdict


def rejection_walk(
    tree: DraftTree,
    draft_probs: Tensor,
    target_probs: Tensor,
    max_depth: int,
    generator: torch.Generator | None = None,
) -> Verdict:
    """Walk down the tree, offering the children of each node one after the other.

    The emitted tokens follow the target's law if the children of every node were drawn from its
    ``draft_probs`` one after the other without replacement, in the order of their columns, and the
    shape of the tree does not depend on the tokens drawn. (A candidate chosen for its rank was
    drawn from a law that puts everything on it.)

    Args:
        tree: N nodes a request.
        draft_probs: ``[bs, N, V]`` q(. | node), the law of the node's first child.
        target_probs: ``[bs, N, V]`` p(. | node).
        max_depth: D >= 0; deeper nodes are not offered.
        generator: source of the coins, on the tensors' device.

    Raises:
        ValueError: the probabilities do not fit the tree or each other.
    """
    if draft_probs.shape != target_probs.shape or draft_probs.shape[:2] != tree.tokens.shape:
        raise ValueError(
            f"draft_probs and target_probs must both be {[*tree.tokens.shape, 'V']}, "
            f"got {list(draft_probs.shape)} and {list(target_probs.shape)}"
        )
    bs = tree.tokens.shape[0]
    rows = torch.arange(bs, device=tree.tokens.device)
    layout = make_layout(tree, torch.zeros_like(rows))
    node = torch.zeros_like(rows)
    delivered = tree.tokens.new_zeros(bs, max_depth + 1)
    node_path = torch.full_like(delivered, -1)
    for depth in range(max_depth + 1):
        node_path[rows, depth] = node
        child = layout.first_child[rows, node] if depth < max_depth else torch.full_like(node, -1)
        q, p = draft_probs[rows, node], target_probs[rows, node]  # copies
        child, token = _offer_children(tree, layout, rows, child, q, p, generator)
        delivered[rows, depth] = token
        # Passes over the vocabulary are what costs: requests whose walk is over take no part.
        goes_on = child >= 0
        rows, node = rows[goes_on], child[goes_on]

    accept_lens = (node_path >= 0).sum(dim=1)
    bonus = delivered.gather(1, accept_lens.unsqueeze(1) - 1).squeeze(1)
    return Verdict(node_path, accept_lens, delivered, bonus)


def _offer_children(
    tree: DraftTree,
    layout: TreeLayout,
    rows: Tensor,  # [n], the requests
    child: Tensor,  # [n], the first child; -1 if there is none
    q: Tensor,  # [n, V], overwritten
    p: Tensor,  # [n, V], overwritten
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor]:
    """The accepted child (-1 if there is none) and the token emitted after the node, [n] each."""
    accepted = torch.full_like(child, -1)
    offered = (child >= 0).nonzero().squeeze(1)  # which of the n have a child on offer
    child = child[offered]
    while offered.numel():
        token = tree.tokens[rows[offered], child]
        coin = torch.rand(child.shape, generator=generator, device=p.device, dtype=p.dtype)
        wins = coin * q[offered, token] < p[offered, token]
        accepted[offered[wins]] = child[wins]

        offered, token, child = offered[~wins], token[~wins], child[~wins]
        p[offered] = _residual(p[offered], q[offered])
        sibling = layout.next_sibling[rows[offered], child]
        remains = sibling >= 0
        offered, token, child = offered[remains], token[remains], sibling[remains]
        q[offered] = _without(q[offered], token)

    tokens = tree.tokens[rows, accepted.clamp(min=0)]
    missed = accepted < 0
    if bool(missed.any()):
        tokens[missed] = torch.multinomial(p[missed], 1, generator=generator).squeeze(1)
    return accepted, tokens


def _residual(p: Tensor, q: Tensor) -> Tensor:
    """What p has beyond q, normalised; p itself where nothing is left (q = p never rejects)."""
    beyond = (p - q).clamp(min=0)
    mass = beyond.sum(dim=-1, keepdim=True)
    return torch.where(mass > 0, beyond / mass, p)


def _without(q: Tensor, token: Tensor) -> Tensor:
    """q given that the next draw is another token."""
    rest = q.scatter(1, token.unsqueeze(1), 0.0)
    return rest / rest.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(q.dtype).tiny)
