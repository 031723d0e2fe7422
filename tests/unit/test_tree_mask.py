"""The tree mask behind a prefix, flattened."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_strategies import TreeCase, tree_cases

from dflash_sglang.tree import make_layout
from dflash_sglang.tree.mask import flatten_mask


@settings(max_examples=40, deadline=None)
@given(tree_cases(), st.integers(0, 3), st.data())
def test_every_node_sees_the_prefix_and_its_ancestors(
    case: TreeCase, slack: int, data: st.DataObject
) -> None:
    tree = case.build()
    bs, N = tree.tokens.shape
    lengths = data.draw(st.lists(st.integers(0, 9), min_size=bs, max_size=bs))
    mask = make_layout(tree, torch.tensor(lengths)).mask
    flat = flatten_mask(mask, torch.tensor(lengths), sum(lengths) + slack)
    assert flat.shape == (N * (sum(lengths) + slack + bs * N),)
    start = 0
    for row, length in enumerate(lengths):
        rows = flat[start : start + N * (length + N)].view(N, length + N)
        assert rows[:, :length].all() and torch.equal(rows[:, length:], mask[row])
        start += rows.numel()
