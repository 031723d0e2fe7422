"""A request's bounds on its own speculation: parsed, refused by name, and kept in the walk."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dflash_sglang.engine.limits import LimitTable
from dflash_sglang.request_limits import LimitsError, RequestLimits, parse_limits
from dflash_sglang.tree.build import DraftTree
from dflash_sglang.verify.walk import walk

CHAIN = DraftTree(
    tokens=torch.tensor([[9, 5, 6, 7]] * 2),
    parents=torch.tensor([[-1, 0, 1, 2]] * 2),
    depths=torch.tensor([[0, 1, 2, 3]] * 2),
    log_values=torch.zeros(2, 4),
    num_nodes=torch.tensor([4, 4]),
)
ALL_RIGHT = torch.tensor([[5, 6, 7, 8]] * 2)


def request(row, **limits):
    params = SimpleNamespace(custom_params={"dflash2": limits} if limits else None)
    return SimpleNamespace(kv=SimpleNamespace(req_pool_idx=row), sampling_params=params)


def accepted(*requests):
    table = LimitTable(8, nodes=4, depth=3, device="cpu")
    table.admit(list(requests))
    rows = torch.tensor([r.kv.req_pool_idx for r in requests])
    return walk(table.bound(list(requests), rows, CHAIN), ALL_RIGHT, 3).accept_lens.tolist()


def test_requests_without_limits_have_none():
    assert parse_limits(None) == parse_limits({"other": 1}) == RequestLimits()
    assert accepted(request(2), request(5)) == [4, 4]


@pytest.mark.parametrize(
    ("limits", "tokens"),
    [
        ({"max_depth": 1}, 2),
        ({"nodes": 3}, 3),
        ({"speculate": False}, 1),
        ({"max_depth": 99, "nodes": 99}, 4),
    ],
)
def test_a_limit_holds_for_its_request_alone(limits, tokens):
    assert accepted(request(2, **limits), request(5)) == [tokens, 4]


def test_a_row_forgets_the_limits_of_the_request_before():
    table = LimitTable(4, nodes=4, depth=3, device="cpu")
    table.admit([request(1, speculate=False)])
    assert not table.may_speculate([request(1)])
    table.admit([request(1)])
    assert table.may_speculate([request(1)])
    assert table.bound([request(1)], torch.tensor([1]), CHAIN) is CHAIN


def test_no_more_tokens_are_expected_than_the_limits_allow():
    table = LimitTable(4, nodes=4, depth=3, device="cpu")
    table.admit([request(0, max_depth=1), request(1)])
    assert table.bounds(np.array([0, 1])).tolist() == [[4, 1], [4, 3]]
    values = table.values(np.array([0, 1]), CHAIN.depths.numpy(), np.full((2, 4), 0.5))
    assert values.tolist() == [[0.5, 0.5, 0.0, 0.0], [0.5] * 4]
    tokens = table.tokens(np.array([0, 1]), np.array([[1.0, 3.5], [1.0, 3.5]]))
    assert tokens.tolist() == [[1.0, 2.0], [1.0, 3.5]]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"depth": 3}, "unknown field `depth`"),
        ({"max_depth": 0}, ">= 1"),
        ({"nodes": "many"}, "Expected `int | null`"),
        (7, "Expected `object`"),
    ],
)
def test_bad_limits_are_refused_with_an_example(given, sentence):
    with pytest.raises(LimitsError, match=r"max_depth.*nodes.*speculate") as caught:
        parse_limits({"dflash2": given})
    assert sentence in str(caught.value)
