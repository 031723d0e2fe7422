"""Penalties at every node equal SGLang's penalizers fed with that node's own path."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_penalizers import PenalizedRequest, penalized_by_sglang
from tree_strategies import TreeCase, paths_of, tree_cases

from dflash_sglang.tree import DraftTree, make_layout
from dflash_sglang.verify.penalties import PenaltyState, forbid_tokens, penalize_nodes

quick = settings(max_examples=40, deadline=None)
VOCAB = 12  # few tokens, so that paths repeat their own and each other's
penalties = st.sampled_from([0.0, 0.3, 1.1, -0.7])


def small_vocabulary(tree: DraftTree) -> DraftTree:
    """The same tree with tokens that repeat along paths; siblings may carry the same."""
    return tree._replace(tokens=tree.tokens % VOCAB)


def state_behind(requests: list[PenalizedRequest]) -> PenaltyState:
    """What the requests have generated, counted token by token."""
    sums = torch.zeros(len(requests), VOCAB)
    is_present = torch.zeros(len(requests), VOCAB, dtype=torch.bool)
    for row, request in enumerate(requests):
        for token in request.output_ids:
            sums[row, token] += request.sampling_params.frequency_penalty
            is_present[row, token] = True
    asked = [request.sampling_params for request in requests]
    return PenaltyState(
        torch.tensor([params.frequency_penalty for params in asked]),
        torch.tensor([params.presence_penalty for params in asked]),
        torch.tensor([params.repetition_penalty for params in asked]),
        sums,
        is_present,
    )


@quick
@given(
    case=tree_cases(max_positions=5, max_candidates=4),
    frequency=penalties,
    presence=penalties,
    repetition=st.sampled_from([1.0, 1.3, 0.8]),
    history=st.lists(st.integers(0, VOCAB - 1), max_size=8),
)
def test_every_node_is_penalized_for_its_own_path(
    case: TreeCase, frequency, presence, repetition, history
) -> None:
    tree = small_vocabulary(case.build())
    bs, nodes = tree.tokens.shape
    requests = [
        # The anchor was generated, too; every request has another history.
        PenalizedRequest(
            [*history[row:], int(tree.tokens[row, 0])],
            frequency_penalty=frequency,
            presence_penalty=presence,
            repetition_penalty=repetition,
        )
        for row in range(bs)
    ]
    raw = torch.randn(bs, nodes, VOCAB, generator=torch.Generator().manual_seed(len(history)))
    raw[:, :, 3] = float("-inf")
    got = raw.clone()
    layout = make_layout(tree, torch.zeros(bs, dtype=torch.int64))
    penalize_nodes(got, state_behind(requests), tree.tokens, layout.mask, case.max_depth)
    for row, request in enumerate(requests):
        for node, path in enumerate(paths_of(tree, row)):
            expected = penalized_by_sglang(raw[row, node], request, [*request.output_ids, *path])
            assert torch.equal(got[row, node], expected)


def test_a_token_that_a_path_repeats_is_added_up_in_sglangs_steps() -> None:
    """In float32, 0.1 added seven times is not 0.7."""
    depth = 7
    tokens = torch.full((1, depth + 1), 4)
    parents = torch.arange(-1, depth)[None]
    chain = DraftTree(tokens, parents, parents + 1, torch.zeros(1, depth + 1), torch.tensor([8]))
    request = PenalizedRequest([4], frequency_penalty=0.1)
    got = torch.zeros(1, depth + 1, VOCAB)
    layout = make_layout(chain, torch.tensor([0]))
    penalize_nodes(got, state_behind([request]), tokens, layout.mask, depth)
    for node in range(depth + 1):
        expected = penalized_by_sglang(torch.zeros(VOCAB), request, [4] * (node + 1))
        assert torch.equal(got[0, node], expected)


def test_no_penalty_leaves_every_bit_as_it_was() -> None:
    raw = torch.randn(1, 2, VOCAB)
    got = raw.clone()
    tokens = torch.tensor([[1, 2]])
    is_ancestor = torch.tensor([[[True, False], [True, True]]])
    penalize_nodes(got, state_behind([PenalizedRequest([1, 1, 5])]), tokens, is_ancestor, 1)
    assert torch.equal(got, raw)


def test_tokens_are_forbidden_at_the_named_nodes_only() -> None:
    raw = torch.randn(2, 3, VOCAB)
    got = raw.clone()
    stops = torch.tensor([[4, 7], [5, 5]])  # the second request has one stop token
    nodes = torch.tensor([[True, False, True], [False, True, False]])
    forbid_tokens(got, stops, nodes)
    expected = raw.clone()
    expected[0, 0, [4, 7]] = expected[0, 2, [4, 7]] = float("-inf")
    expected[1, 1, 5] = float("-inf")
    assert torch.equal(got, expected)
