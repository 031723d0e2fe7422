"""True speculative decoding of many prompts at once, to measure accept length.

The decode step is the engine's: draft a block, build a tree, verify all its nodes in one masked
forward of the target, walk, commit. Here it runs on a transformers target with a ragged KV cache,
so that an evaluation takes seconds instead of minutes; `drafter.reference` is the same for one
request, written to be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dflash_sglang.tree import DraftTree, make_layout
from dflash_sglang.verify import Verdict

from .generate import prefill
from .objective import Context, DraftObjective
from .proposals import Proposal, Proposer
from .ragged_cache import RaggedCache
from .target import Target


class Decoded(NamedTuple):
    """What one prompt got."""

    tokens: list[int]  # the response
    accept_lens: list[int]  # tokens delivered by each verify step, cut at the response's end


@torch.no_grad()
def decode_batch(
    target: Target,
    objective: DraftObjective,
    prompts: Sequence[Sequence[int]],
    proposer: Proposer,
    max_new_tokens: int,
    stop_token_ids: Sequence[int],
    rows: Tensor | None = None,
) -> list[Decoded]:
    """Continue every prompt until a stop token (kept) or `max_new_tokens`.

    The target taps the layers that the drafter reads; `proposer` decides how drafts are proposed
    and target tokens are chosen. It knows the prompts as `rows` [bs] int64, by default 0, 1, ...
    """
    rows = torch.arange(len(prompts)) if rows is None else rows
    decoding = _Decoding(target, objective, prompts, proposer, max_new_tokens, stop_token_ids, rows)
    decoding.run()
    return [decoding.results[row] for row in rows.tolist()]


class _Decoding:
    """State of all unfinished rows. The target's cache and the drafter's context of a row cover the
    same positions, all before the row's anchor, which is its last token."""

    def __init__(
        self,
        target: Target,
        objective: DraftObjective,
        prompts: Sequence[Sequence[int]],
        proposer: Proposer,
        max_new_tokens: int,
        stop_token_ids: Sequence[int],
        rows: Tensor,
    ):
        self.target, self.objective, self.proposer = target, objective, proposer
        self.max_new_tokens, self.stop = max_new_tokens, frozenset(stop_token_ids)
        device = target.device
        self.capacity = max(len(p) for p in prompts) + max_new_tokens + proposer.nodes
        self.slot_ids = torch.arange(self.capacity, device=device)
        self.cache: RaggedCache = target.new_cache(self.capacity)
        self.rows = rows.to(device)  # [bs]
        self.results = {row: Decoded([], []) for row in rows.tolist()}
        self._prefill(prompts)

    def run(self) -> None:
        self._retire()
        while len(self.rows):
            proposal = self._draft()
            verdict = self._verify(proposal)
            self._deliver(verdict)
            self._retire()

    def _prefill(self, prompts: Sequence[Sequence[int]]) -> None:
        features = prefill(self.target, prompts, self.cache, self.slot_ids)  # [bs, T - 1, F]
        self.anchors = torch.tensor([p[-1] for p in prompts], device=self.slot_ids.device)
        self.places = torch.tensor([len(p) - 1 for p in prompts], device=self.slot_ids.device)
        bs, config = len(prompts), self.objective.drafter.config
        heads = (config.num_key_value_heads, config.head_dim)
        shape = (config.num_hidden_layers, bs, self.capacity, *heads)
        zeros = torch.zeros(shape, dtype=self.objective.embedding.dtype, device=self.rows.device)
        self.context = Context(zeros, zeros.clone())  # [L, bs, capacity, Hkv, d]
        self._inject(features, torch.zeros_like(self.places))
        # The last prompt token is verified as a tree of one node: it yields the first token.
        ones = torch.zeros(bs, 1, dtype=torch.int64, device=self.rows.device)
        root = DraftTree(self.anchors[:, None], ones - 1, ones, ones.float(), ones[:, 0] + 1)
        first = self._verify(Proposal(root, None))
        for row, token in zip(self.rows.tolist(), first.bonus.tolist(), strict=True):
            self.results[row].tokens.append(token)

    def _draft(self) -> Proposal:
        extent = int(self.places.max())
        seen = Context(self.context.keys[:, :, :extent], self.context.values[:, :, :extent])
        states = self.objective.draft(seen, self.anchors[:, None], self.places[:, None])
        return self.proposer.propose(self.objective, states, self.rows, self.places)

    def _verify(self, proposal: Proposal) -> Verdict:
        """Verify, and commit the accepted path to cache and context."""
        tree = proposal.tree
        bs, nodes = tree.tokens.shape
        layout = make_layout(tree, self.places)
        slots = self.places[:, None] + self.slot_ids[:nodes]  # [bs, N]
        extent = int(self.places.max()) + nodes
        visible = self.slot_ids[:extent] < self.places[:, None, None]  # [bs, 1, S]
        visible = visible.repeat(1, nodes, 1)  # [bs, N, S]
        visible.scatter_(2, slots[:, None].expand(-1, nodes, -1), layout.mask)
        slot_positions = self.slot_ids[:extent].repeat(bs, 1)
        slot_positions.scatter_(1, slots, layout.positions)
        out = self.target.step(
            tree.tokens, layout.positions, visible, self.cache, slots, slot_positions
        )
        assert out.logits is not None
        verdict = self.proposer.judge(proposal, out.logits.float(), self.rows, self.places)

        # Behind the accepted path the root is moved along: what lands there is never looked at.
        path = verdict.node_path.clamp_min(0)  # [bs, D + 1]
        steps = self.slot_ids[: path.shape[1]]
        self.cache.move(
            self.places[:, None] + path,
            torch.minimum(self.places[:, None] + steps, self.slot_ids[-1]),
        )
        features = out.features.gather(1, path[..., None].expand(-1, -1, out.features.shape[-1]))
        self._inject(features, self.places)
        self.places = self.places + verdict.accept_lens
        self.anchors = verdict.bonus
        return verdict

    def _inject(self, features: Tensor, start: Tensor) -> None:
        """Append features [bs, t, F] to the drafter's context from positions `start` [bs] on."""
        if features.shape[1] == 0:
            return
        new = self.objective.context(features, start)
        slots = start[:, None] + self.slot_ids[: features.shape[1]]
        slots = slots.clamp_max(self.capacity - 1)
        rows = torch.arange(len(start), device=start.device)[:, None]
        self.context.keys[:, rows, slots] = new.keys
        self.context.values[:, rows, slots] = new.values

    def _deliver(self, verdict: Verdict) -> None:
        for row, tokens, count in zip(
            self.rows.tolist(), verdict.tokens.tolist(), verdict.accept_lens.tolist(), strict=True
        ):
            result = self.results[row]
            room = self.max_new_tokens - len(result.tokens)
            delivered = _until_stop(tokens[:count], self.stop)[:room]
            result.tokens.extend(delivered)
            result.accept_lens.append(len(delivered))

    def _retire(self) -> None:
        """Rows that reached their end leave the batch."""
        texts = [self.results[row].tokens for row in self.rows.tolist()]
        alive = [len(t) < self.max_new_tokens and t[-1] not in self.stop for t in texts]
        if all(alive):
            return
        keep = torch.tensor(alive, device=self.rows.device).nonzero()[:, 0]
        self.rows, self.anchors, self.places = (
            column[keep] for column in (self.rows, self.anchors, self.places)
        )
        self.cache.select_rows(keep)
        self.context = Context(self.context.keys[:, keep], self.context.values[:, keep])


def _until_stop(tokens: list[int], stop: frozenset[int]) -> list[int]:
    for count, token in enumerate(tokens, start=1):
        if token in stop:
            return tokens[:count]
    return tokens
