"""From the target's tokens to the accepted path, and from the path to the moves it asks for."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dflash_sglang.kernels import library


class Verdict(NamedTuple):
    """What one verification step delivers; D is the depth up to which was walked."""

    node_path: Tensor  # [bs, D+1] int64, columns of the accepted nodes, root first; -1 behind
    accept_lens: Tensor  # [bs] int64, accepted draft tokens + 1 for the bonus token
    tokens: Tensor  # [bs, D+1] int64, accepted draft tokens, then the bonus token; 0 behind
    bonus: Tensor  # [bs] int64, the last delivered token: the next anchor


class CommitMoves(NamedTuple):
    """What the accepted path asks for, L rows a request, request after request.

    A row behind the path moves its slot onto itself and sends its hidden state to slot 0, SGLang's
    bin for unwanted rows.
    """

    targets: Tensor  # [bs * L] int64, KV slots that the path is moved to
    sources: Tensor  # [bs * L] int64, KV slots that it stands in
    rows: Tensor  # [bs * L] int64, rows of the path in the batch of all nodes
    positions: Tensor  # [bs * L] int64, absolute positions of the path
    context_slots: Tensor  # [bs * L] int64, slots of the drafter's context
    new_lens: Tensor  # [bs] int64, committed tokens after the step


def walk_tree(
    tokens: Tensor, parents: Tensor, depths: Tensor, target_tokens: Tensor, max_depth: int
) -> Verdict:
    """Follow from the root the child that carries the target's token; the first miss is the bonus.

    Args:
        tokens: ``[bs, N]`` int64, siblings distinct.
        parents: ``[bs, N]`` int64; a parent precedes its children, -1 for root and padding.
        depths: ``[bs, N]`` int64, of the same tree.
        target_tokens: ``[bs, N]`` int64, the token that the target puts after each node.
        max_depth: D >= 0; deeper nodes are not accepted.

    Raises:
        ValueError: shapes or dtypes do not fit.
    """
    return Verdict(*torch.ops.dflash2.walk_tree(tokens, parents, depths, target_tokens, max_depth))


def commit_path(
    node_path: Tensor, slots: Tensor, prefix_lens: Tensor, num_nodes: int
) -> CommitMoves:
    """Where the KV and the hidden states of the accepted path go.

    Args:
        node_path: ``[bs, L]`` int64, a verdict's.
        slots: ``[bs, W]`` int64 KV slots of the step, W >= L and W >= num_nodes: node i of the tree
            was written to column i, and the path belongs into the first columns.
        prefix_lens: ``[bs]`` int64, committed tokens before the step.
        num_nodes: N, rows a request in the batch of all nodes.

    Raises:
        ValueError: shapes or dtypes do not fit, or a node is outside of the tree.
    """
    return CommitMoves(*torch.ops.dflash2.commit_path(node_path, slots, prefix_lens, num_nodes))


def _walk_reference(
    tokens: Tensor, parents: Tensor, depths: Tensor, target_tokens: Tensor, max_depth: int
) -> tuple[Tensor, ...]:
    accepted = _accepted_nodes(tokens, parents, depths, target_tokens, max_depth)  # [bs, N]
    bs, N = accepted.shape
    accept_lens = accepted.sum(dim=1)

    # There is one accepted node a depth. Its column goes to the slot of its depth, the columns of
    # all other nodes to one more slot, which is then cut off.
    slots = torch.where(accepted, depths, max_depth + 1)  # [bs, N]
    columns = torch.arange(N, device=slots.device).expand(bs, N)
    node_path = slots.new_full((bs, max_depth + 2), -1).scatter_(1, slots, columns)
    node_path = node_path[:, : max_depth + 1].contiguous()

    # A child is accepted because it carries the target's token: what is delivered is all target.
    delivered = target_tokens.gather(1, node_path.clamp(min=0)).masked_fill(node_path < 0, 0)
    bonus = delivered.gather(1, accept_lens.unsqueeze(1) - 1).squeeze(1)
    return node_path, accept_lens, delivered, bonus


def _accepted_nodes(
    tokens: Tensor, parents: Tensor, depths: Tensor, target_tokens: Tensor, max_depth: int
) -> Tensor:
    """[bs, N] bool: the node and all ancestors match; a round doubles the ancestors looked at."""
    ancestor = parents.clamp(min=0)  # [bs, N]; the root is its own
    accepted = tokens == target_tokens.gather(1, ancestor)
    accepted &= (parents >= 0) & (depths <= max_depth)  # padding has no parent
    accepted[:, 0] = True
    covered = 1
    while covered < max_depth:
        accepted &= accepted.gather(1, ancestor)
        ancestor = ancestor.gather(1, ancestor)
        covered *= 2
    return accepted


def _commit_reference(
    node_path: Tensor, slots: Tensor, prefix_lens: Tensor, num_nodes: int
) -> tuple[Tensor, ...]:
    bs, length = node_path.shape
    if slots.shape[1] < max(length, num_nodes):
        raise ValueError(
            f"commit_path expects slots for {num_nodes} nodes and {length} accepted tokens, "
            f"got {slots.shape[1]}"
        )
    accepted = node_path >= 0  # [bs, L], the root included
    path = node_path.clamp(min=0)
    ordered = slots[:, :length].clone()  # where the path belongs
    sources = torch.where(accepted, slots.gather(1, path), ordered)
    first_rows = torch.arange(bs, device=path.device)[:, None] * num_nodes
    positions = prefix_lens[:, None] + torch.arange(length, device=path.device)
    columns = (
        ordered,
        sources,
        first_rows + path,
        positions,
        torch.where(accepted, ordered, 0),
    )
    return *(column.reshape(-1) for column in columns), prefix_lens + accepted.sum(dim=1)


def _walk_fake(
    tokens: Tensor, parents: Tensor, depths: Tensor, target_tokens: Tensor, max_depth: int
) -> tuple[Tensor, ...]:
    bs = tokens.shape[0]
    path, row = (bs, max_depth + 1), (bs,)
    return tuple(tokens.new_empty(shape) for shape in (path, row, path, row))


def _commit_fake(
    node_path: Tensor, slots: Tensor, prefix_lens: Tensor, _: int
) -> tuple[Tensor, ...]:
    columns = [node_path.new_empty(node_path.numel()) for _ in range(5)]
    return *columns, prefix_lens.new_empty(prefix_lens.shape)


library.define(
    library.Operator(
        "walk_tree(Tensor tokens, Tensor parents, Tensor depths, Tensor target_tokens, "
        "int max_depth) -> (Tensor, Tensor, Tensor, Tensor)",
        reference=_walk_reference,
        fake=_walk_fake,
    )
)
library.define(
    library.Operator(
        "commit_path(Tensor node_path, Tensor slots, Tensor prefix_lens, int num_nodes) "
        "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
        reference=_commit_reference,
        fake=_commit_fake,
    )
)
