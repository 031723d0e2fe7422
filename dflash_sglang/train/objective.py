"""From a batch to the loss: the drafter under the target's frozen embedding and head."""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dflash_sglang.drafter import DFlash2Drafter
from dflash_sglang.drafter.vocabulary import spread_logits

from .anchors import UNUSED
from .cores import PackedCore, packed_core
from .data import Batch
from .feature_scale import fold
from .head_rows import HeadRows
from .losses import (
    IGNORED,
    decayed_cross_entropy,
    inject_truth,
    position_weights,
    selector_cross_entropy,
    true_row_scores,
)


class LossTerms(NamedTuple):
    """Scalars of one micro-batch; without a selector its two are 0."""

    total: Tensor  # what is minimised
    unary: Tensor  # decayed cross-entropy
    selector: Tensor  # cross-entropy over the candidates
    coverage: Tensor  # share of labels among the K best unary candidates


class Context(NamedTuple):
    """What the target's features of S sequences inject into the draft layers."""

    keys: Tensor  # [L, S, T, Hkv, d]
    values: Tensor  # [L, S, T, Hkv, d]


class BlockStates(NamedTuple):
    """Draft hidden states of every block of a batch, row n = sequence * A + block."""

    hidden: Tensor  # [n, g, D] of the positions that draft tokens
    anchors: Tensor  # [n] int64 anchor token ids


class DraftObjective(nn.Module):
    """The drafter and everything frozen that its loss needs.

    Args:
        drafter: trained in place.
        embedding, head, head_bias: the target's, [V, D], [V, D], [V] or None; kept as they are,
            applied functionally, no part of the state dict.
        selector_weight: factor of the selector's loss.
        core: attention core; None takes the best of the device.
        feature_scale: [n_taps * D], what the features are multiplied with before the drafter reads
            them (see feature_scale.py); None leaves them as they are.
        draft_vocabulary: [R] int64 tokens that drafts are made of (see drafter/vocabulary.py); None
            for all. Training does not know it.
    """

    embedding: Tensor
    head: Tensor
    weights: Tensor
    feature_scale: Tensor | None
    draft_vocabulary: Tensor | None

    def __init__(
        self,
        drafter: DFlash2Drafter,
        embedding: Tensor,
        head: Tensor,
        head_bias: Tensor | None = None,
        selector_weight: float = 1.0,
        core: type[PackedCore] | None = None,
        feature_scale: Tensor | None = None,
        draft_vocabulary: Tensor | None = None,
    ):
        super().__init__()
        self.drafter = drafter
        self.selector_weight = selector_weight
        self.core = core
        self.register_buffer("embedding", embedding.detach(), persistent=False)
        self.register_buffer("head", head.detach(), persistent=False)
        self.register_buffer("head_bias", head_bias, persistent=False)
        self.register_buffer("feature_scale", feature_scale, persistent=False)
        self.register_buffer("draft_vocabulary", draft_vocabulary, persistent=False)
        weights = position_weights(drafter.config.block_size)
        self.register_buffer("weights", weights, persistent=False)

    def block_states(self, batch: Batch) -> BlockStates:
        """One drafter pass over all blocks of all sequences of `batch`."""
        context = self.context(batch.features)
        anchors = batch.tokens.gather(1, batch.anchors.clamp_min(0))  # [S, A]
        return self.draft(context, anchors, batch.anchors)

    def context(self, features: Tensor, start: Tensor | None = None) -> Context:
        """Keys and values that features [S, T, n_taps * D] inject.

        Sequence s begins at absolute position `start[s]` ([S] int64); None means 0 for all.
        """
        S, T = features.shape[:2]
        positions = torch.arange(T, device=features.device).repeat(S, 1)  # [S, T]
        if start is not None:
            positions = positions + start[:, None]
        features = features.to(self.embedding.dtype)
        if self.feature_scale is not None:
            features = features * self.feature_scale
        context = self.drafter.project_features(features)  # [S, T, D]
        keys, values = self.drafter.context_keys_values(context.flatten(0, 1), positions.flatten())
        return Context(keys.unflatten(1, (S, T)), values.unflatten(1, (S, T)))

    def draft(self, context: Context, anchors: Tensor, places: Tensor) -> BlockStates:
        """Blocks that start from tokens `anchors` [S, A] at positions `places` [S, A]."""
        config = self.drafter.config
        core_type = self.core or packed_core(anchors.device)
        core = core_type(config, context.keys, context.values, places, config.block_size)
        tokens = anchors.flatten()  # [n]
        embeddings = self.drafter.block_embeddings(
            tokens, lambda ids: F.embedding(ids, self.embedding)
        )
        offsets = torch.arange(config.block_size, device=anchors.device)
        positions = places.clamp_min(0).flatten()[:, None] + offsets  # [n, B]
        hidden = self.drafter(embeddings, positions, core)  # [n, B, D]
        # A slice is not contiguous, and the head would fall back to one slow product per block.
        return BlockStates(hidden[:, config.draft_positions()].contiguous(), tokens)

    def forward(self, batch: Batch, rows: HeadRows) -> LossTerms:
        states = self.block_states(batch)
        tokens = block_labels(batch, self.drafter.config.num_draft_tokens)  # [n, g]
        labels = rows.labels(tokens)
        logits = self._logits(states.hidden, rows)  # [n, g, R]
        unary = decayed_cross_entropy(logits, labels, self.weights)
        selector = self.drafter.selector
        if selector is None:
            zero = torch.zeros_like(unary)
            return LossTerms(unary, unary, zero, zero)

        best = logits.topk(selector.top_k, dim=-1).indices  # [n, g, K] rows
        covered = (best == labels[..., None]).any(dim=-1)
        candidates, rank = inject_truth(best, labels)
        predecessors = torch.cat([states.anchors[:, None], tokens[:, :-1]], dim=1)  # [n, g]
        scores = true_row_scores(
            selector,
            states.hidden,
            predecessors.clamp_min(0),
            rows.tokens(candidates),
            logits.gather(-1, candidates),
        )
        pairs = selector_cross_entropy(scores, rank, labels, self.weights, covered)
        total = unary + self.selector_weight * pairs.loss
        return LossTerms(total, unary, pairs.loss, pairs.coverage)

    def served_drafter(self) -> DFlash2Drafter:
        """A copy of the drafter as it is served: it reads the target's features as they are."""
        drafter = copy.deepcopy(self.drafter)
        if self.feature_scale is not None:
            fold(drafter, self.feature_scale)
        return drafter

    def _logits(self, hidden: Tensor, rows: HeadRows) -> Tensor:
        """hidden [n, g, D] -> fp32 logits of this step's rows [n, g, R]."""
        if rows.ids is None:
            return self.full_logits(hidden)
        return self._row_logits(hidden, rows.ids) + rows.correction

    def full_logits(self, hidden: Tensor) -> Tensor:
        """hidden [..., D] -> fp32 logits over the whole vocabulary [..., V]."""
        return self.drafter.unary_logits(hidden, lambda h: F.linear(h, self.head, self.head_bias))

    def draft_logits(self, hidden: Tensor) -> Tensor:
        """hidden [..., D] -> the fp32 logits that drafts are made from, [..., V]."""
        if self.draft_vocabulary is None:
            return self.full_logits(hidden)
        logits = self._row_logits(hidden, self.draft_vocabulary)
        return spread_logits(logits, self.draft_vocabulary, self.head.shape[0])

    def _row_logits(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        weight = self.head[tokens]
        bias = None if self.head_bias is None else self.head_bias[tokens]
        return self.drafter.unary_logits(hidden, lambda h: F.linear(h, weight, bias))


def block_labels(batch: Batch, num_draft_tokens: int) -> Tensor:
    """The text behind every anchor, [n, g] int64, IGNORED behind the text's end and in padding."""
    offsets = torch.arange(1, num_draft_tokens + 1, device=batch.tokens.device)
    places = batch.anchors[:, :, None] + offsets  # [S, A, g]
    exists = (places < batch.lengths[:, None, None]) & (batch.anchors != UNUSED)[:, :, None]
    inside = places.clamp(0, batch.tokens.shape[1] - 1)
    texts = batch.tokens[:, None].expand(-1, places.shape[1], -1).gather(2, inside)
    return texts.masked_fill(~exists, IGNORED).flatten(0, 1)
