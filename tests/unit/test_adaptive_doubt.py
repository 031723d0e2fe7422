"""A request's doubt follows what it got, and nobody else's."""

import pytest
import torch
from torch import Tensor

from dflash_sglang.adaptive.doubt import DOUBTS, DoubtLedger
from dflash_sglang.tree import doubt_evidence, noisy_candidates, noisy_edges
from dflash_sglang.tree.noisy import NoisyEdges
from dflash_sglang.verify import NoiseKeys, sampled_tokens

V, G, K, M = 40, 3, 8, 4


def step(drafted: Tensor, target: Tensor, seed: int) -> tuple[NoisyEdges, Tensor]:
    """Edges of a draft [bs, G, V] and the tokens [bs, G] that the target draws after them."""
    bs = drafted.shape[0]
    positions = torch.arange(G).repeat(bs, 1)
    noise = NoiseKeys(torch.arange(bs) + 1000 * seed, positions)
    drawn = sampled_tokens(target, torch.ones(bs), noise, positions)
    return noisy_edges(noisy_candidates(drafted, noise, torch.ones(bs), K, M), None), drawn


def learned(drafted: Tensor, target: Tensor, steps: int = 20) -> Tensor:
    """Doubts [bs] after some steps whose every token counted."""
    bs = drafted.shape[0]
    ledger, rows = DoubtLedger(bs, "cpu"), torch.arange(bs)
    for seed in range(steps):
        edges, drawn = step(drafted, target, seed)
        counted = torch.full((bs,), G)
        ledger.learn(rows, doubt_evidence(edges, drawn, counted, ledger.values))
    return ledger.doubts(rows)


def test_a_drafter_that_knows_the_law_loses_its_doubt() -> None:
    law = torch.randn(16, G, V, generator=torch.Generator().manual_seed(1))
    assert learned(law, law).tolist() == pytest.approx([DOUBTS[0]] * 16)


def test_a_drafter_unsure_of_a_sure_target_keeps_it() -> None:
    generator = torch.Generator().manual_seed(2)
    belief = torch.full((16, G, V), -8.0)
    belief[..., :4] = torch.randn(16, G, 4, generator=generator)
    sure = torch.distributions.Categorical(logits=belief).sample()
    target = torch.nn.functional.one_hot(sure, V) * 30.0
    # What the drafter believes is right on the average of many texts, not of one.
    assert learned(belief, target).mean() > 2.5


def test_evidence_is_the_log_chance_of_each_delivered_token() -> None:
    generator = torch.Generator().manual_seed(3)
    drafted = torch.randn(2, G, V, generator=generator)
    edges, drawn = step(drafted, drafted, seed=7)
    doubts = torch.tensor([0.5, 2.0])
    evidence = doubt_evidence(edges, drawn, torch.tensor([2, 0]), doubts)
    assert evidence[1].tolist() == [0.0, 0.0]
    for column, doubt in enumerate(doubts.tolist()):
        expected = 0.0
        for t in range(2):
            found = (edges.tokens[0, t] == drawn[0, t]).nonzero()
            if len(found):
                weight = (1 + doubt**2) ** 0.5
                scores = (weight * edges.log_q[0, t, 0] + edges.noise[0, t]) / doubt
                expected += max(float(scores.log_softmax(-1)[found[0, 0]]), -10.0)
        assert float(evidence[0, column]) == pytest.approx(expected, abs=1e-4)


def test_requests_that_are_not_coupled_teach_nothing() -> None:
    drafted = torch.randn(2, G, V, generator=torch.Generator().manual_seed(4))
    edges, drawn = step(drafted, drafted, seed=1)
    edges = edges._replace(is_coupled=torch.tensor([True, False]))
    evidence = doubt_evidence(edges, drawn, torch.full((2,), G), torch.tensor(DOUBTS))
    assert evidence[0].abs().sum() > 0 and evidence[1].abs().sum() == 0


def test_a_row_taken_over_by_another_request_starts_anew() -> None:
    ledger = DoubtLedger(3, "cpu")
    fresh = ledger.doubts(torch.arange(3))
    sharp = torch.tensor([[0.0, -9.0, -9.0, -9.0, -9.0]]).repeat(2, 1)
    ledger.learn(torch.tensor([0, 2]), sharp)
    assert ledger.doubts(torch.arange(3)).tolist() == pytest.approx(
        [DOUBTS[0], float(fresh[1]), DOUBTS[0]]
    )
    ledger.restart(torch.tensor([2]))
    assert ledger.doubts(torch.tensor([2])) == fresh[2]
