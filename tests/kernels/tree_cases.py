"""Random lattices, trees and target tokens for the tests of the tree kernels."""

from __future__ import annotations

from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

from dflash_sglang.kernels.tree import DraftTree, _build_reference


class LatticeCase(NamedTuple):
    """Arguments of ``build_tree`` in its order."""

    tokens: Tensor  # [bs, g, K] int64
    log_probs: Tensor  # [bs, g, K, K] float32
    anchors: Tensor  # [bs] int64
    num_nodes: int
    max_depth: int
    max_children: int

    def tree(self) -> DraftTree:
        return DraftTree(*_build_reference(*self))


def random_case(
    bs: int, g: int, K: int, seed: int, num_nodes: int, max_depth: int, max_children: int
) -> LatticeCase:
    """Edges are multiples of 1/16, so that ties happen and sums are exact; some are impossible."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(bs, g, K, K, generator=generator) * 2
    scores[:, 0] = scores[:, 0, :1]
    log_probs = (scores.log_softmax(-1) * 16).round() / 16
    log_probs = log_probs.masked_fill(
        torch.rand(bs, g, K, K, generator=generator) < 0.05, -torch.inf
    )
    vocab = max(2 * K, 50)
    tokens = torch.rand(bs, g, vocab, generator=generator).argsort(-1)[..., :K].contiguous()
    anchors = torch.randint(0, vocab, (bs,), generator=generator)
    return LatticeCase(tokens, log_probs, anchors, num_nodes, max_depth, max_children)


@st.composite
def lattice_cases(draw: st.DrawFn) -> LatticeCase:
    g, K = draw(st.integers(1, 15)), draw(st.integers(1, 32))
    return random_case(
        bs=draw(st.sampled_from([1, 2, 3, 17, 64])),
        g=g,
        K=K,
        seed=draw(st.integers(0, 2**31)),
        num_nodes=draw(st.integers(1, 128)),
        max_depth=draw(st.integers(0, g)),
        max_children=draw(st.integers(1, K + 1)),
    )


def assert_equal(actual: tuple, expected: tuple) -> None:
    assert len(actual) == len(expected)
    for a, b in zip(actual, expected, strict=True):
        assert a.dtype == b.dtype and torch.equal(a, b)
