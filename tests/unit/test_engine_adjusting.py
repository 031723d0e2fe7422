"""Adjustments in SGLang's order, by each node's path, and prefills behind a known output."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor
from sglang_penalizers import END, PenalizedRequest, penalized_by_sglang
from sglang_sampling_info import sampling_info_with

from dflash_sglang.engine.adjusting import LogitAdjuster
from dflash_sglang.tree import DraftTree, make_layout

VOCAB, NODES, DEPTH = 12, 3, 2
TREE = DraftTree(  # 5 - 6 - 7
    tokens=torch.tensor([[5, 6, 7]]),
    parents=torch.tensor([[-1, 0, 1]]),
    depths=torch.tensor([[0, 1, 2]]),
    log_values=torch.zeros(1, 3),
    num_nodes=torch.tensor([3]),
)


def batch_of(request: PenalizedRequest, **fields) -> SimpleNamespace:
    """As much of SGLang's batch as is looked at, with one request."""
    info = SimpleNamespace(
        logit_bias=None,
        has_custom_logit_processor=False,
        acc_additive_penalties=None,
        acc_scaling_penalties=None,
    )
    given = {
        "reqs": [request],
        "decoding_reqs": None,
        "has_grammar": False,
        "sampling_info": info,
        "seq_lens": torch.tensor([len(request.origin_input_ids) + len(request.output_ids)]),
    }
    return SimpleNamespace(**{**given, **fields})


def prefilled(request: PenalizedRequest) -> LogitAdjuster:
    """An adjuster that has seen the request's prompt."""
    adjuster = LogitAdjuster(VOCAB, DEPTH, "cpu")
    adjuster.prepare_prefill(batch_of(request), None)
    return adjuster


def deliver(adjuster: LogitAdjuster, request: PenalizedRequest, tokens: list[int]) -> None:
    adjuster.follow(batch_of(request), torch.tensor([tokens]), torch.tensor([len(tokens)]))


def adjusted_nodes(
    adjuster: LogitAdjuster, request: PenalizedRequest, delivered: int, raw: torch.Tensor
) -> torch.Tensor:
    """Logits [N, V] of the tree's nodes after ``delivered`` tokens, the last being the anchor."""
    logits = raw.clone()
    prefix = torch.tensor([len(request.origin_input_ids) + delivered - 1])
    adjuster.adjust_nodes(batch_of(request), logits, TREE, make_layout(TREE, prefix), None)
    return logits


def test_nodes_follow_everything_delivered_before_them():
    asked = {"frequency_penalty": 0.3, "repetition_penalty": 1.3, "min_new_tokens": 6}
    request = PenalizedRequest([], [0, 3], **asked)  # the scheduler has seen no output yet
    adjuster = prefilled(request)
    deliver(adjuster, request, [6])
    deliver(adjuster, request, [7, 7, 5])
    raw = torch.randn(NODES, VOCAB)
    got = adjusted_nodes(adjuster, request, 4, raw)
    for node, path in enumerate([[], [6], [6, 7]]):
        expected = penalized_by_sglang(raw[node], request, [6, 7, 7, 5, *path])
        assert torch.equal(got[node], expected)
    assert got[:, END].isinf().tolist() == [True, True, False]  # 4, 5 and 6 tokens generated


def test_a_prompt_is_not_penalized():
    request = PenalizedRequest([], [6, 7], frequency_penalty=1.0)
    adjuster = prefilled(request)
    deliver(adjuster, request, [5])
    raw = torch.zeros(NODES, VOCAB)
    assert adjusted_nodes(adjuster, request, 1, raw)[0].nonzero().tolist() == [[5]]


def test_a_prefill_goes_on_from_the_output_that_is_read_again():
    """A retracted request: SGLang's own penalizers start from nothing."""
    request = PenalizedRequest([6, 6, 7], [0], frequency_penalty=0.3, min_new_tokens=4)
    adjuster = LogitAdjuster(VOCAB, DEPTH, "cpu")
    deliver(adjuster, request, [9, 9, 9, 9])  # tokens that the retraction dropped
    batch = batch_of(request)
    batch.sampling_info.acc_additive_penalties = torch.full((1, VOCAB), 77.0)
    adjuster.prepare_prefill(batch, None)
    raw = torch.randn(VOCAB)
    expected = penalized_by_sglang(raw, request, [6, 6, 7])
    assert torch.equal(raw + batch.sampling_info.acc_additive_penalties[0], expected)
    assert torch.equal(batch.sampling_info.acc_scaling_penalties, torch.ones(1, VOCAB))


def test_a_running_request_in_a_prefills_batch_keeps_its_newest_tokens():
    request = PenalizedRequest([], [0], frequency_penalty=1.0)
    adjuster = prefilled(request)
    deliver(adjuster, request, [6, 7])
    batch = batch_of(request, decoding_reqs=[request], seq_lens=torch.tensor([3]))
    batch.sampling_info.acc_additive_penalties = torch.zeros(1, VOCAB)
    adjuster.prepare_prefill(batch, None)
    assert batch.sampling_info.acc_additive_penalties[0].nonzero().flatten().tolist() == [6, 7]


def test_a_running_grammar_in_a_prefills_batch_is_brought_up_to_date():
    request = PenalizedRequest([], [0])
    called = []
    fields = {"has_grammar": True}
    adjuster = LogitAdjuster(VOCAB, DEPTH, "cpu")
    adjuster.prepare_prefill(batch_of(request, **fields), lambda: called.append("alone"))
    fields["decoding_reqs"] = [request]
    adjuster.prepare_prefill(batch_of(request, **fields), lambda: called.append("mixed"))
    assert called == ["mixed"], "a prompt's grammar starts fresh; waiting for others is for nothing"


def test_a_processor_has_the_last_word_and_bias_comes_behind_the_grammar():
    """As in plain decoding: a processor may force a token that the grammar forbids."""

    class Force(CustomLogitProcessor):
        def __call__(self, logits, custom_param_list=None):
            assert logits[0, 4] == float("-inf"), "masked before"
            assert logits[0, 2] == 3.0, "biased before"
            logits[:, 4] = 100.0
            return logits

    class ForbidFour:
        def apply(self, logits):
            assert logits[0, 2] == 0.0, "not yet biased"
            logits[:, 4] = float("-inf")

    bias = torch.zeros(1, VOCAB)
    bias[0, 2] = 3.0
    batch = batch_of(PenalizedRequest([], [0]))
    batch.sampling_info = sampling_info_with(Force(), [0], [None], VOCAB, bias)
    logits = torch.zeros(NODES, VOCAB)
    layout = make_layout(TREE, torch.tensor([0]))
    LogitAdjuster(VOCAB, DEPTH, "cpu").adjust_nodes(batch, logits, TREE, layout, ForbidFour())
    assert logits.argmax(dim=-1).tolist() == [4] * NODES
