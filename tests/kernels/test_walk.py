"""Walk and commit of the compiled kernels equal their PyTorch references."""

from __future__ import annotations

import pytest
import torch
from effort import cases
from hypothesis import given
from hypothesis import strategies as st
from tree_cases import LatticeCase, assert_equal, lattice_cases

from dflash_sglang.kernels import kv, library, walk

library.load()

quick = cases(60)


def target_tokens(case: LatticeCase, seed: int) -> torch.Tensor:
    """Mostly the token of some child, so that paths get long; sometimes a token of nobody's."""
    built = case.tree()
    bs, N = built.tokens.shape
    generator = torch.Generator().manual_seed(seed)
    target = torch.full((bs, N), -5)
    order = torch.randperm(N, generator=generator)
    for b in range(bs):
        for column in order.tolist():
            if built.parents[b, column] >= 0:
                target[b, built.parents[b, column]] = built.tokens[b, column]
    missing = torch.rand(bs, N, generator=generator) < 0.1
    return target.masked_fill(missing, -7)


@quick
@given(lattice_cases(), st.integers(0, 2**31))
def test_walk_equals_reference(case: LatticeCase, seed: int) -> None:
    built = case.tree()
    arguments = (*built[:3], target_tokens(case, seed), case.max_depth)
    assert_equal(walk.walk_tree(*arguments), walk._walk_reference(*arguments))


@quick
@given(lattice_cases(), st.integers(0, 2**31), st.integers(0, 15))
def test_walk_stops_at_max_depth(case: LatticeCase, seed: int, max_depth: int) -> None:
    arguments = (*case.tree()[:3], target_tokens(case, seed), max_depth)
    verdict = walk.walk_tree(*arguments)
    assert int(verdict.accept_lens.max()) <= max_depth + 1
    assert_equal(verdict, walk._walk_reference(*arguments))


@quick
@given(lattice_cases(), st.integers(0, 2**31))
def test_commit_equals_reference(case: LatticeCase, seed: int) -> None:
    path = walk._walk_reference(*case.tree()[:3], target_tokens(case, seed), case.max_depth)[0]
    bs, length = path.shape
    width = max(length, case.num_nodes)
    slots = torch.randperm(bs * width, generator=torch.Generator().manual_seed(seed))
    arguments = (path, slots.view(bs, width), torch.arange(bs) * 11, case.num_nodes)
    assert_equal(walk.commit_path(*arguments), walk._commit_reference(*arguments))


@quick
@given(lattice_cases(), st.integers(0, 2**31))
def test_committed_path_stands_in_consecutive_slots(case: LatticeCase, seed: int) -> None:
    """The moves overlap: sources of one are targets of another."""
    verdict = walk.walk_tree(*case.tree()[:3], target_tokens(case, seed), case.max_depth)
    bs, length = verdict.node_path.shape
    width = max(length, case.num_nodes)
    slots = torch.arange(bs * width).view(bs, width)
    cache = torch.arange(bs * width).float().unsqueeze(1).repeat(1, 3)  # a slot holds its number
    moves = walk.commit_path(verdict.node_path, slots, torch.zeros(bs).long(), case.num_nodes)
    pointers = torch.tensor([cache.data_ptr()], dtype=torch.uint64)
    kv.move_kv(pointers, torch.tensor([12]), moves.targets, moves.sources)
    for b, accepted in enumerate(verdict.accept_lens.tolist()):
        path = verdict.node_path[b, :accepted]
        assert cache[slots[b, :accepted], 0].long().tolist() == slots[b, path].tolist()
    assert torch.equal(moves.new_lens, verdict.accept_lens)


def test_tensors_that_do_not_fit_are_refused() -> None:
    if library.load() != "compiled":
        pytest.skip("the references trust their caller")
    three, four = torch.zeros(1, 3).long(), torch.zeros(1, 4).long()
    with pytest.raises(ValueError, match=r"int64 target_tokens \[1, 3\], got \[1, 4\]"):
        walk.walk_tree(three, three - 1, three, four, 2)
    with pytest.raises(ValueError, match="slots for 4 nodes and 3 accepted tokens, got 3"):
        walk.commit_path(three, three, torch.zeros(1).long(), 4)
    with pytest.raises(ValueError, match="expects nodes below 3 or -1, got 3"):
        walk.commit_path(three + 3, three, torch.zeros(1).long(), 3)
