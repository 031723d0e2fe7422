"""How drafts are proposed and judged: greedy, with shared noise, or by rejection sampling."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from dflash_sglang.adaptive.doubt import DoubtLedger
from dflash_sglang.tree import (
    DraftTree,
    NoisyEdges,
    build_lattice,
    build_noisy_lattice,
    doubt_evidence,
    noisy_candidates,
    noisy_edges,
)
from dflash_sglang.verify import NoiseKeys, Verdict, greedy_tokens, sampled_tokens, walk
from dflash_sglang.verify.rejection import rejection_walk

from .objective import BlockStates, DraftObjective
from .tree_shape import CANDIDATES, TreeShape


class Proposal(NamedTuple):
    """A tree to verify, and the law its tokens were drawn from where judging needs it."""

    tree: DraftTree
    draft_probs: Tensor | None  # [bs, N, V], rejection sampling only
    edges: NoisyEdges | None = None  # shared noise only


class Proposer(Protocol):
    """Draft side and target side of one way to speculate.

    `rows` [bs] int64 are the prompts' indices, `places` [bs] the anchors' positions, `logits`
    [bs, N, V] fp32.
    """

    nodes: int  # of the largest tree, root included

    def propose(
        self, objective: DraftObjective, states: BlockStates, rows: Tensor, places: Tensor
    ) -> Proposal: ...

    def judge(
        self, proposal: Proposal, logits: Tensor, rows: Tensor, places: Tensor
    ) -> Verdict: ...


class SeededProposer(Proposer, Protocol):
    """A way whose text the prompt and its seed decide, whatever is drafted."""

    def follow(self, proposal: Proposal, drawn: Tensor, rows: Tensor) -> Verdict:
        """Judge by the target's token after each node, drawn [bs, N] int64."""
        ...


class Candidates(NamedTuple):
    """The K best unary candidates of every position and their scores."""

    tokens: Tensor  # [n, g, K] int64
    scores: Tensor  # [n, g, K, K] by predecessor, or [n, g, K] without a selector


def best_candidates(objective: DraftObjective, states: BlockStates) -> Candidates:
    """Noise-free candidates of drafted blocks."""
    selector = objective.drafter.selector
    top_k = CANDIDATES if selector is None else selector.top_k
    unary, tokens = objective.draft_logits(states.hidden).topk(top_k, dim=-1)  # [n, g, K]
    if selector is None:
        return Candidates(tokens, unary)
    return Candidates(tokens, selector.pair_scores(states.hidden, states.anchors, tokens, unary))


class Greedy:
    """Best-first tree of noise-free candidates, judged by the target's argmax."""

    def __init__(self, shape: TreeShape):
        self.shape, self.nodes = shape, shape.nodes

    def propose(self, objective, states, rows, places) -> Proposal:
        best = best_candidates(objective, states)
        lattice = build_lattice(best.scores, best.tokens)
        return Proposal(self.shape.build(lattice, states.anchors), None)

    def judge(self, proposal, logits, rows, places) -> Verdict:
        return self.follow(proposal, greedy_tokens(logits), rows)

    def follow(self, proposal, drawn, rows) -> Verdict:
        return walk(proposal.tree, drawn, _depth(proposal.tree))


class SharedNoise:
    """Draft and target draw with the same noise, keyed by (seed, position, token).

    Args:
        seeds: [prompts] int64, one a prompt.
        num_others: candidates a position that only the noise favours.
        doubt: of ``tree.noisy``; None learns it for each prompt, as the engine does.
    """

    def __init__(
        self,
        shape: TreeShape,
        temperature: float,
        seeds: Tensor,
        num_others: int = 8,
        doubt: float | None = None,
    ):
        self.shape, self.nodes = shape, shape.nodes
        self.temperature, self.seeds, self.num_others = temperature, seeds, num_others
        self.doubt, self.ledger = doubt, DoubtLedger(len(seeds), seeds.device)

    def propose(self, objective, states, rows, places) -> Proposal:
        selector = objective.drafter.selector
        logits = objective.draft_logits(states.hidden)  # [n, g, V]
        candidates = noisy_candidates(
            logits,
            self._noise(rows, places, logits.shape[1]),
            self._temperatures(rows),
            CANDIDATES if selector is None else selector.top_k,
            self.num_others,
            doubt=self.ledger.doubts(rows) if self.doubt is None else self.doubt,
        )
        pairs = None
        if selector is not None:
            pairs = selector.pair_scores(
                states.hidden, states.anchors, candidates.tokens, candidates.unary_logits
            )
        edges = noisy_edges(candidates, pairs)
        lattice = build_noisy_lattice(edges)
        return Proposal(self.shape.build(lattice, states.anchors), None, edges)

    def judge(self, proposal, logits, rows, places) -> Verdict:
        noise = self._noise(rows, places, _depth(proposal.tree) + 1)
        drawn = sampled_tokens(logits, self._temperatures(rows), noise, proposal.tree.depths)
        return self.follow(proposal, drawn, rows)

    def follow(self, proposal, drawn, rows) -> Verdict:
        verdict = walk(proposal.tree, drawn, _depth(proposal.tree))
        if proposal.edges is not None:
            evidence = doubt_evidence(
                proposal.edges, verdict.tokens, verdict.accept_lens, self.ledger.values
            )
            self.ledger.learn(rows, evidence)
        return verdict

    def _temperatures(self, rows: Tensor) -> Tensor:
        return torch.full((len(rows),), self.temperature, device=rows.device)

    def _noise(self, rows: Tensor, places: Tensor, count: int) -> NoiseKeys:
        positions = places[:, None] + torch.arange(count, device=places.device)
        return NoiseKeys(self.seeds[rows], positions)


class RejectionChain:
    """A chain drawn from q and judged by rejection sampling: what engines do at temperature > 0.

    Source: Leviathan et al., arXiv 2211.17192; q is the selector's law over the K candidates, as in
    the reference implementation.
    """

    def __init__(self, block_size: int, temperature: float, seed: int):
        self.nodes, self.temperature = block_size, temperature
        self.generator = torch.Generator().manual_seed(seed)

    def propose(self, objective, states, rows, places) -> Proposal:
        best = best_candidates(objective, states)
        bs, g, _ = best.tokens.shape
        laws = (best.scores / self.temperature).softmax(dim=-1)  # [bs, g, K, K] or [bs, g, K]
        vocab = objective.embedding.shape[0]
        probs = laws.new_zeros(bs, g + 1, vocab)  # q(. | node); the last node has no child
        tokens, picked = [states.anchors], torch.zeros(bs, 1, dtype=torch.int64)
        every = torch.arange(bs)
        for position in range(g):
            law = laws[:, position]  # [bs, K, K] or [bs, K]
            row = law if law.dim() == 2 else law[every, picked[:, 0]]  # [bs, K]
            probs[:, position].scatter_(1, best.tokens[:, position], row)
            picked = torch.multinomial(row, 1, generator=self.generator)
            tokens.append(best.tokens[:, position].gather(1, picked)[:, 0])
        depths = torch.arange(g + 1).repeat(bs, 1)
        counts = torch.full((bs,), g + 1)
        tree = DraftTree(torch.stack(tokens, 1), depths - 1, depths, -depths.float(), counts)
        return Proposal(tree, probs)

    def judge(self, proposal, logits, rows, places) -> Verdict:
        target_probs = (logits / self.temperature).softmax(dim=-1)
        draft_probs = proposal.draft_probs
        if draft_probs is None:  # the prompt's last token: nothing was drafted
            draft_probs = torch.zeros_like(target_probs)
        return rejection_walk(
            proposal.tree, draft_probs, target_probs, _depth(proposal.tree), self.generator
        )


def _depth(tree: DraftTree) -> int:
    return int(tree.depths.max())
