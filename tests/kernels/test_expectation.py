"""Expected tokens of a tree's first nodes equal the sums that they are."""

import math
from bisect import bisect_left

import pytest
import torch
from effort import cases
from hypothesis import given
from hypothesis import strategies as st

from dflash_sglang.kernels import library
from dflash_sglang.kernels.expectation import (
    NodeWorth,
    _expected_tokens_reference,
    expected_tokens,
)

needs_kernels = pytest.mark.skipif(
    library.load() != "compiled", reason="the references trust their caller"
)

DEPTHS, SIZES = 5, 4
LOG_EDGES = torch.tensor([0.1, 0.4, 0.8], dtype=torch.float64).log()


def call(seed=0, bs=2, nodes=6, counts=(1, 2, 4, 9)):
    """Arguments of the operator, padding at the end of the last request's tree."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(bs, nodes, generator=generator).sort(descending=True).values
    values[:, 0], values[-1, nodes // 2 + 1 :] = 1.0, 0.0
    factors = 2 * torch.rand(bs, DEPTHS, SIZES, generator=generator, dtype=torch.float64)
    depths = torch.randint(DEPTHS, (bs, nodes), generator=generator)
    most = (torch.randint(1, n, (bs,), generator=generator) for n in (nodes + 2, DEPTHS + 1))
    bounds = torch.stack(tuple(most), dim=1)
    return values.log(), depths, NodeWorth(LOG_EDGES, factors), bounds, torch.tensor(counts)


@cases(60)
@given(
    st.integers(0, 99),
    st.integers(1, 40),
    st.integers(1, 33),
    st.lists(st.integers(1, 40), min_size=1, max_size=9),
)
def test_it_equals_the_reference(seed, bs, nodes, counts):
    log_values, depths, worth, bounds, widths = call(seed, bs, nodes, counts)
    expected = _expected_tokens_reference(log_values, depths, *worth, bounds, widths)
    actual = expected_tokens(log_values, depths, worth, bounds, widths)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("operator", [expected_tokens, None], ids=["served", "reference"])
def test_it_is_the_sum_of_what_a_loop_counts(operator):
    log_values, depths, worth, bounds, counts = arguments = call(seed=1)
    if operator is None:
        actual = _expected_tokens_reference(*arguments[:2], *worth, bounds, counts)
    else:
        actual = operator(*arguments)
    for request in range(2):
        chances = [1.0]
        for node in range(1, 6):
            value, depth = float(log_values[request, node]), int(depths[request, node])
            size = bisect_left(LOG_EDGES.tolist(), value)
            chance = min(1.0, math.exp(value) * float(worth.factors[request, depth, size]))
            is_allowed = node < bounds[request, 0] and depth <= bounds[request, 1]
            chances.append(chance if is_allowed else 0.0)
        sums = [sum(chances[:count]) for count in counts.tolist()]
        assert actual[request].tolist() == pytest.approx(sums)


def test_parts_of_larger_tensors_are_read_as_they_are():
    log_values, depths, worth, bounds, counts = call(bs=4)
    whole = expected_tokens(log_values, depths, worth, bounds, counts)
    every_other = NodeWorth(worth.log_edges, worth.factors[::2].contiguous())
    part = expected_tokens(log_values[::2], depths[::2], every_other, bounds[::2], counts)
    assert torch.equal(part, whole[::2])


@needs_kernels
@pytest.mark.parametrize(
    ("position", "change", "sentence"),
    [
        (0, lambda x: x.double(), "float32 log_values"),
        (1, lambda x: x[:, 1:], "int64 depths"),
        (2, lambda x: x._replace(factors=x.factors[:, :, 1:]), "contiguous float64 factors"),
        (2, lambda x: x._replace(factors=x.factors[1:]), r"expects factors \[2, D \+ 1, 4\]"),
        (3, lambda x: x.int(), "int64 bounds"),
    ],
)
def test_what_does_not_fit_together_is_refused(position, change, sentence):
    arguments = list(call())
    arguments[position] = change(arguments[position])
    with pytest.raises(ValueError, match=sentence):
        expected_tokens(*arguments)


@needs_kernels
def test_depths_and_counts_out_of_range_are_refused():
    log_values, depths, worth, bounds, counts = call()
    with pytest.raises(IndexError, match="depth 5 is not between 0 and 4"):
        expected_tokens(log_values, torch.full_like(depths, 5), worth, bounds, counts)
    with pytest.raises(IndexError, match="a count of 0 nodes"):
        expected_tokens(log_values, depths, worth, bounds, torch.zeros_like(counts))
