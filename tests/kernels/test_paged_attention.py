"""The CPU attention kernel equals its reference, and a row does not depend on the batch."""

import pytest
import torch
from attention_cases import Problem, Shape, block_mask, random_problem, run, run_reference
from effort import cases
from hypothesis import given
from hypothesis import strategies as st

from dflash_sglang.kernels import library
from dflash_sglang.kernels.attention import AttentionPlan, MaskMode

needs_kernels = pytest.mark.skipif(
    library.load() != "compiled", reason="the references trust their caller"
)

# Shares of the attended values' magnitude. float16 is rounded once, at the end; where the processor
# multiplies bfloat16 its weights are rounded too, above and below the fraction bar.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3 * 2**-9, torch.float16: 2**-11}
SHAPES = [
    Shape(4, 2, 64, 64),
    Shape(8, 8, 16, 16),
    Shape(6, 2, 80, 48),
    Shape(4, 1, 256, 256),
    Shape(16, 2, 128, 64),
    Shape(3, 1, 40, 24),
]
QWEN = SHAPES[0]


@st.composite
def _problems(draw, tree: bool):
    bs = draw(st.integers(1, 3))
    q_lens = draw(st.lists(st.integers(1, 40), min_size=bs, max_size=bs))
    prefix_lens = draw(st.lists(st.integers(0, 600), min_size=bs, max_size=bs))
    dtype = draw(st.sampled_from(list(TOLERANCE)))
    shape = draw(st.sampled_from(SHAPES))
    return random_problem(draw(st.integers(0, 99)), shape, q_lens, prefix_lens, dtype, tree)


def _options(draw, heads: int) -> dict:
    return {
        "scale": draw(st.sampled_from([0.05, 0.3])),
        "window": draw(st.sampled_from([-1, 0, 3, 70, 300])),
        "logit_cap": draw(st.sampled_from([0.0, 5.0])),
        "sinks": torch.linspace(-2, 3, heads) if draw(st.booleans()) else None,
    }


@cases(60)
@given(st.data(), st.sampled_from(list(MaskMode)))
def test_kernel_equals_reference(data, mode):
    problem = data.draw(_problems(tree=mode is MaskMode.TREE))
    options = _options(data.draw, problem.q.shape[1])
    actual, expected = run(problem, mode, **options), run_reference(problem, mode, **options)
    magnitude = run_reference(problem._replace(v_cache=problem.v_cache.abs()), mode, **options)
    excess = (actual.float() - expected).abs() - TOLERANCE[actual.dtype] * magnitude
    assert excess.max() <= 1e-5


def _alone(problem: Problem, token: int, request: int, keys: torch.Tensor) -> Problem:
    """One query token decoded by itself, its keys' positions in the request's table as given."""
    table = problem.plan.slot_table[problem.plan.table_rows[request]][keys].unsqueeze(0)
    plan = AttentionPlan(
        table.contiguous(),
        torch.tensor([0]),
        torch.tensor([0, 1]),
        torch.tensor([keys.numel()]),
    )
    return problem._replace(q=problem.q[token : token + 1], plan=plan)


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("window", [-1, 20, 200])
@pytest.mark.parametrize("prefix", [0, 5, 60, 64, 250, 256, 700])
def test_a_tree_node_gets_the_bits_of_plain_decoding(prefix, window, dtype):
    shape, q_len = QWEN, 37
    problem = random_problem(prefix, shape, [3, q_len], [90, prefix], dtype, tree=True)
    options = {"scale": 0.125, "window": window, "sinks": torch.linspace(-1, 1, shape.heads)}
    verified = run(problem, MaskMode.TREE, **options)
    mask = problem.plan.block_mask.flat[9:].view(q_len, q_len)
    for node in range(q_len):
        keys = torch.cat([torch.arange(prefix), prefix + mask[node].nonzero().view(-1)])
        decoded = run(_alone(problem, 3 + node, 1, keys), MaskMode.CAUSAL, **options)
        assert torch.equal(decoded[0], verified[3 + node]), f"node {node}"


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_prefill_in_chunks_gets_the_bits_of_prefill_at_once(shape):
    total = 330
    problem = random_problem(1, shape, [total], [0], torch.bfloat16)
    whole = run(problem, MaskMode.CAUSAL, scale=0.1)
    start = 0
    for length in (1, 100, 64, 2, 163):
        plan = problem.plan._replace(
            q_starts=torch.tensor([0, length]), kv_lens=torch.tensor([start + length])
        )
        piece = problem._replace(q=problem.q[start : start + length], plan=plan)
        part = run(piece, MaskMode.CAUSAL, scale=0.1)
        assert torch.equal(part, whole[start : start + length])
        start += length
    assert start == total


def test_a_chain_as_a_tree_gets_the_bits_of_the_causal_mask():
    problem = random_problem(2, QWEN, [16, 16], [100, 513], torch.float32)
    chain = torch.ones(16, 16, dtype=torch.bool).tril()
    tree = problem._replace(plan=problem.plan._replace(block_mask=block_mask([chain, chain])))
    causal = run(problem, MaskMode.CAUSAL, scale=0.1, window=80)
    assert torch.equal(run(tree, MaskMode.TREE, scale=0.1, window=80), causal)


@pytest.mark.parametrize("tree", [False, True])
def test_thread_count_changes_no_bit(tree):
    mode = MaskMode.TREE if tree else MaskMode.CAUSAL
    few_tiles = random_problem(3, Shape(4, 1, 64, 64), [9], [1500], torch.float32, tree)
    many_tiles = random_problem(4, QWEN, [40, 1, 70], [500, 800, 0], torch.float32, tree)
    threads = torch.get_num_threads()
    try:
        for problem in (few_tiles, many_tiles):
            torch.set_num_threads(1)
            serial = run(problem, mode, scale=0.1)
            torch.set_num_threads(3)
            assert torch.equal(run(problem, mode, scale=0.1), serial)
    finally:
        torch.set_num_threads(threads)


def test_slots_of_a_smaller_pool_are_reached_through_the_map():
    problem = random_problem(5, QWEN, [4], [50], torch.float32)
    slots = problem.k_cache.shape[0]
    order = torch.randperm(slots, generator=torch.Generator().manual_seed(0))
    moved = problem._replace(
        k_cache=torch.empty_like(problem.k_cache), v_cache=torch.empty_like(problem.v_cache)
    )
    moved.k_cache[order], moved.v_cache[order] = problem.k_cache, problem.v_cache
    expected = run(problem, MaskMode.CAUSAL, scale=0.1)
    assert torch.equal(run(moved, MaskMode.CAUSAL, scale=0.1, slot_map=order), expected)


def test_slots_before_the_window_are_never_read():
    window, prefix = 70, 300
    problem = random_problem(10, QWEN, [4], [prefix], torch.float32)
    expected = run(problem, MaskMode.CAUSAL, scale=0.1, window=window)
    row = problem.plan.slot_table[problem.plan.table_rows[0]]
    row[: prefix - window] = 1 << 30  # far outside of the cache
    assert torch.equal(run(problem, MaskMode.CAUSAL, scale=0.1, window=window), expected)


def test_strided_queries_and_caches_are_read_in_place():
    problem = random_problem(6, QWEN, [3, 5], [70, 2], torch.bfloat16)
    wide = problem._replace(
        q=torch.cat([problem.q, problem.q], 2)[..., : QWEN.head_dim],
        k_cache=torch.stack([problem.k_cache, problem.k_cache], 1)[:, 0],
    )
    assert not wide.q.is_contiguous() and not wide.k_cache.is_contiguous()
    expected = run(problem, MaskMode.CAUSAL, scale=0.1)
    assert torch.equal(run(wide, MaskMode.CAUSAL, scale=0.1), expected)


def test_nan_in_a_visible_key_is_not_hidden():
    problem = random_problem(7, QWEN, [1], [10], torch.float32)
    problem.k_cache[problem.plan.slot_table[problem.plan.table_rows[0], 3].long()] = float("nan")
    assert run(problem, MaskMode.CAUSAL, scale=0.1).isnan().all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p._replace(k_cache=p.k_cache[:, :1]), "equally many key"),
        (lambda p: p._replace(k_cache=p.k_cache[..., :32]), "keys of head_dim 64"),
        (lambda p: p._replace(v_cache=p.v_cache.double()), "expects one dtype"),
        (lambda p: p._replace(q=p.q.transpose(1, 2).contiguous().transpose(1, 2)), "contiguous"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(change, message):
    problem = change(random_problem(8, QWEN, [2], [3], torch.float32))
    with pytest.raises(ValueError, match=message):
        run(problem, MaskMode.CAUSAL, scale=0.1)


@pytest.mark.parametrize(
    "sinks", [torch.zeros(3), torch.zeros(4).double(), torch.zeros(1).expand(4)], ids=str
)
def test_sinks_that_do_not_fit_are_refused(sinks):
    problem = random_problem(11, QWEN, [2], [3], torch.float32)
    with pytest.raises(ValueError, match="expects 4 contiguous float32 sinks"):
        run(problem, MaskMode.CAUSAL, scale=0.1, sinks=sinks)


def test_tree_mode_without_a_mask_is_refused():
    with pytest.raises(ValueError, match=r"expects plan\.block_mask"):
        run(random_problem(9, QWEN, [2], [3], torch.float32), MaskMode.TREE, scale=0.1)


def _changed(problem: Problem, **changes) -> Problem:
    return problem._replace(plan=problem.plan._replace(**changes))


@needs_kernels
def test_a_plan_that_points_outside_of_its_tensors_is_refused():
    problem = random_problem(0, QWEN, [3, 2], [10, 20], torch.float32, tree=True)
    plan, mask = problem.plan, problem.plan.block_mask
    far = plan.slot_table.clone()
    far[plan.table_rows[1], 4] = problem.k_cache.shape[0]
    outside = [
        ({"slot_table": far}, IndexError, "of request 1 is outside of the cache"),
        ({"table_rows": plan.table_rows + 4}, IndexError, "outside of the slot table"),
        ({"kv_lens": plan.kv_lens + 9}, ValueError, "and 22 keys for request"),
        ({"kv_lens": plan.kv_lens * 0}, ValueError, "keys for request 0, got 0"),
        ({"q_starts": plan.q_starts * 2}, ValueError, "grow up to 5 tokens"),
        ({"q_starts": plan.q_starts[:2]}, ValueError, r"int64 q_starts \[3\]"),
        ({"kv_lens": plan.kv_lens.int()}, ValueError, "int64 kv_lens"),
        (
            {"block_mask": mask._replace(offsets=mask.offsets + 1)},
            IndexError,
            "the mask of request 1 is outside of the 13 given",
        ),
    ]
    for changes, error, sentence in outside:
        with pytest.raises(error, match=sentence):
            run(_changed(problem, **changes), MaskMode.TREE, scale=0.1)


def test_slots_that_left_the_window_are_not_looked_at():
    problem = random_problem(1, QWEN, [2], [50], torch.float32)
    stale = problem.plan.slot_table.clone()
    stale[problem.plan.table_rows[0], :30] = 10**6
    options = {"scale": 0.1, "window": 15}
    actual = run(_changed(problem, slot_table=stale), MaskMode.CAUSAL, **options)
    assert torch.equal(actual, run(problem, MaskMode.CAUSAL, **options))
