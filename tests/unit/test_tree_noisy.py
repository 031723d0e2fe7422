"""The lattice under shared noise."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from dflash_sglang.tree import (
    NO_TOP_K,
    Lattice,
    LatticeError,
    Truncation,
    build_lattice,
    build_noisy_lattice,
    build_tree,
    noisy_candidates,
    noisy_edges,
)
from dflash_sglang.tree.noisy import DEFAULT_DOUBT
from dflash_sglang.verify import NoiseKeys, sampled_tokens, walk

BS, G, V, K, M = 3, 4, 60, 5, 3
TEMPERATURES = torch.tensor([1.0, 0.0, 0.5])


class Draft(NamedTuple):
    unary: Tensor  # [bs, g, V]
    noise: NoiseKeys  # of [bs, g] draws
    pair_table: Tensor  # [V, V], what the selector adds for (predecessor, candidate)

    def pair_scores(self, anchors: Tensor, tokens: Tensor) -> Tensor:
        before_first = anchors[:, None, None].expand_as(tokens[:, :1])
        predecessors = torch.cat((before_first, tokens[:, :-1]), dim=1)
        pairs = self.pair_table[predecessors.unsqueeze(-1), tokens.unsqueeze(2)]
        return self.unary.gather(-1, tokens).unsqueeze(2) + pairs

    def conditional(self, row: int, t: int, predecessor: int, temperature: float) -> Tensor:
        """log q(. | predecessor) over the whole vocabulary, written out."""
        logits = self.unary[row, t]
        log_q = (logits / temperature).log_softmax(-1)
        inside = logits.topk(K).indices
        pairs = (logits + self.pair_table[predecessor])[inside] / temperature
        log_q[inside] = (log_q[inside].exp().sum() * pairs.softmax(-1)).log()
        assert float(log_q.exp().sum()) == pytest.approx(1.0, abs=1e-5)
        return log_q


ANCHORS = torch.tensor([4, 5, 6])


@pytest.fixture
def draft() -> Draft:
    generator = torch.Generator().manual_seed(0)
    positions = torch.tensor([[20], [30], [40]]) + torch.arange(G)
    return Draft(
        unary=torch.randn(BS, G, V, generator=generator) * 2,
        noise=NoiseKeys(torch.tensor([1, 2, 3]), positions),
        pair_table=torch.randn(V, V, generator=generator),
    )


NO_DOUBT = 1e-3


def noisy(draft: Draft, with_pairs: bool = True, doubt=DEFAULT_DOUBT, **options) -> Lattice:
    found = noisy_candidates(draft.unary, draft.noise, TEMPERATURES, K, M, doubt=doubt)
    scores = draft.pair_scores(ANCHORS, found.tokens) if with_pairs else None
    return build_noisy_lattice(noisy_edges(found, scores), **options)


@pytest.mark.parametrize("doubt", [NO_DOUBT, 2.0])
@pytest.mark.parametrize("row", [0, 2])
def test_the_best_edge_is_the_best_perturbed_token_of_the_whole_vocabulary(
    draft: Draft, row: int, doubt: float
) -> None:
    lattice, temperature = noisy(draft, doubt=doubt), float(TEMPERATURES[row])
    for t in range(G):
        for a in range(K + M):
            predecessor = int(lattice.tokens[row, t - 1, a]) if t else int(ANCHORS[row])
            log_q = draft.conditional(row, t, predecessor, temperature)
            perturbed = (1 + doubt**2) ** 0.5 * log_q + draft.noise.values(V)[row, t]
            best = int(lattice.tokens[row, t, lattice.log_probs[row, t, a].argmax()])
            assert best == int(perturbed.argmax())


@pytest.mark.parametrize("doubt", [1.0, 2.5])
def test_edges_are_a_softmax_of_the_perturbed_scores(draft: Draft, doubt: float) -> None:
    lattice = noisy(draft, doubt=doubt)
    tokens = lattice.tokens[2, 1]
    log_q = draft.conditional(2, 1, int(lattice.tokens[2, 0, 6]), temperature=0.5)
    perturbed = (1 + doubt**2) ** 0.5 * log_q + draft.noise.values(V)[2, 1]
    expected = (perturbed[tokens] / doubt).log_softmax(-1).float()
    assert torch.allclose(lattice.log_probs[2, 1, 6], expected, atol=1e-5)


def test_every_request_can_have_its_own_doubt(draft: Draft) -> None:
    by_request = torch.tensor([1.0, 0.5, 2.0])
    lattice = noisy(draft, doubt=by_request)
    for row, doubt in enumerate(by_request.tolist()):
        assert torch.equal(lattice.log_probs[row], noisy(draft, doubt=doubt).log_probs[row])


@pytest.mark.parametrize("with_pairs", [True, False])
@pytest.mark.parametrize("entropy_weight", [0.0, 0.2])
def test_greedy_requests_of_a_mixed_batch_get_the_noise_free_lattice(
    draft: Draft, with_pairs: bool, entropy_weight: float
) -> None:
    lattice = noisy(draft, with_pairs, doubt=0.3, entropy_weight=entropy_weight)
    unary, candidates = draft.unary.topk(K)
    scores = draft.pair_scores(ANCHORS, candidates) if with_pairs else unary
    plain = build_lattice(scores, candidates, entropy_weight=entropy_weight)
    assert torch.equal(lattice.tokens[1, :, :K], plain.tokens[1])
    # The entropy of a row is summed over idle candidates as well, in another order.
    tolerance = 1e-6 if entropy_weight else 0.0
    edges = lattice.log_probs[1, :, :K, :K]
    torch.testing.assert_close(edges, plain.log_probs[1], rtol=0.0, atol=tolerance)
    assert (lattice.log_probs[1, :, :, K:] == -torch.inf).all()
    trees = [build_tree(x, ANCHORS, 16, G, 3) for x in (lattice, plain)]
    assert all(torch.equal(a[1], b[1]) for a, b in zip(*trees, strict=True))


def test_candidates_of_a_position_are_distinct_and_led_by_the_noise_free_best(draft: Draft) -> None:
    tokens = noisy(draft).tokens
    assert torch.equal(tokens[..., :K], draft.unary.topk(K).indices)
    assert (tokens.sort(-1).values.diff(dim=-1) > 0).all()


def test_without_others_the_lattice_is_the_perturbed_top_k(draft: Draft) -> None:
    found = noisy_candidates(draft.unary, draft.noise, TEMPERATURES, K, 0)
    assert found.tokens.shape == (BS, G, K)
    lattice = build_noisy_lattice(noisy_edges(found, None))
    assert lattice.log_probs.exp().sum(-1).allclose(torch.ones(BS, G, K))


def perfect_drafts(truncation: Truncation | None, selector_weight: float) -> Tensor:
    """Accept lengths [16] of chains of six under a target that is the drafter's own conditional."""
    generator = torch.Generator().manual_seed(3)
    bs, g, temperature = 16, 6, 1.2
    anchors = torch.zeros(bs).long()
    noise = NoiseKeys(torch.arange(bs), torch.arange(g + 1).repeat(bs, 1))
    draft = Draft(
        unary=torch.randn(bs, g, V, generator=generator) * 2,
        noise=noise,
        pair_table=torch.randn(V, V, generator=generator) * selector_weight,
    )
    found = noisy_candidates(
        draft.unary, draft.noise, torch.full((bs,), temperature), K, M, truncation, doubt=NO_DOUBT
    )
    lattice = build_noisy_lattice(noisy_edges(found, draft.pair_scores(anchors, found.tokens)))
    chain = build_tree(lattice, anchors, g + 1, g, max_children=1)

    log_p = torch.zeros(bs, g + 1, V)
    for row in range(bs):
        for t, token in enumerate(chain.tokens[row, :g].tolist()):
            log_p[row, t] = draft.conditional(row, t, token, temperature)
    # The conditional is normalised at the temperature already; the target draws from it as it is.
    target = sampled_tokens(log_p, torch.ones(bs), noise, chain.depths, truncation)
    return walk(chain, target, g).accept_lens


TRUNCATION = Truncation(
    top_ks=torch.tensor([9, NO_TOP_K, 12, 4] * 4), top_ps=torch.tensor([1.0, 0.8, 0.7, 1.0] * 4)
)


@pytest.mark.parametrize(
    ("truncation", "selector_weight"), [(None, 0.0), (None, 0.5), (TRUNCATION, 0.0)]
)
def test_a_drafter_that_equals_the_target_is_accepted_to_the_end(
    truncation: Truncation | None, selector_weight: float
) -> None:
    """With q = p the best perturbed chain is the target's own text: temperature costs nothing."""
    assert perfect_drafts(truncation, selector_weight).tolist() == [7] * 16


def test_a_selector_leaves_truncation_right_but_for_tokens_at_its_edge() -> None:
    """The edge is found among the top K and among the others, not among both together."""
    lengths = perfect_drafts(TRUNCATION, selector_weight=0.5)
    assert int((lengths == 7).sum()) >= 14


def test_truncated_requests_are_offered_no_token_that_the_target_cannot_draw() -> None:
    generator = torch.Generator().manual_seed(6)
    unary = torch.randn(2, 1, V, generator=generator)
    noise = NoiseKeys(torch.tensor([1, 2]), torch.tensor([[0], [0]]))
    truncation = Truncation(torch.tensor([3, 7]), torch.tensor([1.0, 1.0]))
    found = noisy_candidates(unary, noise, torch.ones(2), K, M, truncation)
    lattice = build_noisy_lattice(noisy_edges(found, None))
    for row, top_k in enumerate(truncation.top_ks.tolist()):
        possible = lattice.tokens[row, 0][lattice.log_probs[row, 0, 0] > -torch.inf]
        assert set(possible.tolist()) <= set(unary[row, 0].topk(top_k).indices.tolist())
        assert len(possible) == min(top_k, K + M)
        assert len(set(lattice.tokens[row, 0].tolist())) == K + M


def test_requests_that_are_not_coupled_get_the_noise_free_lattice_at_their_temperature(
    draft: Draft,
) -> None:
    found = noisy_candidates(
        draft.unary, draft.noise, TEMPERATURES, K, M, is_coupled=torch.tensor([True, False, False])
    )
    lattice = build_noisy_lattice(noisy_edges(found, None))
    unary, candidates = draft.unary.topk(K)
    plain = build_lattice(unary, candidates, TEMPERATURES)
    assert torch.equal(lattice.log_probs[2, :, :K, :K], plain.log_probs[2])
    assert torch.equal(lattice.log_probs[0], noisy(draft, with_pairs=False).log_probs[0])


def test_requests_beside_truncated_ones_keep_their_lattice() -> None:
    generator = torch.Generator().manual_seed(8)
    unary = torch.randn(2, 2, V, generator=generator)
    noise = NoiseKeys(torch.tensor([1, 2]), torch.tensor([[0, 1], [0, 1]]))
    truncation = Truncation(torch.tensor([4, NO_TOP_K]), torch.tensor([0.9, 1.0]))
    mixed, alone = (
        build_noisy_lattice(
            noisy_edges(noisy_candidates(unary, noise, torch.ones(2), K, M, x), None)
        )
        for x in (truncation, None)
    )
    assert all(torch.equal(a[1], b[1]) for a, b in zip(mixed, alone, strict=True))
    assert not torch.equal(mixed.log_probs[0], alone.log_probs[0])


def test_shared_noise_predicts_draws_that_noise_free_candidates_miss() -> None:
    """Shares of 2,000 draws at high entropy found among two candidates of a perturbed drafter."""
    generator = torch.Generator().manual_seed(4)
    n, vocab = 2000, 500
    logits = torch.randn(n, 1, vocab, generator=generator)
    drafted = logits + 0.5 * torch.randn(n, 1, vocab, generator=generator)
    temperatures = torch.ones(n)
    noise = NoiseKeys(torch.arange(n), torch.zeros(n, 1).long())
    target = sampled_tokens(logits, temperatures, noise, torch.zeros(n, 1).long())
    found = noisy_candidates(drafted, noise, temperatures, 16, 8, doubt=0.5)
    lattice = build_noisy_lattice(noisy_edges(found, None))
    best_two = lattice.tokens[:, 0].gather(-1, lattice.log_probs[:, 0, 0].topk(2).indices)
    shared = (best_two == target).any(-1).float().mean()
    unshared = (drafted[:, 0].topk(2).indices == target).any(-1).float().mean()
    assert shared > 0.8 and unshared < 0.1


def test_noise_of_fewer_positions_is_refused(draft: Draft) -> None:
    noise = NoiseKeys(draft.noise.seeds, draft.noise.positions[:, :2])
    with pytest.raises(LatticeError, match=r"3 seeds and 4 positions .* got 3 and 2"):
        noisy_candidates(draft.unary, noise, TEMPERATURES, K, M)


def test_more_candidates_than_the_vocabulary_are_refused(draft: Draft) -> None:
    with pytest.raises(LatticeError, match="a vocabulary of 60 together, got 58 and 3"):
        noisy_candidates(draft.unary, draft.noise, TEMPERATURES, 58, 3)


def test_pair_scores_of_the_top_k_only_are_refused(draft: Draft) -> None:
    found = noisy_candidates(draft.unary, draft.noise, TEMPERATURES, K, M)
    with pytest.raises(LatticeError, match=r"pair_scores must be \[3, 4, 8, 8\]"):
        noisy_edges(found, torch.zeros(BS, G, K, K))


def test_doubt_keeps_the_noise_from_deciding_what_a_sharp_target_has_decided() -> None:
    """The drafter holds one of two tokens for likely; the target is sure of one of them."""
    generator = torch.Generator().manual_seed(5)
    n, vocab = 4000, 50
    belief = torch.full((n, 1, vocab), -8.0)
    belief[..., 0], belief[..., 1] = 0.7, -0.7  # 4 to 1
    sure = torch.where(torch.rand(n, generator=generator) < 0.8, 0, 1)
    logits = torch.nn.functional.one_hot(sure, vocab).unsqueeze(1) * 20.0
    noise = NoiseKeys(torch.arange(n), torch.zeros(n, 1).long())
    target = sampled_tokens(logits, torch.ones(n), noise, torch.zeros(n, 1).long())[:, 0]

    def accepted(doubt: float) -> float:
        found = noisy_candidates(belief, noise, torch.ones(n), 4, 2, doubt=doubt)
        values = build_noisy_lattice(noisy_edges(found, None)).log_probs[:, 0, 0]
        best = found.tokens[:, 0].gather(-1, values.argmax(-1, keepdim=True))[:, 0]
        return float((best == target).float().mean())

    assert accepted(NO_DOUBT) < 0.72  # 0.8^2 + 0.2^2
    assert accepted(DEFAULT_DOUBT) > 0.77  # near 0.8, the chance of the likelier token


def test_a_doubt_that_is_not_positive_is_refused(draft: Draft) -> None:
    with pytest.raises(LatticeError, match="doubt must be positive, got 0"):
        noisy(draft, doubt=0)
