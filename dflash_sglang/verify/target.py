"""The target's token after each node of the draft tree: argmax, or a draw with shared noise."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Truncation(NamedTuple):
    """Restrictions of the law that is drawn from."""

    top_ks: Tensor  # [bs] int64, at least V for no restriction
    top_ps: Tensor  # [bs] float32, 1 for no restriction


def greedy_tokens(logits: Tensor) -> Tensor:
    """Argmax over the vocabulary, the lowest id in a tie: [bs, N, V] -> [bs, N] int64."""
    return logits.argmax(dim=-1)


def sampled_tokens(
    logits: Tensor,
    temperatures: Tensor,
    noise: Tensor,
    depths: Tensor,
    truncation: Truncation | None = None,
) -> Tensor:
    """One draw after every node; nodes of one depth share the noise, since they share a position.

    The walk visits one node a position, and which one depends on noise of earlier positions only:
    what it emits has the target's law whatever tree was proposed, and equals what plain decoding
    with the same noise emits.

    The draw is that of SGLang's seeded sampler (0.5.23, PyTorch backend), number for number:

    - Without truncation: argmax over tokens of log softmax(logits / temperature) + noise[token].
    - With top-k or top-p: probabilities are sorted, ranks from top_k on are dropped, and ranks
      before which more than top_p has accumulated; then argmax over *ranks* of log p + noise[rank].
      SGLang takes this way for every request of a batch in which any request truncates (greedy ones
      count, as top_k = 1); here it is a request's own parameters that decide.
    - min-p: SGLang refuses it together with a seed, so there is nothing to equal.

    Args:
        logits: ``[bs, N, V]`` adjusted logits (penalties, bias, grammar), float32.
        temperatures: ``[bs]`` float32, 0 for greedy.
        noise: ``[bs, P, V]`` float64 Gumbel noise by depth (``gumbel_noise`` at the anchor's
            position + 0, 1, ...), P greater than the deepest node.
        depths: ``[bs, N]`` int64 depths of the nodes.
        truncation: top-k and top-p of every request.

    Returns:
        ``[bs, N]`` int64 tokens.
    """
    bs = logits.shape[0]
    rows = torch.arange(bs, device=logits.device).unsqueeze(1)  # [bs, 1]
    noise = noise[rows, depths]  # [bs, N, V]
    is_greedy = (temperatures <= 0).unsqueeze(1)  # [bs, 1]
    scale = temperatures.masked_fill(temperatures <= 0, 1.0).view(bs, 1, 1)
    probs = (logits.float() / scale).softmax(dim=-1)

    drawn = (probs.log().double() + noise).argmax(dim=-1)
    if truncation is not None:
        truncates = (truncation.top_ks < logits.shape[-1]) | (truncation.top_ps < 1)  # [bs]
        drawn = torch.where(truncates.unsqueeze(1), _draw_by_rank(probs, noise, truncation), drawn)
    return torch.where(is_greedy, greedy_tokens(logits), drawn)


def _draw_by_rank(probs: Tensor, noise: Tensor, truncation: Truncation) -> Tensor:
    """[bs, N] int64; the noise's columns are ranks."""
    ranked = probs.sort(dim=-1, descending=True)  # [bs, N, V]
    ranks = torch.arange(probs.shape[-1], device=probs.device)
    mass_before = ranked.values.cumsum(dim=-1) - ranked.values
    dropped = (ranks >= truncation.top_ks.view(-1, 1, 1)) | (
        mass_before > truncation.top_ps.view(-1, 1, 1)
    )
    # In double precision before the logarithm, as SGLang does on this way only.
    log_probs = ranked.values.masked_fill(dropped, 0.0).double().log()
    rank = (log_probs + noise).argmax(dim=-1, keepdim=True)  # [bs, N, 1]
    return ranked.indices.gather(-1, rank).squeeze(-1)
