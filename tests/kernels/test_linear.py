"""The CPU matrix product equals PyTorch's, and its rows do not depend on the batch."""

import pytest
import torch
import torch.nn.functional as F
from effort import cases
from hypothesis import given
from hypothesis import strategies as st

from dflash_sglang.kernels import library
from dflash_sglang.kernels.linear import linear

library.load()

# Relative to the largest result: rounding of the sums, then of the result.
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}


def _operands(seed: int, rows: int, columns: int, depth: int, dtype: torch.dtype):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, depth, generator=generator).to(dtype)
    weight = torch.randn(columns, depth, generator=generator).to(dtype)
    return x, weight, torch.randn(columns, generator=generator).to(dtype)


@cases(80)
@given(
    st.integers(0, 99),
    st.integers(1, 150),
    st.integers(1, 70),
    st.integers(1, 200),
    st.sampled_from(list(TOLERANCE)),
    st.booleans(),
)
def test_product_equals_pytorchs(seed, rows, columns, depth, dtype, biased):
    x, weight, bias = _operands(seed, rows, columns, depth, dtype)
    bias = bias if biased else None
    expected = F.linear(x.float(), weight.float(), None if bias is None else bias.float())
    error = (linear(x, weight, bias).float() - expected).abs().max()
    assert error <= TOLERANCE[dtype] * max(1.0, float(expected.abs().max()))


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize(("columns", "depth"), [(96, 256), (50, 77), (7, 16), (256, 640)])
def test_a_row_has_the_same_bits_in_every_batch(columns, depth, dtype):
    x, weight, bias = _operands(0, 200, columns, depth, dtype)
    whole = linear(x, weight, bias)
    for rows in (1, 2, 3, 4, 7, 8, 15, 16, 17, 32, 63, 64, 65, 131):
        start = (37 * rows) % (200 - rows)
        part = linear(x[start : start + rows], weight, bias)
        assert torch.equal(part, whole[start : start + rows]), f"{rows} rows"


def test_thread_count_changes_no_bit():
    x, weight, _ = _operands(1, 70, 300, 512, torch.bfloat16)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        serial = linear(x, weight)
        torch.set_num_threads(3)
        assert torch.equal(linear(x, weight), serial)
    finally:
        torch.set_num_threads(threads)


def test_leading_dimensions_are_kept():
    x, weight, _ = _operands(2, 12, 20, 32, torch.float32)
    assert torch.equal(linear(x.view(3, 4, 32), weight), linear(x, weight).view(3, 4, 20))
    assert torch.equal(linear(x[0], weight), linear(x, weight)[0])


def test_slices_of_wider_tensors_are_read_in_place():
    x, weight, _ = _operands(3, 6, 20, 96, torch.bfloat16)
    expected = linear(x[:, 32:80].contiguous(), weight[:, 32:80].contiguous())
    assert torch.equal(linear(x[:, 32:80], weight[:, 32:80]), expected)


def test_no_rows_give_no_rows():
    _, weight, _ = _operands(4, 1, 20, 32, torch.float32)
    assert linear(torch.empty(0, 32), weight).shape == (0, 20)


@pytest.mark.parametrize(
    ("x", "weight", "bias"),
    [
        (torch.zeros(2, 8), torch.zeros(4, 9), None),
        (torch.zeros(2, 8), torch.zeros(4, 8).bfloat16(), None),
        (torch.zeros(2, 8).double(), torch.zeros(4, 8).double(), None),
        (torch.zeros(2, 8), torch.zeros(8, 4).t(), None),
        (torch.zeros(2, 8), torch.zeros(4, 8), torch.zeros(5)),
    ],
)
def test_operands_that_do_not_fit_are_refused(x, weight, bias):
    with pytest.raises(ValueError, match="linear"):
        linear(x, weight, bias)
