"""Tree construction and layout of the compiled kernels equal their PyTorch references."""

from __future__ import annotations

import pytest
import torch
from effort import cases
from hypothesis import given
from tree_cases import LatticeCase, assert_equal, lattice_cases, random_case

from dflash_sglang.kernels import library, tree

library.load()

quick = cases(60)


@quick
@given(lattice_cases())
def test_build_equals_reference(case: LatticeCase) -> None:
    assert_equal(tree.build_tree(*case), tree._build_reference(*case))


def test_edges_are_read_with_any_strides() -> None:
    case = random_case(3, 6, 8, 0, num_nodes=32, max_depth=6, max_children=4)
    unary = case.log_probs[:, :, :1].expand(3, 6, 8, 8)  # a drafter without selector
    swapped = case.log_probs.mT.contiguous().mT
    for edges in (unary, swapped):
        laid_out = case._replace(log_probs=edges)
        dense = case._replace(log_probs=edges.contiguous())
        assert_equal(tree.build_tree(*laid_out), tree.build_tree(*dense))


def test_certain_edges_tie_by_depth_then_candidate() -> None:
    case = random_case(1, 3, 3, 1, num_nodes=40, max_depth=3, max_children=3)
    case = case._replace(log_probs=torch.zeros_like(case.log_probs))
    built = tree.build_tree(*case)
    assert built.depths[0].tolist() == [0] + [1] * 3 + [2] * 9 + [3] * 27
    assert built.parents[0, 4:7].tolist() == [1, 2, 3]  # candidate 0 of every parent comes first
    assert_equal(built, tree._build_reference(*case))


@quick
@given(lattice_cases())
def test_layout_equals_reference(case: LatticeCase) -> None:
    built = case.tree()
    prefix_lens = torch.arange(case.anchors.shape[0]) * 37
    arguments = (built.parents, built.depths, prefix_lens)
    assert_equal(tree.tree_layout(*arguments), tree._layout_reference(*arguments))


@quick
@given(lattice_cases())
def test_ancestor_bits_equal_reference_and_mask(case: LatticeCase) -> None:
    built = case.tree()
    bits = tree.ancestor_bits(built.parents)
    assert torch.equal(bits, tree._bits_reference(built.parents))
    columns = torch.arange(built.parents.shape[1])
    mask = (bits[..., columns // 64] >> (columns % 64)) & 1
    prefix_lens = torch.zeros_like(case.anchors)
    assert torch.equal(mask.bool(), tree.tree_layout(built.parents, built.depths, prefix_lens).mask)


def test_an_empty_batch_gives_empty_trees() -> None:
    case = random_case(2, 3, 4, 0, num_nodes=5, max_depth=3, max_children=4)
    empty = LatticeCase(*(part[:0] for part in case[:3]), *case[3:])
    assert tree.build_tree(*empty).tokens.shape == (0, 5)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"num_nodes": 0}, "num_nodes >= 1"),
        ({"max_depth": 4}, "0 <= max_depth <= 3"),
        ({"max_children": 0}, "max_children >= 1"),
        ({"anchors": torch.zeros(3, dtype=torch.int64)}, r"int64 anchors \[2\]"),
        ({"log_probs": torch.zeros(2, 3, 4, 5)}, r"float32 log_probs \[2, 3, 4, 4\]"),
        ({"tokens": torch.zeros(2, 3, 4)}, "int64 tokens"),
    ],
)
def test_input_that_does_not_fit_is_refused(change: dict, sentence: str) -> None:
    if library.load() != "compiled":
        pytest.skip("the references trust their caller")
    case = random_case(2, 3, 4, 0, num_nodes=5, max_depth=3, max_children=4)
    with pytest.raises(ValueError, match=sentence):
        tree.build_tree(*case._replace(**change))


@pytest.mark.parametrize("parent", [3, 1, -2])
def test_a_parent_that_does_not_precede_its_child_is_refused(parent: int) -> None:
    if library.load() != "compiled":
        pytest.skip("the references trust their caller")
    parents = torch.tensor([[-1, parent, 0]])
    with pytest.raises(ValueError, match=f"got {parent} in column 1"):
        tree.tree_layout(parents, torch.zeros_like(parents), torch.tensor([4]))
