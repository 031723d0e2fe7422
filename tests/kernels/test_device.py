"""The kernels of accelerators equal the references: on the OpenCL CPU device, and on a card.

One device source serves CUDA and SYCL, so what is proved here for SYCL on the CPU device holds for
the algorithms on every accelerator.
"""

from __future__ import annotations

import ctypes
from functools import cache, partial

import pytest
import torch
from effort import cases
from hypothesis import given
from hypothesis import strategies as st
from test_draw import draws, truncations
from test_walk import target_tokens
from tree_cases import LatticeCase, assert_equal, lattice_cases, random_case

from dflash_sglang.kernels import build, cuda, device, draw, examples, library, tree, walk, xpu
from dflash_sglang.kernels.truncation import NO_TOP_K

DEVICES = ["sycl-16", "sycl-32", "cuda", "xpu"]
quick = cases(25)


@cache
def open_device(name: str) -> device.Device | str:
    """The device, or why there is none."""
    try:
        if name.startswith("sycl"):
            return xpu.StagedSyclDevice(int(name.removeprefix("sycl-")))
        if name == "cuda":
            return cuda.current_device() if torch.cuda.is_available() else "no CUDA device"
        return xpu.current_device() if torch.xpu.is_available() else "no XPU device"
    except build.KernelError as error:
        return str(error)


@pytest.fixture(params=DEVICES)
def run(request):
    """Runs an operator by name on a device: CPU tensors in, CPU tensors out."""
    opened = open_device(request.param)
    if isinstance(opened, str):
        pytest.skip(opened)
    place = request.param if request.param in ("cuda", "xpu") else "cpu"

    def call(name: str, *arguments):
        moved = [a.to(place) if isinstance(a, torch.Tensor) else a for a in arguments]
        result = device.OPERATORS[name](opened, *moved)
        if isinstance(result, torch.Tensor):
            return result.cpu()
        return tuple(part.cpu() for part in result)

    return call


def for_each(run, strategy, body) -> None:
    """Hypothesis and fixtures do not mix, so the property is a function inside the test."""
    quick(given(strategy)(lambda drawn: body(run, drawn)))()


def test_trees_equal_reference(run) -> None:
    def body(run, case: LatticeCase) -> None:
        assert_equal(run("build_tree", *case), tree._build_reference(*case))

    for_each(run, lattice_cases(), body)


def test_layout_equals_reference(run) -> None:
    def body(run, case: LatticeCase) -> None:
        built = case.tree()
        arguments = (built.parents, built.depths, torch.arange(built.parents.shape[0]) * 31)
        assert_equal(run("tree_layout", *arguments), tree._layout_reference(*arguments))
        assert torch.equal(run("ancestor_bits", built.parents), tree._bits_reference(built.parents))

    for_each(run, lattice_cases(), body)


def test_walk_and_commit_equal_reference(run) -> None:
    def body(run, drawn) -> None:
        case, seed = drawn
        arguments = (*case.tree()[:3], target_tokens(case, seed), case.max_depth)
        verdict = walk._walk_reference(*arguments)
        assert_equal(run("walk_tree", *arguments), verdict)
        bs, length = verdict[0].shape
        slots = torch.arange(bs * max(length, case.num_nodes)).flip(0).view(bs, -1)
        moves = (verdict[0], slots, torch.arange(bs) * 11, case.num_nodes)
        assert_equal(run("commit_path", *moves), walk._commit_reference(*moves))

    for_each(run, st.tuples(lattice_cases(), st.integers(0, 99)), body)


def test_argmax_equals_reference(run) -> None:
    def body(run, case: dict) -> None:
        assert torch.equal(run("greedy_tokens", case["logits"]), case["logits"].argmax(-1))

    for_each(run, draws(), body)


def test_draws_equal_reference(run) -> None:
    """The compiled CPU kernel marks where rounding decides; everywhere else tokens are equal."""

    def body(run, drawn) -> None:
        case, data, by_rank = drawn
        limits = (*data.draw(truncations(case["seeds"].shape[0])),)
        arguments = (*case.values(), *limits, by_rank)
        actual = run("draw_tokens", *arguments, False)
        expected = draw._draw_reference(*arguments)
        differs = actual != expected
        if bool(differs.any()):
            torch.ops.load_library(str(build.build_library()))
            marked = torch.ops.dflash2.draw_tokens(*arguments, True)
            assert (marked[differs] < 0).all()

    for_each(run, st.tuples(draws(), st.data(), st.booleans()), body)


def test_marked_draws_are_those_of_the_cpu_kernel(run) -> None:
    """Doubts included: what a device marks is what the CPU kernel marks."""
    if library.load() != "compiled":
        pytest.skip("the reference has no doubts")

    def body(run, drawn) -> None:
        case, data, by_rank = drawn
        limits = (*data.draw(truncations(case["seeds"].shape[0])),)
        arguments = (*case.values(), *limits, by_rank, True)
        assert torch.equal(
            run("draw_tokens", *arguments), torch.ops.dflash2.draw_tokens(*arguments)
        )

    for_each(run, st.tuples(draws(), st.data(), st.booleans()), body)


def test_ranks_beyond_one_run_are_drawn_by_rank(run) -> None:
    """A flat law of 5,000 columns, of which most are kept: several runs of ranks."""
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(1, 6, 5000, generator=generator) * 0.3
    arguments = (logits, torch.ones(1), torch.tensor([7]), torch.arange(6).unsqueeze(0))
    for top_k, top_p in ((4000, 1.0), (NO_TOP_K, 0.97), (1024, 1.0), (1025, 1.0)):
        law = (torch.tensor([top_k]), torch.tensor([top_p]), None)
        expected = draw._draw_reference(*arguments, *law, True)
        assert torch.equal(run("draw_tokens", *arguments, *law, True, False), expected)


def test_candidates_equal_the_cpu_kernels(run) -> None:
    def body(run, drawn) -> None:
        case, data, K, M = drawn
        bs, _, V = case["logits"].shape
        K, M = min(K, V), min(M, V - min(K, V))
        laws = (*data.draw(truncations(bs)),)
        scale = case["temperatures"] + 0.3
        numbers = (case["logits"], scale, scale + 1, case["seeds"], case["positions"])
        expected = torch.ops.dflash2.noisy_candidates(*numbers, *laws, K, M)
        actual = run("noisy_candidates", *numbers, *laws, K, M)
        assert torch.equal(actual[0], expected[0])
        for ours, right in zip(actual[1:], expected[1:], strict=True):
            torch.testing.assert_close(ours, right, rtol=1e-5, atol=1e-5)

    library.load()
    for_each(run, st.tuples(draws(), st.data(), st.integers(1, 16), st.integers(0, 16)), body)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_drafter_operators_equal_reference(run, dtype: torch.dtype) -> None:
    from dflash_sglang.kernels import convolution, lattice

    sizes = examples.Sizes(bs=3, positions=5, candidates=9, vocabulary=100, hidden=80, rank=33)
    calls = examples.calls(sizes)
    gates, anchors, candidates, unary, left, right, temperatures = calls["pair_scores"]
    typed = (gates.to(dtype), anchors, candidates, unary, left.to(dtype), right.to(dtype))
    for scale in (None, temperatures):
        actual = run("pair_scores", *typed, scale)
        expected = lattice._reference(*typed, scale)
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)

    x, kernel, delta, _ = (
        None if part is None else part.to(dtype) for part in calls["convolve_block"]
    )
    bias = torch.arange(80).to(dtype) / 80
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}[dtype]
    for dynamic, static in ((delta, None), (None, bias)):
        actual = run("convolve_block", x, kernel, dynamic, static)
        expected = convolution._reference(x, kernel, dynamic, static)
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def test_overlapping_moves_equal_reference() -> None:
    """On the SYCL device only: the buffers' addresses must be the device's own."""
    opened = open_device("sycl-32")
    if isinstance(opened, str):
        pytest.skip(opened)
    targets, sources = torch.tensor([0, 1, 2, 7, 5]), torch.tensor([1, 2, 0, 6, 5])
    buffers = [torch.randn(9, 5, 7), torch.randn(9, 3).half()]  # strides of 140 and 6 bytes
    strides = [buffer.stride(0) * buffer.element_size() for buffer in buffers]
    expected = [buffer.clone() for buffer in buffers]
    for buffer in expected:
        buffer[targets] = buffer[sources]
    addresses = []
    for buffer, stride in zip(buffers, strides, strict=True):
        addresses.append(opened.allocate(9 * stride))
        ctypes.memmove(addresses[-1], buffer.data_ptr(), 9 * stride)
    pointers = torch.tensor(addresses, dtype=torch.uint64)
    device.move_kv(opened, pointers, torch.tensor(strides), targets, sources)
    for address, buffer, stride, right in zip(addresses, buffers, strides, expected, strict=True):
        ctypes.memmove(buffer.data_ptr(), address, 9 * stride)
        opened.free(address)
        assert torch.equal(buffer, right)


def test_a_call_beyond_the_kernels_limits_is_served_by_the_reference(caplog) -> None:
    case = random_case(1, 4, 4, 0, num_nodes=300, max_depth=4, max_children=4)
    kernel = partial(device.build_tree, None)  # never launched
    serve = library._with_fallback(kernel, "build_tree")
    for _ in range(2):
        assert_equal(serve(*case), tree._build_reference(*case))
    assert [record.message for record in caplog.records] == [
        "build_tree: device kernels build trees of 256 nodes, got 300; the PyTorch reference serves"
    ]


def test_every_operator_of_a_step_has_a_device_kernel_or_needs_none() -> None:
    step = set(examples.calls(examples.Sizes(vocabulary=100)))
    pytorchs_own = {"linear", "top_columns"}
    for_adaptive_width_on_a_cpu = {"expected_tokens"}
    assert step - set(device.OPERATORS) == pytorchs_own | for_adaptive_width_on_a_cpu


def test_cuda_sources_compile_without_a_warning() -> None:
    """For one architecture; launch/test_cuda.sh compiles for all of them."""
    try:
        module = cuda.build_module((90,))
    except build.KernelBuildError as error:
        if "was not found" in str(error):
            pytest.skip(str(error))
        raise
    assert module.stat().st_size > 0
