"""The walk along the target's tokens."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_strategies import TreeCase, paths_of, random_lattice, tree_cases

from dflash_sglang.tree import DraftTree, build_tree
from dflash_sglang.verify import greedy_tokens, walk

quick = settings(max_examples=60, deadline=None)
NOWHERE = 10**6  # a token that no node carries


def force_path(tree: DraftTree, row: int, column: int, bonus: int) -> torch.Tensor:
    """Target tokens [1, N] that lead from the root to `column` and put `bonus` after it."""
    target = torch.full_like(tree.tokens[row], NOWHERE)
    target[column] = bonus
    while (parent := int(tree.parents[row, column])) >= 0:
        target[parent] = tree.tokens[row, column]
        column = parent
    return target.unsqueeze(0)


def one_row(tree: DraftTree, row: int) -> DraftTree:
    return DraftTree(*(field[row : row + 1] for field in tree))


@quick
@given(tree_cases(max_positions=6, max_candidates=8), st.randoms(use_true_random=False))
def test_a_forced_path_is_returned_with_its_bonus(case: TreeCase, random) -> None:
    tree = case.build()
    column = random.randrange(int(tree.num_nodes[0]))
    verdict = walk(one_row(tree, 0), force_path(tree, 0, column, NOWHERE), case.max_depth)
    path = paths_of(tree, 0)[column]
    behind = case.max_depth - len(path)
    assert verdict.accept_lens.tolist() == [len(path) + 1]
    assert verdict.tokens.tolist() == [[*path, NOWHERE, *[0] * behind]]
    assert verdict.bonus.tolist() == [NOWHERE]
    nodes = verdict.node_path[0].tolist()
    assert nodes[0] == 0 and nodes[len(path)] == column and nodes[len(path) + 1 :] == [-1] * behind
    assert [int(tree.parents[0, v]) for v in nodes[1 : len(path) + 1]] == nodes[: len(path)]


@quick
@given(tree_cases(max_positions=6, max_candidates=4), st.integers(0, 2**31))
def test_the_walk_is_what_a_step_by_step_descent_finds(case: TreeCase, seed: int) -> None:
    tree = case.build()
    bs, N = tree.tokens.shape
    generator = torch.Generator().manual_seed(seed)
    # Mostly tokens of the tree, so that paths get long, and some that never match.
    picked = torch.randint(0, N, (bs, N), generator=generator)
    target = tree.tokens.gather(1, picked)
    verdict = walk(tree, target, case.max_depth)
    for row in range(bs):
        nodes, delivered = [0], []
        while True:
            token = int(target[row, nodes[-1]])
            delivered.append(token)
            hit = (tree.parents[row] == nodes[-1]) & (tree.tokens[row] == token)
            if not hit.any():
                break
            nodes.append(int(hit.nonzero()))
        length = len(nodes)
        assert int(verdict.accept_lens[row]) == length
        assert verdict.node_path[row, :length].tolist() == nodes
        assert (verdict.node_path[row, length:] == -1).all()
        assert verdict.tokens[row, :length].tolist() == delivered
        assert (verdict.tokens[row, length:] == 0).all()
        assert int(verdict.bonus[row]) == delivered[-1]


def chain(tokens: list[int], anchor: int = 9) -> DraftTree:
    lattice = random_lattice(1, len(tokens), 1, seed=0)
    lattice = lattice._replace(tokens=torch.tensor(tokens).view(1, -1, 1))
    return build_tree(lattice, torch.tensor([anchor]), len(tokens) + 1, len(tokens), 1)


def test_walk_stops_at_first_miss() -> None:
    verdict = walk(chain([1, 2, 3, 4]), torch.tensor([[1, 2, 77, 4, 5]]), 4)
    assert verdict.accept_lens.tolist() == [3]
    assert verdict.tokens.tolist() == [[1, 2, 77, 0, 0]]
    assert verdict.node_path.tolist() == [[0, 1, 2, -1, -1]]


def test_everything_accepted_still_delivers_a_bonus() -> None:
    verdict = walk(chain([1, 2]), torch.tensor([[1, 2, 3]]), 2)
    assert verdict.accept_lens.tolist() == [3] and verdict.bonus.tolist() == [3]


def test_walk_goes_no_deeper_than_asked() -> None:
    verdict = walk(chain([1, 2, 3]), torch.tensor([[1, 2, 3, 4]]), max_depth=1)
    assert verdict.tokens.tolist() == [[1, 2]] and verdict.accept_lens.tolist() == [2]


def test_depth_zero_delivers_one_token() -> None:
    verdict = walk(chain([1]), torch.tensor([[1, 2]]), max_depth=0)
    assert verdict.tokens.tolist() == [[1]] and verdict.node_path.tolist() == [[0]]


def test_padding_is_never_walked_even_if_the_target_repeats_the_anchor() -> None:
    tree = build_tree(random_lattice(1, 1, 2, seed=0), torch.tensor([7]), 8, 1, 2)
    verdict = walk(tree, torch.full((1, 8), 7), 1)
    assert verdict.accept_lens.tolist() == [1] and verdict.tokens.tolist() == [[7, 0]]


def test_an_anchor_equal_to_the_target_token_is_not_accepted_again() -> None:
    verdict = walk(chain([1, 2], anchor=5), torch.tensor([[5, 5, 5]]), 2)
    assert verdict.accept_lens.tolist() == [1] and verdict.bonus.tolist() == [5]


@pytest.mark.parametrize("mask_token_id", [0, 4095])
def test_the_mask_token_is_an_ordinary_token(mask_token_id: int) -> None:
    """Accepted inside the path, delivered as bonus, and good as an anchor."""
    tree = chain([3, mask_token_id], anchor=mask_token_id)
    verdict = walk(tree, torch.tensor([[3, mask_token_id, mask_token_id]]), 2)
    assert verdict.tokens.tolist() == [[3, mask_token_id, mask_token_id]]
    assert verdict.accept_lens.tolist() == [3] and verdict.bonus.tolist() == [mask_token_id]


def test_target_tokens_of_another_tree_are_refused() -> None:
    with pytest.raises(ValueError, match=r"target_tokens must be \[1, 3\] to fit the tree, got"):
        walk(chain([1, 2]), torch.zeros(1, 4).long(), 2)


def test_greedy_takes_the_lowest_id_among_equal_logits() -> None:
    logits = torch.tensor([[[0.0, 2.0, 2.0], [1.0, 1.0, 1.0]]])
    assert greedy_tokens(logits).tolist() == [[1, 0]]
