"""The lattice of sampled requests: candidates that win under the noise the target will draw with.

The target's draw at a position is argmax_c log p(c) + G(c), with noise G that the drafter knows.
Where the draft's law q is near p, the argmax of log q(c) + G(c) is the same token, so candidates
are ranked by that sum over the whole vocabulary.

The selector was trained to rank inside the noise-free top K only, its codebooks say nothing true
about any other token. So it may share out the unary mass of the top K among them, and no more:

    log q(c | a) = log sum of q over the top K + log softmax of the pair scores    inside the top K
                 = unary log softmax                                               outside

Source: Gumbel coupling (arXiv 2408.07978), exponential races (arXiv 2504.15475).
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from dflash_sglang.tree.lattice import (
    Lattice,
    LatticeError,
    draft_temperatures,
    with_entropy,
)


class NoisyCandidates(NamedTuple):
    """W = K + M candidates a position: the noise-free top K, then the M best others under noise."""

    tokens: Tensor  # [bs, g, W] int64, distinct
    unary_logits: Tensor  # [bs, g, W] float32, as the head gave them: what the selector scores
    log_probs: Tensor  # [bs, g, W] float32, unary log softmax at the request's temperature
    noise: Tensor  # [bs, g, W] float32
    top_k: int  # K


def noisy_candidates(
    unary_logits: Tensor, noise: Tensor, temperatures: Tensor, top_k: int, num_others: int
) -> NoisyCandidates:
    """Find the candidates of every position; greedy requests get K good ones and M idle ones.

    Args:
        unary_logits: ``[bs, g, V]`` float, the drafter's logits.
        noise: ``[bs, g, V]`` the target's noise for the same draws: position t of the lattice is
            drawn at absolute position anchor + t.
        temperatures: ``[bs]`` float, 0 for greedy.
        top_k: K >= 1, the width the selector was trained with.
        num_others: M >= 0, candidates from outside the top K.

    Raises:
        LatticeError: shapes do not fit, or K + M exceeds the vocabulary.
    """
    bs, _, V = unary_logits.shape
    if noise.shape != unary_logits.shape:
        raise LatticeError(
            f"noise must be {list(unary_logits.shape)} as the unary logits, got {list(noise.shape)}"
        )
    if top_k < 1 or num_others < 0 or top_k + num_others > V:
        raise LatticeError(
            f"top_k >= 1 and num_others >= 0 must fit into a vocabulary of {V} together, "
            f"got {top_k} and {num_others}"
        )
    unary_logits = unary_logits.float()
    scale = draft_temperatures(temperatures).view(bs, 1, 1)
    log_probs = (unary_logits / scale).log_softmax(dim=-1)  # [bs, g, V]

    inside = unary_logits.topk(top_k, dim=-1).indices  # [bs, g, K]
    perturbed = (log_probs + noise.float()).scatter(-1, inside, -inf)
    outside = perturbed.topk(num_others, dim=-1).indices  # [bs, g, M]
    tokens = torch.cat((inside, outside), dim=-1)
    return NoisyCandidates(
        tokens,
        unary_logits.gather(-1, tokens),
        log_probs.gather(-1, tokens),
        noise.gather(-1, tokens).float(),
        top_k,
    )


def build_noisy_lattice(
    candidates: NoisyCandidates,
    pair_scores: Tensor | None,
    temperatures: Tensor,
    beta: float | Tensor = 1.0,
    entropy_weight: float = 0.0,
) -> Lattice:
    """Edge values under shared noise; a greedy request's are those of ``build_lattice``.

    Given the noise, a node is no longer worth q(c | a): the best perturbed candidate is accepted
    unless q and p differ by enough to change the winner. A softmax over the perturbed scores
    stands for that chance.

    Args:
        candidates: what ``noisy_candidates`` found.
        pair_scores: ``[bs, g, W, W]`` the selector's scores of all W candidates (its successor
            columns beyond K are not read), or None for a drafter without a selector.
        temperatures: ``[bs]`` float, 0 for greedy.
        beta: inverse temperature of the softmax, > 0: a number, or ``[g]`` or ``[bs, g]`` where it
            was calibrated from acceptances.
        entropy_weight: lambda as in ``build_lattice``, with the entropy of the value's softmax.

    Returns:
        A ``Lattice`` of W candidates. The M others of a greedy request have edges of -inf.

    Raises:
        LatticeError: pair_scores do not fit the candidates.
    """
    bs, g, W = candidates.tokens.shape
    if pair_scores is None:
        pair_scores = candidates.unary_logits.unsqueeze(2)  # [bs, g, 1, W]
    elif tuple(pair_scores.shape) != (bs, g, W, W):
        raise LatticeError(
            f"pair_scores must be {[bs, g, W, W]} to fit the candidates, "
            f"got {list(pair_scores.shape)}"
        )
    K = candidates.top_k
    scale = draft_temperatures(temperatures).view(bs, 1, 1, 1)
    unary = candidates.log_probs.unsqueeze(2)  # [bs, g, 1, W]
    shares = (pair_scores[..., :K].float() / scale).log_softmax(dim=-1)  # [bs, g, W | 1, K]

    log_q_inside = unary[..., :K].logsumexp(-1, keepdim=True) + shares
    log_q_outside = unary[..., K:].expand(*shares.shape[:-1], W - K)
    log_q = torch.cat((log_q_inside, log_q_outside), dim=-1)  # [bs, g, W | 1, W]

    perturbed = log_q + candidates.noise.unsqueeze(2)
    sampled = (_per_position(beta, perturbed) * perturbed).log_softmax(dim=-1)
    greedy = pad(shares, (0, W - K), value=-inf)
    is_greedy = (temperatures <= 0).view(bs, 1, 1, 1)
    log_values = with_entropy(torch.where(is_greedy, greedy, sampled), entropy_weight)
    return Lattice(candidates.tokens, log_values.expand(bs, g, W, W))


def _per_position(beta: float | Tensor, like: Tensor) -> Tensor:
    """beta as [1 | bs, g | 1, 1, 1], so that it multiplies edges."""
    beta = torch.as_tensor(beta, dtype=like.dtype, device=like.device)
    return beta.reshape(1, 1, 1, 1) if beta.dim() == 0 else beta[..., None, None]
