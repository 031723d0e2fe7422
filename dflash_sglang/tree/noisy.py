"""The lattice of sampled requests: candidates that win under the noise the target will draw with.

The target's draw at a position is argmax_c log p(c) + G(c), with noise G that the drafter knows but
log p that it does not: its own law q is what is left of p when everything that it cannot see is
averaged out. So q is flatter than p, and log q(c) + G(c) would let the noise decide what the target
has decided already. Take the part of log p that the drafter cannot see as an error of scale s, the
*doubt*, with the law of the noise itself (Gumbel):

    log p = w log q + s E,    w = sqrt(1 + s^2)

where w makes the target's draw follow q again once E and G are averaged out (noises of scales s and
1 add to one of scale w, to within their shape). Given G, token c is then drawn with the chance

    softmax((w log q + G) / s)

No doubt (s near 0) is the argmax of log q + G; endless doubt is q without noise.

The selector was trained to rank inside the noise-free top K only, its codebooks say nothing true
about any other token. So it may share out the unary mass of the top K among them, and no more:

    log q(c | a) = log sum of q over the top K + log softmax of the pair scores    inside the top K
                 = unary log softmax                                               outside

Source: Gumbel coupling (arXiv 2408.07978), exponential races (arXiv 2504.15475); the doubt is this
project's own, measured in docs/losslessness.md.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from dflash_sglang.kernels import candidates as kernels
from dflash_sglang.kernels.noise import NoiseKeys
from dflash_sglang.tree.lattice import Lattice, LatticeError, draft_temperatures, with_entropy
from dflash_sglang.tree.truncation import Truncation, truncate_draft

DEFAULT_DOUBT = 3.0
_LEAST_LOG_CHANCE = -10.0  # one surprise does not settle a doubt


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
    doubt: Tensor  # [bs] float32


def noisy_candidates(
    unary_logits: Tensor,
    noise: NoiseKeys,
    temperatures: Tensor,
    num_inside: int,
    num_others: int,
    truncation: Truncation | None = None,
    is_coupled: Tensor | None = None,
    doubt: float | Tensor = DEFAULT_DOUBT,
) -> NoisyCandidates:
    """Find the candidates of every position.

    Args:
        unary_logits: ``[bs, g, V]`` float, the drafter's logits.
        noise: keys of the target's noise for the same draws, at least g positions: position t of
            the lattice is drawn at absolute position anchor + t.
        temperatures: ``[bs]`` float, 0 for greedy, also where SGLang says top-k 1 instead.
        num_inside: K >= 1, the width the selector was trained with.
        num_others: M >= 0, candidates from outside the top K.
        truncation: top-k and top-p of the requests; what is out under q is no candidate.
        is_coupled: ``[bs]`` bool, requests that are drawn with this noise, keyed by token; all but
            greedy ones if left out. The others get their noise-free K and M idle candidates.
        doubt: s > 0: a number, or ``[bs]`` float where it was calibrated.

    Raises:
        LatticeError: shapes do not fit, K + M exceeds the vocabulary, or the doubt is not positive.
    """
    bs, g, V = unary_logits.shape
    if noise.seeds.shape[0] != bs or noise.positions.shape[1] < g:
        raise LatticeError(
            f"noise must have {bs} seeds and {g} positions to fit the unary logits, "
            f"got {noise.seeds.shape[0]} and {noise.positions.shape[1]}"
        )
    if num_inside < 1 or num_others < 0 or num_inside + num_others > V:
        raise LatticeError(
            f"num_inside >= 1 and num_others >= 0 must fit into a vocabulary of {V} together, "
            f"got {num_inside} and {num_others}"
        )
    scale = draft_temperatures(temperatures)
    doubts = _doubts(doubt, scale)
    columns = kernels.noisy_candidates(
        unary_logits.float(),
        scale,
        _weight(doubts),
        noise.seeds,
        noise.positions[:, :g],
        truncation,
        num_inside,
        num_others,
    )
    coupled = temperatures > 0 if is_coupled is None else is_coupled
    return NoisyCandidates(*columns, num_inside, scale, coupled, truncation, doubts)


def _doubts(doubt: float | Tensor, scale: Tensor) -> Tensor:
    """Of every request, [bs] float32."""
    if isinstance(doubt, Tensor):
        return doubt.float()
    if doubt <= 0:
        raise LatticeError(f"doubt must be positive, got {doubt}")
    return torch.full_like(scale, doubt)


def _weight(doubt: Tensor) -> Tensor:
    return (1 + doubt**2).sqrt()


class NoisyEdges(NamedTuple):
    """What the drafter says about every edge between candidates, and the noise behind each."""

    tokens: Tensor  # [bs, g, W] int64
    log_q: Tensor  # [bs, g, W, W] float32, log q(c | a) at the request's temperature
    noise: Tensor  # [bs, g, W] float32
    noise_free: Tensor  # [bs, g, W, W] float32, the edges of requests that are not coupled
    is_coupled: Tensor  # [bs] bool
    doubt: Tensor  # [bs] float32


def noisy_edges(candidates: NoisyCandidates, pair_scores: Tensor | None) -> NoisyEdges:
    """Condition the candidates on their predecessors.

    Args:
        candidates: what ``noisy_candidates`` found.
        pair_scores: ``[bs, g, W, W]`` the selector's scores of all W candidates (its successor
            columns beyond K are not read), or None for a drafter without a selector.

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
    return NoisyEdges(
        tokens=candidates.tokens,
        log_q=_conditional(candidates, shares).expand(bs, g, W, W),
        noise=candidates.noise,
        noise_free=pad(shares, (0, W - K), value=-inf).expand(bs, g, W, W),
        is_coupled=candidates.is_coupled,
        doubt=candidates.doubt,
    )


def build_noisy_lattice(edges: NoisyEdges, entropy_weight: float = 0.0) -> Lattice:
    """Edge values under shared noise; a request that is not coupled gets its noise-free lattice.

    Given the noise, a node is no longer worth q(c | a) but the chance above.

    Args:
        edges: from ``noisy_edges``.
        entropy_weight: lambda as in ``build_lattice``, with the entropy of the value's softmax.

    Returns:
        A ``Lattice`` of W candidates. A request that is not coupled has the tokens and edges of
        ``build_lattice`` among the first K, and edges of -inf to the M others.
    """
    doubt = edges.doubt.view(-1, 1, 1, 1)
    perturbed = _weight(doubt) * edges.log_q + edges.noise.unsqueeze(2)  # [bs, g, W, W]
    coupled = (perturbed / doubt).log_softmax(dim=-1)
    log_values = torch.where(edges.is_coupled.view(-1, 1, 1, 1), coupled, edges.noise_free)
    return Lattice(edges.tokens, with_entropy(log_values, entropy_weight))


def doubt_evidence(
    edges: NoisyEdges, delivered: Tensor, accept_lens: Tensor, doubts: Tensor
) -> Tensor:
    """How likely each doubt made the tokens that a step delivered.

    Args:
        edges: what the step drafted from.
        delivered: ``[bs, D + 1]`` int64 tokens of the step, from depth 1 on.
        accept_lens: ``[bs]`` int64, how many of them count.
        doubts: ``[S]`` float32.

    Returns:
        ``[bs, S]`` float32 log likelihoods, summed over the delivered tokens that were candidates;
        0 for requests that are not coupled.
    """
    g = min(edges.tokens.shape[1], delivered.shape[1])
    tokens, log_q, noise = edges.tokens[:, :g], edges.log_q[:, :g], edges.noise[:, :g]
    is_drawn = tokens == delivered[:, :g, None]  # [bs, g, W]
    is_known = is_drawn.any(dim=-1) & edges.is_coupled[:, None]
    is_known &= torch.arange(g, device=is_known.device) < accept_lens[:, None]  # [bs, g]
    drawn = is_drawn.int().argmax(dim=-1)  # [bs, g], candidates
    # Every row of position 0 follows the anchor; an accepted path runs through candidates only.
    before = drawn.roll(1, dims=1)[:, :, None, None].expand(-1, -1, 1, tokens.shape[2])
    log_q = log_q.gather(2, before).squeeze(2)  # [bs, g, W]
    perturbed = _weight(doubts) * log_q.unsqueeze(-1) + noise.unsqueeze(-1)
    log_chances = (perturbed / doubts).log_softmax(dim=2)  # [bs, g, W, S]
    chosen = log_chances.gather(2, drawn[:, :, None, None].expand(-1, -1, 1, len(doubts)))
    chosen = chosen.squeeze(2).clamp(min=_LEAST_LOG_CHANCE)  # [bs, g, S]
    return chosen.masked_fill(~is_known.unsqueeze(-1), 0.0).sum(dim=1)


def _conditional(candidates: NoisyCandidates, shares: Tensor) -> Tensor:
    """log q(c | a), [bs, g, W | 1, W], from how the top K share out their mass."""
    log_q, K = candidates.log_q.unsqueeze(2), candidates.num_inside  # [bs, g, 1, W]
    inside = log_q[..., :K].logsumexp(dim=-1, keepdim=True) + shares
    inside = truncate_draft(inside, candidates.truncation)
    outside = log_q[..., K:].expand(*shares.shape[:-1], -1)
    return torch.cat((inside, outside), dim=-1)
