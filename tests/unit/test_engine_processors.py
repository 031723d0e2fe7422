"""At every draft node a custom logit processor sees the request as decoding would show it."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor
from sglang_penalizers import PenalizedRequest
from sglang_sampling_info import sampling_info_with

from dflash_sglang.engine.processors import Delivered, OutputsOnHost, process_nodes
from dflash_sglang.tree import DraftTree

VOCAB = 20
#    0
#   / \
#  1   2
#  |
#  3
TREE = DraftTree(
    tokens=torch.tensor([[10, 11, 12, 13], [5, 6, 7, 8]]),
    parents=torch.tensor([[-1, 0, 0, 1], [-1, 0, 0, 1]]),
    depths=torch.tensor([[0, 1, 1, 2], [0, 1, 1, 2]]),
    log_values=torch.zeros(2, 4),
    num_nodes=torch.tensor([4, 4]),
)
NODES = 4


class ForbidEverythingSaid(CustomLogitProcessor):
    """Depends on the whole output, and on a parameter."""

    def __call__(self, logits, custom_param_list=None):
        for row, params in zip(logits, custom_param_list, strict=True):
            request = params["__req__"]
            row[list(request.output_ids)] = float("-inf")
            row[params["forbidden"]] = float("-inf")
        return logits


def forbidden(logits: torch.Tensor) -> list[list[int]]:
    return [row.isinf().nonzero().flatten().tolist() for row in logits]


def test_each_node_sees_the_output_on_its_own_path():
    """The scheduler has seen [3]; the step before delivered [4, 10] beyond it."""
    requests = [PenalizedRequest([3], prompt=[0, 0]), PenalizedRequest([5], prompt=[0])]
    last = Delivered(
        {requests[0].rid: 1, requests[1].rid: 0},
        torch.tensor([[5, 0, 0], [4, 10, 0]]),
        torch.tensor([1, 2]),
    )
    lens = torch.tensor([2 + 3, 1 + 1])  # prompt and output, anchors included
    params = [{"__req__": req, "forbidden": 19} for req in requests]
    info = sampling_info_with(ForbidEverythingSaid(), [0, 1], params, VOCAB)
    logits = torch.zeros(2 * NODES, VOCAB)
    process_nodes(logits, info, OutputsOnHost(requests, lens, last, TREE), NODES)
    assert forbidden(logits) == [
        [3, 4, 10, 19],
        [3, 4, 10, 11, 19],
        [3, 4, 10, 12, 19],
        [3, 4, 10, 11, 13, 19],
        [5, 19],
        [5, 6, 19],
        [5, 7, 19],
        [5, 6, 8, 19],
    ]
    assert list(requests[0].output_ids) == [3], "the scheduler's own request is left alone"


def test_requests_without_a_processor_keep_their_logits():
    requests = [PenalizedRequest([3]), PenalizedRequest([5])]
    params = [None, {"__req__": requests[1], "forbidden": 19}]
    info = sampling_info_with(ForbidEverythingSaid(), [1], params, VOCAB)
    logits = torch.zeros(2 * NODES, VOCAB)
    lens = torch.tensor([2, 2])
    process_nodes(logits, info, OutputsOnHost(requests, lens, None, TREE), NODES)
    assert forbidden(logits)[:NODES] == [[]] * NODES
    assert forbidden(logits)[NODES] == [5, 19]


def test_a_processor_that_looks_at_parameters_only_waits_for_nobody():
    class Forbid(CustomLogitProcessor):
        def __call__(self, logits, custom_param_list=None):
            logits[:, custom_param_list[0]["forbidden"]] = float("-inf")
            return logits

    requests = [PenalizedRequest([3])]
    nothing = SimpleNamespace()  # any look at a device's tensor would fail
    outputs = OutputsOnHost(requests, nothing, nothing, nothing)
    logits = torch.zeros(NODES, VOCAB)
    params = [{"__req__": requests[0], "forbidden": 7}]
    info = sampling_info_with(Forbid(), [0], params, VOCAB)
    process_nodes(logits, info, outputs, NODES)
    assert forbidden(logits) == [[7]] * NODES


def test_all_that_sglang_derives_from_the_output_agrees_with_it():
    class Request(PenalizedRequest):
        @property
        def seqlen(self) -> int:
            return len(self.origin_input_ids) + len(self.output_ids)

    request = Request([3], prompt=[0, 0])
    last = Delivered({request.rid: 0}, torch.tensor([[10]]), torch.tensor([1]))
    outputs = OutputsOnHost([request], torch.tensor([4]), last, TREE)
    assert outputs.request(0, 3).seqlen == 2 + 2 + 2
    assert list(outputs.request(0, 3).output_ids) == [3, 10, 11, 13]
    assert outputs.request(0).rid == request.rid
