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

from dflash_sglang.kernels import candidates as kernels
from dflash_sglang.tree.lattice import Lattice, LatticeError, draft_temperatures, with_entropy
from dflash_sglang.tree.truncation import Truncation, truncate_draft


class NoisyCandidates(NamedTuple):
    """W = K + M candidates a position: the noise-free top K, then the M best others under noise."""

    tokens: Tensor  # [bs, g, W] int64, distinct
    unary_logits: Tensor  # [bs, g, W] float32, as the head gave them: what the selector scores
    log_q: Tensor  # [bs, g, W] float32, unary log softmax; -inf for others that truncation drops
    noise: Tensor  # [bs, g, W] float32
    num_inside: int  # K
    scale: Tensor  # [bs] float32, what logits and scores are divided by
    is_coupled: Tensor  # [bs] bool, requests that are drawn with this noise
    truncation: Truncation | None


def noisy_candidates(
    unary_logits: Tensor,
    noise: Tensor,
    temperatures: Tensor,
    num_inside: int,
    num_others: int,
    truncation: Truncation | None = None,
    is_coupled: Tensor | None = None,
) -> NoisyCandidates:
    """Find the candidates of every position.

    Args:
        unary_logits: ``[bs, g, V]`` float, the drafter's logits.
        noise: ``[bs, g, V]`` the target's noise for the same draws: position t of the lattice is
            drawn at absolute position anchor + t.
        temperatures: ``[bs]`` float, 0 for greedy, also where SGLang says top-k 1 instead.
        num_inside: K >= 1, the width the selector was trained with.
        num_others: M >= 0, candidates from outside the top K.
        truncation: top-k and top-p of the requests; what is out under q is no candidate.
        is_coupled: ``[bs]`` bool, requests that are drawn with this noise, keyed by token; all but
            greedy ones if left out. The others get their noise-free K and M idle candidates.

    Raises:
        LatticeError: shapes do not fit, or K + M exceeds the vocabulary.
    """
    if noise.shape != unary_logits.shape:
        raise LatticeError(
            f"noise must be {list(unary_logits.shape)} as the unary logits, got {list(noise.shape)}"
        )
    _check_counts(unary_logits, num_inside, num_others)
    scale = draft_temperatures(temperatures)
    columns = kernels.candidates_with_noise(
        unary_logits.float(), noise.float(), scale, truncation, num_inside, num_others
    )
    coupled = temperatures > 0 if is_coupled is None else is_coupled
    return NoisyCandidates(*columns, num_inside, scale, coupled, truncation)


def seeded_candidates(
    unary_logits: Tensor,
    seeds: Tensor,
    positions: Tensor,
    temperatures: Tensor,
    num_inside: int,
    num_others: int,
    truncation: Truncation | None = None,
    is_coupled: Tensor | None = None,
) -> NoisyCandidates:
    """:func:`noisy_candidates` with the noise of seeds ``[bs]`` and positions ``[bs, g]``, int64.

    The noise is never in memory as a whole. Position t of the lattice has the absolute position
    anchor + t. The other arguments are the same.
    """
    _check_counts(unary_logits, num_inside, num_others)
    scale = draft_temperatures(temperatures)
    columns = kernels.noisy_candidates(
        unary_logits.float(), scale, seeds, positions, truncation, num_inside, num_others
    )
    coupled = temperatures > 0 if is_coupled is None else is_coupled
    return NoisyCandidates(*columns, num_inside, scale, coupled, truncation)


def _check_counts(unary_logits: Tensor, num_inside: int, num_others: int) -> None:
    V = unary_logits.shape[-1]
    if num_inside < 1 or num_others < 0 or num_inside + num_others > V:
        raise LatticeError(
            f"num_inside >= 1 and num_others >= 0 must fit into a vocabulary of {V} together, "
            f"got {num_inside} and {num_others}"
        )


def build_noisy_lattice(
    candidates: NoisyCandidates,
    pair_scores: Tensor | None,
    beta: float | Tensor = 1.0,
    entropy_weight: float = 0.0,
) -> Lattice:
    """Edge values under shared noise; a request that is not coupled gets its noise-free lattice.

    Given the noise, a node is no longer worth q(c | a): the best perturbed candidate is accepted
    unless q and p differ by enough to change the winner. A softmax over the perturbed scores
    stands for that chance.

    Args:
        candidates: what ``noisy_candidates`` found.
        pair_scores: ``[bs, g, W, W]`` the selector's scores of all W candidates (its successor
            columns beyond K are not read), or None for a drafter without a selector.
        beta: inverse temperature of the softmax, > 0: a number, or ``[g]`` or ``[bs, g]`` where it
            was calibrated from acceptances.
        entropy_weight: lambda as in ``build_lattice``, with the entropy of the value's softmax.

    Returns:
        A ``Lattice`` of W candidates. A request that is not coupled has the tokens and edges of
        ``build_lattice`` among the first K, and edges of -inf to the M others.

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
    K = candidates.num_inside
    scores = pair_scores[..., :K].float() / candidates.scale.view(bs, 1, 1, 1)
    shares = scores.log_softmax(dim=-1)  # [bs, g, W | 1, K]

    perturbed = _conditional(candidates, shares) + candidates.noise.unsqueeze(2)
    if isinstance(beta, Tensor):
        beta = beta[..., None, None]  # [g | bs, g, 1, 1]
    coupled = (beta * perturbed).log_softmax(dim=-1)
    noise_free = pad(shares, (0, W - K), value=-inf)
    log_values = torch.where(candidates.is_coupled.view(bs, 1, 1, 1), coupled, noise_free)
    return Lattice(candidates.tokens, with_entropy(log_values, entropy_weight).expand(bs, g, W, W))


def _conditional(candidates: NoisyCandidates, shares: Tensor) -> Tensor:
    """log q(c | a), [bs, g, W | 1, W], from how the top K share out their mass."""
    log_q, K = candidates.log_q.unsqueeze(2), candidates.num_inside  # [bs, g, 1, W]
    inside = log_q[..., :K].logsumexp(dim=-1, keepdim=True) + shares
    inside = truncate_draft(inside, candidates.truncation)
    outside = log_q[..., K:].expand(*shares.shape[:-1], -1)
    return torch.cat((inside, outside), dim=-1)
