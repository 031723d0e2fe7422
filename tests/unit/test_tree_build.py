"""The draft tree: which nodes, in which order."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_strategies import TreeCase, best_paths, paths_of, random_lattice, tree_cases

from dflash_sglang.kernels.beam import beam_tree
from dflash_sglang.kernels.best_first import best_first_tree
from dflash_sglang.tree import Lattice, LatticeError, build_tree

quick = settings(max_examples=60, deadline=None)


@quick
@given(tree_cases())
def test_the_nodes_are_the_best_of_all_paths_in_order_of_value(case: TreeCase) -> None:
    tree = case.build()
    for row in range(tree.tokens.shape[0]):
        assert paths_of(tree, row) == best_paths(case, row)


@quick
@given(tree_cases(max_positions=7, max_candidates=16))
def test_a_parent_precedes_its_children_one_level_above_them(case: TreeCase) -> None:
    tree = case.build()
    for row, count in enumerate(tree.num_nodes.tolist()):
        assert tree.parents[row, 0] == -1 and tree.depths[row, 0] == 0
        for column in range(1, count):
            parent = int(tree.parents[row, column])
            assert 0 <= parent < column
            assert tree.depths[row, column] == tree.depths[row, parent] + 1
            assert tree.log_values[row, column] <= tree.log_values[row, column - 1]


@quick
@given(tree_cases(max_positions=7, max_candidates=16))
def test_limits_on_depth_and_children_hold(case: TreeCase) -> None:
    tree = case.build()
    assert int(tree.depths.max()) <= case.max_depth
    for row, count in enumerate(tree.num_nodes.tolist()):
        families = torch.bincount(tree.parents[row, 1:count].clamp(min=0), minlength=1)
        assert int(families.max()) <= case.max_children or count == 1


@quick
@given(tree_cases(max_positions=7, max_candidates=16))
def test_siblings_carry_distinct_tokens(case: TreeCase) -> None:
    tree = case.build()
    for row in range(tree.tokens.shape[0]):
        paths = paths_of(tree, row)
        assert len(set(paths)) == len(paths)


@quick
@given(tree_cases(max_positions=7, max_candidates=16))
def test_the_value_of_a_node_is_the_product_along_its_path(case: TreeCase) -> None:
    tree = case.build()
    tokens, log_probs = case.lattice
    for row in range(tree.tokens.shape[0]):
        for column, path in enumerate(paths_of(tree, row)):
            value, predecessor = 0.0, 0
            for t, token in enumerate(path):
                candidate = tokens[row, t].tolist().index(token)
                value += float(log_probs[row, t, predecessor, candidate])
                predecessor = candidate
            assert value == pytest.approx(float(tree.log_values[row, column]), abs=1e-6)


@quick
@given(tree_cases(max_positions=5, max_candidates=8), st.integers(1, 24))
def test_the_first_n_columns_are_the_tree_of_n_nodes(case: TreeCase, fewer: int) -> None:
    n = min(fewer, case.num_nodes)
    large, small = case.build(), case._replace(num_nodes=n).build()
    for big, little in zip(large[:-1], small[:-1], strict=True):
        assert torch.equal(big[:, :n], little)


@quick
@given(tree_cases(max_positions=7, max_candidates=8))
def test_one_child_a_node_is_the_greedy_path_through_the_lattice(case: TreeCase) -> None:
    case = case._replace(max_children=1, num_nodes=case.max_depth + 1)
    tree = case.build()
    tokens, log_probs = case.lattice
    for row in range(tree.tokens.shape[0]):
        predecessor, greedy = 0, []
        for t in range(case.max_depth):
            predecessor = int(log_probs[row, t, predecessor].argmax())
            greedy.append(int(tokens[row, t, predecessor]))
        assert tree.tokens[row, 1:].tolist() == greedy
        assert tree.parents[row].tolist() == list(range(-1, case.max_depth))


@quick
@given(tree_cases(max_positions=7, max_candidates=16))
def test_beam_and_best_first_choose_the_same_nodes(case: TreeCase) -> None:
    limits = (case.num_nodes, case.max_depth, case.max_children)
    edges = case.lattice.log_probs
    exact, beam = best_first_tree(edges, *limits), beam_tree(edges, *limits)
    for field, a, b in zip(exact._fields, exact, beam, strict=True):
        assert torch.equal(a, b), field


@quick
@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 30), st.integers(1, 5))
def test_ties_break_by_depth_then_candidate_rank(g: int, K: int, N: int, children: int) -> None:
    """All edges alike within a position, the second half of positions certain: everything ties."""
    lattice = random_lattice(2, g, K, seed=0)
    log_probs = torch.full_like(lattice.log_probs, -1.0)
    log_probs[:, g // 2 :] = 0.0
    case = TreeCase(lattice._replace(log_probs=log_probs), torch.zeros(2).long(), N, g, children)
    assert paths_of(case.build(), 0) == best_paths(case, 0)
    exact, beam = (search(log_probs, N, g, children) for search in (best_first_tree, beam_tree))
    assert all(torch.equal(a, b) for a, b in zip(exact, beam, strict=True))


@pytest.mark.parametrize("search", [best_first_tree, beam_tree])
def test_impossible_edges_are_never_taken(search) -> None:
    lattice = random_lattice(1, 3, 4, seed=1)
    log_probs = lattice.log_probs.clone()
    log_probs[:, :, :, 1] = -torch.inf
    log_probs[:, :, :, 2] = torch.nan
    chosen = search(log_probs, 64, 3, 4)
    assert chosen.num_nodes.item() == 1 + 2 + 4 + 8
    assert set(chosen.candidates[0, 1:15].tolist()) == {0, 3}


def test_padding_carries_the_anchor_and_no_parent() -> None:
    lattice = random_lattice(2, 2, 2, seed=2)
    tree = build_tree(lattice, torch.tensor([7, 8]), num_nodes=10, max_depth=2, max_children=2)
    assert tree.num_nodes.tolist() == [7, 7]
    assert tree.tokens[:, 7:].tolist() == [[7] * 3, [8] * 3]
    assert (tree.parents[:, 7:] == -1).all() and (tree.depths[:, 7:] == 0).all()
    assert (tree.log_values[:, 7:] == -torch.inf).all()


def test_depth_zero_is_plain_decoding() -> None:
    tree = build_tree(random_lattice(2, 3, 4, seed=3), torch.tensor([5, 6]), 1, 0, 4)
    assert tree.tokens.tolist() == [[5], [6]] and tree.num_nodes.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        ((0, 2, 1), "num_nodes counts the root and must be at least 1, got 0"),
        ((4, 4, 1), "max_depth must lie between 0 and the lattice's 3 positions, got 4"),
        ((4, -1, 1), "max_depth must lie between 0 and the lattice's 3 positions, got -1"),
        ((4, 2, 0), "max_children must be at least 1, got 0"),
    ],
)
def test_limits_out_of_range_are_refused(limits: tuple[int, int, int], sentence: str) -> None:
    with pytest.raises(LatticeError, match=sentence):
        build_tree(random_lattice(1, 3, 4, seed=0), torch.tensor([0]), *limits)


def test_anchors_of_another_batch_are_refused() -> None:
    lattice: Lattice = random_lattice(2, 3, 4, seed=0)
    with pytest.raises(LatticeError, match=r"anchors must be \[2\]"):
        build_tree(lattice, torch.tensor([0]), 4, 3, 2)
