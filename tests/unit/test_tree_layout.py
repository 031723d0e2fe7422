"""Positions, mask and links of a tree."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from tree_strategies import TreeCase, random_lattice, tree_cases

from dflash_sglang.tree import LatticeError, build_tree, make_layout

quick = settings(max_examples=60, deadline=None)


def prefix_lens(case: TreeCase) -> torch.Tensor:
    return torch.arange(case.anchors.shape[0]) * 100 + 3


@quick
@given(tree_cases(max_positions=7, max_candidates=8))
def test_a_node_sees_exactly_itself_and_its_ancestors(case: TreeCase) -> None:
    tree = case.build()
    mask = make_layout(tree, prefix_lens(case)).mask
    bs, N = tree.tokens.shape
    expected = torch.zeros(bs, N, N, dtype=torch.bool)
    for row in range(bs):
        for column in range(N):
            seen = column
            while seen >= 0:
                expected[row, column, seen] = True
                seen = int(tree.parents[row, seen])
    assert torch.equal(mask, expected)


@quick
@given(tree_cases())
def test_nodes_of_one_depth_share_a_position(case: TreeCase) -> None:
    tree = case.build()
    layout = make_layout(tree, prefix_lens(case))
    assert torch.equal(
        layout.positions - tree.depths, prefix_lens(case)[:, None].expand_as(tree.depths)
    )


@quick
@given(tree_cases(max_positions=5, max_candidates=6))
def test_links_visit_the_children_of_every_node_in_order(case: TreeCase) -> None:
    tree = case.build()
    layout = make_layout(tree, prefix_lens(case))
    bs, N = tree.tokens.shape
    for row in range(bs):
        for column in range(N):
            children, child = [], int(layout.first_child[row, column])
            while child >= 0:
                children.append(child)
                child = int(layout.next_sibling[row, child])
            assert children == (tree.parents[row] == column).nonzero().flatten().tolist()


def test_a_long_chain_reaches_back_to_the_root() -> None:
    lattice = random_lattice(1, 300, 1, seed=0)
    tree = build_tree(lattice, torch.tensor([1]), 301, 300, 1)
    mask = make_layout(tree, torch.tensor([0])).mask
    assert torch.equal(mask[0], torch.ones(301, 301).tril().bool())


def test_prefixes_of_another_batch_are_refused() -> None:
    tree = build_tree(random_lattice(2, 2, 2, seed=0), torch.tensor([0, 0]), 4, 2, 2)
    with pytest.raises(LatticeError, match=r"prefix_lens must be \[2\] to fit the tree, got \[3\]"):
        make_layout(tree, torch.tensor([1, 2, 3]))
