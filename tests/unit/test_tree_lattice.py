"""Edge values of the lattice."""

from __future__ import annotations

import pytest
import torch

from dflash_sglang.tree import LatticeError, build_lattice

SCORES = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
CANDIDATES = torch.arange(24).view(2, 3, 4)


def test_edges_are_log_probabilities_over_the_candidates() -> None:
    lattice = build_lattice(SCORES, CANDIDATES)
    assert lattice.tokens is CANDIDATES
    assert torch.allclose(lattice.log_probs, SCORES.log_softmax(-1))


def test_each_request_is_normalised_at_its_own_temperature_and_greedy_ones_at_one() -> None:
    lattice = build_lattice(SCORES, CANDIDATES, temperatures=torch.tensor([0.5, 0.0]))
    assert torch.allclose(lattice.log_probs[0], (SCORES[0] / 0.5).log_softmax(-1))
    assert torch.allclose(lattice.log_probs[1], SCORES[1].log_softmax(-1))


def test_without_a_selector_every_predecessor_sees_the_same_edges() -> None:
    unary = SCORES[:, :, 0]
    lattice = build_lattice(unary.bfloat16(), CANDIDATES)
    assert lattice.log_probs.shape == (2, 3, 4, 4) and lattice.log_probs.dtype == torch.float32
    assert torch.allclose(lattice.log_probs, unary.log_softmax(-1).unsqueeze(2), atol=0.05)
    assert (lattice.log_probs == lattice.log_probs[:, :, :1]).all()


def test_entropy_weight_lifts_the_edges_of_unsure_predecessors() -> None:
    weight = 0.1
    plain, lifted = (build_lattice(SCORES, CANDIDATES, entropy_weight=w) for w in (0.0, weight))
    entropy = torch.distributions.Categorical(logits=SCORES).entropy().unsqueeze(-1)
    assert torch.allclose(
        lifted.log_probs, (plain.log_probs + weight * entropy).clamp(max=0), atol=1e-6
    )


def test_entropy_weight_never_makes_a_value_grow_along_a_path() -> None:
    assert float(build_lattice(SCORES, CANDIDATES, entropy_weight=5.0).log_probs.max()) <= 0


def test_impossible_candidates_leave_the_entropy_finite() -> None:
    scores = SCORES.clone()
    scores[..., 3] = -torch.inf
    log_probs = build_lattice(scores, CANDIDATES, entropy_weight=0.1).log_probs
    assert log_probs[..., :3].isfinite().all() and (log_probs[..., 3] == -torch.inf).all()


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 3, 5), (2, 4, 4, 4)])
def test_scores_that_do_not_fit_the_candidates_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(LatticeError, match="to fit the candidates, got"):
        build_lattice(torch.zeros(shape), CANDIDATES)


def test_negative_entropy_weight_is_refused() -> None:
    with pytest.raises(LatticeError, match=r"entropy_weight must be at least 0, got -0\.1"):
        build_lattice(SCORES, CANDIDATES, entropy_weight=-0.1)
