"""Penalties and minimum lengths at every node of a draft tree, by what the node's own path says.

The rules are those of SGLang's penalizers (0.5.23, ``sampling.penaltylib``): only tokens that the
request generated count, frequency and presence penalties are subtracted, then a repetition penalty
divides positive logits and multiplies negative ones. Sums are formed in the penalizers' order, so
the adjusted logits are the same numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class PenaltyState(NamedTuple):
    """Penalties of a batch, and what each request has generated up to its anchor."""

    frequency: Tensor  # [bs] float32, subtracted once per occurrence
    presence: Tensor  # [bs] float32, subtracted once
    repetition: Tensor  # [bs] float32, divides positive logits and multiplies others; 1 is none
    frequency_sums: Tensor  # [bs, V] float32, the frequency penalty added up per occurrence
    is_present: Tensor  # [bs, V] bool, generated at least once

    def additive(self) -> Tensor:
        """What is added to each logit behind the anchor, [bs, V] float32."""
        return _additive(self.frequency_sums, self.presence[:, None], self.is_present)

    def scaling(self) -> Tensor:
        """The factor of each logit behind the anchor, [bs, V] float32."""
        return _scaling(self.repetition[:, None], self.is_present)


def penalize_nodes(
    logits: Tensor, state: PenaltyState, tokens: Tensor, is_ancestor: Tensor, max_depth: int
) -> None:
    """Penalize every node's logits in place by the anchor's state and the node's path.

    Args:
        logits: ``[bs, N, V]`` float32, the target's logits behind each node.
        state: penalties, with everything up to and including the anchor generated.
        tokens: ``[bs, N]`` int64 tokens of the nodes; column 0 is the anchor.
        is_ancestor: ``[bs, N, N]`` bool, [b, i, j]: node j is node i or one of its ancestors.
        max_depth: greatest depth of a node, hence the most often that a path repeats a token.
    """
    bs, nodes = tokens.shape
    # A path changes the penalties of its own tokens only: everything else takes the anchor's, and
    # the columns of the tree's tokens are then written once more.
    columns = tokens[:, None, :].expand(bs, nodes, nodes)  # [b, i, j]: node j's token, at node i
    at_columns = logits.gather(2, columns)  # [bs, N, N]
    _penalize(logits, state.additive()[:, None], state.scaling()[:, None])

    occurrences = _occurrences(tokens, is_ancestor)
    sums = _added_up(
        state.frequency_sums.gather(1, tokens)[:, None],
        state.frequency[:, None, None],
        occurrences,
        max_depth,
    )
    is_present = state.is_present.gather(1, tokens)[:, None] | (occurrences > 0)
    _penalize(
        at_columns,
        _additive(sums, state.presence[:, None, None], is_present),
        _scaling(state.repetition[:, None, None], is_present),
    )
    logits.scatter_(2, columns, at_columns)


def forbid_tokens(logits: Tensor, columns: Tensor, nodes: Tensor) -> None:
    """Set some tokens' logits to minus infinity at some nodes, in place.

    Args:
        logits: ``[bs, N, V]``.
        columns: ``[bs, S]`` int64 token ids of each request; a row may repeat an id.
        nodes: ``[bs, N]`` bool, the nodes at which the request's tokens are forbidden.
    """
    bs, count = nodes.shape
    columns = columns[:, None, :].expand(bs, count, columns.shape[1])  # [bs, N, S]
    kept = logits.gather(2, columns)
    logits.scatter_(2, columns, kept.masked_fill(nodes[:, :, None], float("-inf")))


def _occurrences(tokens: Tensor, is_ancestor: Tensor) -> Tensor:
    """[bs, N, N] int64, [b, i, j]: how often node j's token stands on the path to node i.

    The anchor is left out: it was generated before, and is part of the state.
    """
    is_same = tokens[:, :, None] == tokens[:, None, :]  # [bs, N, N]
    on_path = is_ancestor.float()
    on_path[:, :, 0] = 0
    return (on_path @ is_same.float()).to(torch.int64)


def _added_up(sums: Tensor, frequency: Tensor, occurrences: Tensor, most: int) -> Tensor:
    """Sums with the frequency penalty added once per occurrence, rounded after each as SGLang's."""
    for count in range(most):
        sums = torch.where(occurrences > count, sums + frequency, sums)
    return sums  # [bs, N, N]


def _additive(frequency_sums: Tensor, presence: Tensor, is_present: Tensor) -> Tensor:
    return -(frequency_sums + torch.where(is_present, presence, 0.0))


def _scaling(repetition: Tensor, is_present: Tensor) -> Tensor:
    return torch.where(is_present, repetition, 1.0)


def _penalize(logits: Tensor, additive: Tensor, scaling: Tensor) -> None:
    logits.add_(additive)
    is_negative = logits < 0
    # Two exact steps in place of one choice between product and quotient: less memory.
    logits.mul_(torch.where(is_negative, scaling, 1.0))
    logits.div_(torch.where(is_negative, 1.0, scaling))
