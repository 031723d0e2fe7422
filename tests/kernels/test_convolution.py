"""Local convolutions of the compiled kernels equal their PyTorch reference and the drafter's."""

from __future__ import annotations

import pytest
import torch
from effort import cases
from hypothesis import given
from hypothesis import strategies as st

from dflash_sglang.config import ConvConfig
from dflash_sglang.drafter.convolution import GroupedDynamicConv, StaticConv
from dflash_sglang.kernels import library
from dflash_sglang.kernels.convolution import _reference, convolve_block

library.load()

# One rounding of difference in the storage type, for values of order ten.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}


@cases(80)
@given(
    st.integers(1, 9),
    st.integers(1, 16),
    st.integers(1, 5),
    st.sampled_from([(1, 1), (3, 7), (4, 16), (2, 32), (5, 48), (1, 100)]),
    st.sampled_from(list(TOLERANCE)),
    st.booleans(),
    st.booleans(),
)
def test_convolution_equals_reference(n, B, k, groups, dtype, is_dynamic, is_biased) -> None:
    num_groups, group_size = groups
    D = num_groups * group_size
    generator = torch.Generator().manual_seed(n * B)
    wide = torch.randn(n, B, 2 * D, generator=generator).to(dtype)
    x = wide[..., D:]  # a slice of wider rows
    kernel = torch.randn(k, D, generator=generator).to(dtype)
    both = torch.randn(n, B, 2, k, num_groups, generator=generator).to(dtype)
    delta = both[:, :, 1] if is_dynamic else None
    bias = torch.randn(D, generator=generator).to(dtype) if is_biased else None
    actual, expected = convolve_block(x, kernel, delta, bias), _reference(x, kernel, delta, bias)
    assert actual.dtype == dtype and actual.is_contiguous()
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@torch.no_grad()
def test_the_drafters_convolutions_are_reproduced() -> None:
    config = ConvConfig("dynamic", kernel_size=4, group_size=16)
    x = torch.randn(3, 8, 64)
    dynamic, static = GroupedDynamicConv(64, config), StaticConv(64, config)
    for parameter in (*dynamic.parameters(), *static.parameters()):
        parameter.normal_()
    before, kernels = dynamic.before(x)
    torch.testing.assert_close(convolve_block(x, dynamic.base_kernel[0], kernels.before), before)
    after = dynamic.after(before, kernels)
    actual = convolve_block(before, dynamic.base_kernel[1], kernels.after)
    torch.testing.assert_close(actual, after, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(convolve_block(x, static.weight, bias=static.bias), static(x))


@pytest.mark.parametrize(
    ("kernel", "delta", "bias"),
    [
        (torch.zeros(2, 9), None, None),
        (torch.zeros(2, 8).double(), None, None),
        (torch.zeros(2, 8), torch.zeros(1, 3, 2, 3), None),
        (torch.zeros(2, 8), torch.zeros(1, 3, 3, 2), None),
        (torch.zeros(2, 8), None, torch.zeros(7)),
    ],
)
def test_operands_that_do_not_fit_are_refused(kernel, delta, bias) -> None:
    if library.load() != "compiled":
        pytest.skip("the reference trusts its caller")
    with pytest.raises(ValueError, match="convolve_block"):
        convolve_block(torch.zeros(1, 3, 8), kernel, delta, bias)
