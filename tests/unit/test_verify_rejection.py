"""Classical rejection sampling: the yardstick must itself be right.

Chi-square tests use fixed seeds; a right sampler would fail one with probability 10^-4.
"""

from __future__ import annotations

import pytest
import torch
from chi_square import assert_law
from torch import Tensor

from dflash_sglang.tree import DraftTree
from dflash_sglang.verify.rejection import rejection_walk

ERROR_RATE = 1e-4
VOCAB = 5
# Laws given the previous token; the anchor is token 0.
TARGET = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(1)).softmax(-1)
DRAFT = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(2)).softmax(-1)


def sampled_trees(n: int, children: int, depth: int, seed: int) -> DraftTree:
    """n full trees; the children of a node are drawn from DRAFT without replacement."""
    generator = torch.Generator().manual_seed(seed)
    levels = [torch.zeros(n, 1, dtype=torch.int64)]
    parents, depths = [-1], [0]
    start = 0
    for d in range(1, depth + 1):
        last = levels[-1]  # [n, width]
        width = last.shape[1]
        drawn = torch.multinomial(DRAFT[last].view(-1, VOCAB), children, generator=generator)
        levels.append(drawn.view(n, width * children))
        parents += [start + i for i in range(width) for _ in range(children)]
        depths += [d] * (width * children)
        start += width
    N = len(parents)
    return DraftTree(
        tokens=torch.cat(levels, dim=1),
        parents=torch.tensor(parents).expand(n, N),
        depths=torch.tensor(depths).expand(n, N),
        log_values=torch.zeros(n, N),
        num_nodes=torch.full((n,), N),
    )


def walk_all(tree: DraftTree, depth: int, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    return rejection_walk(tree, DRAFT[tree.tokens], TARGET[tree.tokens], depth, generator)


@pytest.mark.parametrize("children", [1, 2, 4])
def test_the_first_token_follows_the_target(children: int) -> None:
    verdict = walk_all(sampled_trees(20_000, children, 1, seed=children), 1)
    assert_law(verdict.tokens[:, 0], TARGET[0], ERROR_RATE)


@pytest.mark.parametrize("children", [1, 2])
def test_two_tokens_follow_the_target_together(children: int) -> None:
    """The second token comes from the tree or, behind a miss, from the target directly."""
    n = 20_000
    verdict = walk_all(sampled_trees(n, children, 2, seed=7), 2)
    continued = verdict.accept_lens >= 2
    generator = torch.Generator().manual_seed(9)
    fresh = torch.multinomial(TARGET[verdict.tokens[:, 0]], 1, generator=generator).squeeze(1)
    second = torch.where(continued, verdict.tokens[:, 1], fresh)
    law = (TARGET[0].unsqueeze(1) * TARGET).flatten()
    assert_law(verdict.tokens[:, 0] * VOCAB + second, law, ERROR_RATE)


def test_a_chain_is_accepted_as_often_as_the_laws_overlap() -> None:
    n = 20_000
    verdict = walk_all(sampled_trees(n, 1, 1, seed=3), 1)
    overlap = torch.minimum(TARGET[0], DRAFT[0]).sum()
    assert_law(verdict.accept_lens - 1, torch.stack((1 - overlap, overlap)), ERROR_RATE)


def test_more_children_are_accepted_more_often() -> None:
    lengths = [
        float(walk_all(sampled_trees(5_000, k, 1, seed=4), 1).accept_lens.float().mean())
        for k in (1, 2, 4)
    ]
    assert lengths[0] + 0.05 < lengths[1] and lengths[1] + 0.02 < lengths[2]


def test_candidates_chosen_by_rank_keep_the_law() -> None:
    """A greedy draft has a law with all its mass on one token."""
    n = 20_000
    favourite = DRAFT.argmax(-1)
    tree = sampled_trees(n, 1, 1, seed=0)
    tree = tree._replace(tokens=torch.stack((tree.tokens[:, 0], favourite[tree.tokens[:, 0]]), 1))
    certain = torch.nn.functional.one_hot(favourite, VOCAB).float()
    generator = torch.Generator().manual_seed(6)
    verdict = rejection_walk(tree, certain[tree.tokens], TARGET[tree.tokens], 1, generator)
    assert_law(verdict.tokens[:, 0], TARGET[0], ERROR_RATE)
    accepted = verdict.accept_lens - 1
    share = TARGET[0, favourite[0]]
    assert_law(accepted, torch.stack((1 - share, share)), ERROR_RATE)


def test_equal_laws_accept_everything() -> None:
    tree = sampled_trees(500, 1, 3, seed=5)
    laws = DRAFT[tree.tokens]
    verdict = rejection_walk(tree, laws, laws, 3, torch.Generator().manual_seed(0))
    assert verdict.accept_lens.tolist() == [4] * 500
    assert torch.equal(verdict.tokens[:, :3], tree.tokens[:, 1:])


def test_path_and_tokens_belong_together() -> None:
    tree = sampled_trees(300, 2, 2, seed=8)
    verdict = walk_all(tree, 2)
    for row, length in enumerate(verdict.accept_lens.tolist()):
        nodes = verdict.node_path[row].tolist()
        assert nodes[0] == 0 and nodes[length:] == [-1] * (3 - length)
        for step in range(1, length):
            assert int(tree.parents[row, nodes[step]]) == nodes[step - 1]
            assert int(tree.tokens[row, nodes[step]]) == int(verdict.tokens[row, step - 1])
        assert int(verdict.bonus[row]) == int(verdict.tokens[row, length - 1])
        assert verdict.tokens[row, length:].tolist() == [0] * (3 - length)


def test_the_law_test_notices_a_wrong_sampler() -> None:
    """Tokens straight from the draft are not the target's."""
    tree = sampled_trees(20_000, 1, 1, seed=1)
    with pytest.raises(AssertionError, match="chi-square"):
        assert_law(tree.tokens[:, 1], TARGET[0], ERROR_RATE)


def test_probabilities_of_another_tree_are_refused() -> None:
    tree = sampled_trees(2, 1, 1, seed=0)
    laws: Tensor = DRAFT[tree.tokens]
    with pytest.raises(ValueError, match=r"must both be \[2, 2, 'V'\], got"):
        rejection_walk(tree, laws[:, :1], laws, 1)
