"""The candidate selector: a low-rank score for every pair of neighbouring candidates."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dflash_sglang.config import SelectorConfig
from dflash_sglang.drafter.primitives import Linear


class CandidateSelector(nn.Module):
    """``S_t(a, b) = U_t(b) + <A[a] * (P h_t), B[b]>`` over the K best candidates of each position.

    Trained to rank inside the noise-free top K only: for any other token its codebooks say nothing.
    Tensors: ``predecessor_codebook [V, r]``, ``successor_codebook [V, r]``,
    ``hidden_projection.weight [r, D]``.
    """

    def __init__(self, hidden_size: int, vocab_size: int, selector: SelectorConfig) -> None:
        super().__init__()
        self.top_k = selector.top_k
        self.predecessor_codebook = nn.Parameter(torch.empty(vocab_size, selector.rank))
        self.successor_codebook = nn.Parameter(torch.empty(vocab_size, selector.rank))
        self.hidden_projection = Linear(hidden_size, selector.rank, bias=False)

    def reset_parameters(self) -> None:
        """Pair terms start at zero: the selector begins as the unary ranking."""
        with torch.no_grad():
            self.predecessor_codebook.normal_()
            self.successor_codebook.zero_()
            self.hidden_projection.weight.normal_(std=self.hidden_projection.in_features**-0.5)

    def pair_scores(
        self, hidden: Tensor, anchors: Tensor, candidates: Tensor, unary: Tensor
    ) -> Tensor:
        """Scores of candidate c at position t after candidate a at position t - 1.

        Parameters: ``hidden [bs, g, D]``; ``anchors [bs]`` int64; ``candidates [bs, g, K]`` int64;
        ``unary [bs, g, K]`` float32, the candidates' unary logits.
        Returns ``[bs, g, K, K]`` float32, indexed [b, t, a, c]; at t = 0 every row a is the anchor.
        """
        before_first = anchors[:, None, None].expand_as(candidates[:, :1])
        predecessors = torch.cat((before_first, candidates[:, :-1]), dim=1)  # [bs, g, K]
        gate = self.hidden_projection(hidden)[:, :, None]  # [bs, g, 1, r]
        left = self.predecessor_codebook[predecessors] * gate  # [bs, g, K, r]
        right = self.successor_codebook[candidates]  # [bs, g, K, r]
        return unary[:, :, None] + (left @ right.transpose(-1, -2)).float()
