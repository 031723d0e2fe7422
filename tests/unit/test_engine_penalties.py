"""What the engine remembers of penalized requests, against SGLang's penalizers."""

from __future__ import annotations

import pytest
import torch
from sglang_penalizers import END, PenalizedRequest, penalized_by_sglang

from dflash_sglang.engine.penalties import PenaltyLedger, minimum_lengths

VOCAB = 12
ASKED = {"frequency_penalty": 0.3, "presence_penalty": -0.2, "repetition_penalty": 1.3}


def behind(ledger: PenaltyLedger, request: PenalizedRequest, logits: torch.Tensor) -> torch.Tensor:
    """Logits [V] penalized by what the ledger knows."""
    state = ledger.state([request])
    adjusted = logits + state.additive()[0]
    scaling = state.scaling()[0]
    return torch.where(adjusted < 0, adjusted * scaling, adjusted / scaling)


def test_steps_of_several_tokens_add_up_to_sglangs_state():
    """Three times the same token: sums of 0.3 that are not the product in float32."""
    request, other = PenalizedRequest([], **ASKED), PenalizedRequest([])
    ledger = PenaltyLedger(VOCAB, "cpu")
    steps = torch.tensor([[[5, 5, 7, 0], [9, 9, 9, 9]], [[5, 2, 4, 4], [1, 1, 1, 1]]])
    ledger.add([request, other], steps[0], torch.tensor([3, 4]))
    ledger.add([other, request], steps[1].flip(0), torch.tensor([4, 2]))
    logits = torch.randn(VOCAB)
    expected = penalized_by_sglang(logits, request, [5, 5, 7, 5, 2])
    assert torch.equal(behind(ledger, request, logits), expected)


def test_the_state_does_not_wait_for_the_host():
    """The scheduler has seen nothing of what was added."""
    request = PenalizedRequest([], presence_penalty=1.0)
    ledger = PenaltyLedger(VOCAB, "cpu")
    ledger.add([request], torch.tensor([[5]]), torch.tensor([1]))
    assert ledger.state([request]).is_present[0].nonzero().tolist() == [[5]]


def test_a_retracted_request_starts_again_from_the_output_it_kept():
    request = PenalizedRequest([5, 5], **ASKED)
    ledger = PenaltyLedger(VOCAB, "cpu")
    ledger.add([request], torch.tensor([[3, 4]]), torch.tensor([2]))  # was dropped
    ledger.restart([request])
    logits = torch.randn(VOCAB)
    expected = penalized_by_sglang(logits, request, [5, 5])
    assert torch.equal(behind(ledger, request, logits), expected)


def test_requests_without_penalties_cost_nothing_and_get_none():
    request, plain = PenalizedRequest([], frequency_penalty=1.0), PenalizedRequest([])
    ledger = PenaltyLedger(VOCAB, "cpu")
    assert ledger.state([plain, plain]) is None
    ledger.add([request, plain], torch.tensor([[5], [6]]), torch.tensor([1, 1]))
    state = ledger.state([plain, request])
    assert state.additive()[0].abs().max() == 0
    assert state.additive()[1].nonzero().tolist() == [[5]]


@pytest.mark.parametrize("generated", [0, 2, 3, 4])
def test_stop_tokens_are_forbidden_until_the_minimum_is_reached(generated):
    prompt = [7] * 10
    request = PenalizedRequest([], prompt, min_new_tokens=3, stop_token_ids=[4])
    request.eos_token_ids = {2}
    logits = torch.randn(VOCAB)
    expected = penalized_by_sglang(logits, request, [5] * generated)
    minimum = minimum_lengths([request], "cpu")
    forbidden = bool(minimum.forbids(torch.tensor([len(prompt) + generated])))
    got = logits.clone()
    if forbidden:
        got[minimum.stop_tokens[0]] = float("-inf")
    assert torch.equal(got, expected)
    assert set(minimum.stop_tokens[0].tolist()) == {2, 4, END}


def test_minimum_lengths_of_a_batch_are_each_requests_own():
    asks = PenalizedRequest([], [7] * 4, min_new_tokens=2, stop_token_ids=[3, 4])
    other = PenalizedRequest([], [7] * 9)
    minimum = minimum_lengths([other, asks], "cpu")
    lens = torch.tensor([[9, 10], [5, 6]])  # two nodes a request
    assert minimum.forbids(lens).tolist() == [[False, False], [True, False]]


def test_nothing_is_asked_of_the_device_once_every_minimum_is_reached():
    assert minimum_lengths([PenalizedRequest([5, 5], min_new_tokens=2)], "cpu") is None
    assert minimum_lengths([PenalizedRequest([])], "cpu") is None
