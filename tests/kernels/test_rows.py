"""Row operations of the CPU kernels equal their PyTorch references."""

import pytest
import torch
from effort import cases
from hypothesis import given
from hypothesis import strategies as st

from dflash_sglang.kernels import library, rows

needs_kernels = pytest.mark.skipif(
    library.load() != "compiled", reason="the references trust their caller"
)

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# One rounding of difference in the storage type, for values of order one.
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-6, torch.float16: 2**-9}
widths = st.sampled_from([1, 7, 16, 24, 64, 100, 256, 640])


def _normal(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@cases(60)
@given(
    st.integers(1, 9), widths, st.sampled_from(DTYPES), st.booleans(), st.booleans(), st.booleans()
)
def test_rms_norm_equals_reference(tokens, width, dtype, with_residual, normalized, summed):
    x, weight = _normal(0, tokens, width, dtype=dtype), _normal(1, width, dtype=dtype)
    residual = _normal(2, tokens, width, dtype=dtype) if with_residual else None
    expected_residual = None if residual is None else residual.clone()
    style = {"weight_offset": 1.0, "round_normalized": normalized, "round_sum": summed}
    actual = rows.rms_norm(x, weight, 1e-6, residual, **style)
    _close(actual, rows._rms_norm_reference(x, expected_residual, weight, 1e-6, *style.values()))
    if residual is not None:
        assert torch.equal(residual, expected_residual)


def test_rms_norm_reads_heads_out_of_a_wider_row():
    qkv, weight = _normal(3, 5, 4 * 64 + 128, dtype=torch.bfloat16), _normal(4, 64).bfloat16()
    heads = qkv[:, : 4 * 64].view(5, 4, 64)
    expected = rows.rms_norm(heads.contiguous(), weight, 1e-6)
    assert torch.equal(rows.rms_norm(heads, weight, 1e-6), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_norm_row_has_the_same_bits_in_every_batch(dtype):
    x, weight = _normal(5, 600, 256, dtype=dtype), _normal(6, 256, dtype=dtype)
    assert torch.equal(rows.rms_norm(x[77:78], weight, 1e-6), rows.rms_norm(x, weight, 1e-6)[77:78])


@cases(60)
@given(
    st.integers(1, 9),
    st.sampled_from([(64, 64), (128, 64), (80, 32), (24, 24), (256, 256)]),
    st.sampled_from(DTYPES),
    st.sampled_from(DTYPES),
    st.booleans(),
)
def test_rotary_embedding_equals_reference(tokens, sizes, dtype, cache_dtype, neox):
    head_size, rotary_dim = sizes
    angles = _normal(7, 50, rotary_dim // 2)
    cache = torch.cat([angles.cos(), angles.sin()], -1).to(cache_dtype)
    positions = torch.randint(0, 50, (tokens,), generator=torch.Generator().manual_seed(tokens))
    wide = _normal(8, tokens, 6 * head_size, dtype=dtype)
    expected_wide = wide.clone()

    def queries_and_keys(x: torch.Tensor) -> list[torch.Tensor]:
        return [
            part.unflatten(1, (-1, head_size))
            for part in x.split([4 * head_size, 2 * head_size], 1)
        ]

    rows.rotary_embedding(positions, *queries_and_keys(wide), cache, neox)
    rows._rotary_embedding_reference(positions, *queries_and_keys(expected_wide), cache, neox)
    _close(wide, expected_wide)


@cases(40)
@given(st.integers(1, 9), widths, st.sampled_from(DTYPES), st.sampled_from(list(rows.Activation)))
def test_gated_activation_equals_reference(tokens, width, dtype, activation):
    x = 4 * _normal(9, tokens, 2 * width, dtype=dtype)
    _close(rows.gated_activation(x, activation), rows._gated_activation_reference(x, activation))


@pytest.mark.parametrize("activation", list(rows.Activation))
def test_gated_activation_is_finite_at_the_ends(activation):
    gate = torch.tensor([-3e4, -90.0, -0.0, 90.0, 3e4])
    actual = rows.gated_activation(torch.cat([gate, torch.ones(5)]).unsqueeze(0), activation)
    assert actual[0].tolist() == [0.0, 0.0, 0.0, 90.0, 3e4]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_keys_and_values_land_in_their_slots_and_nowhere_else(dtype):
    qkv = _normal(10, 3, 512, dtype=dtype)
    k, v = qkv[:, 128:256].view(3, 2, 64), qkv[:, 256:320].view(3, 2, 32)
    k_cache, v_cache = _normal(11, 9, 2, 64, dtype=dtype), _normal(12, 9, 2, 32, dtype=dtype)
    expected_k, expected_v = k_cache.clone(), v_cache.clone()
    slots = torch.tensor([7, 0, 4])
    expected_k[slots], expected_v[slots] = k, v
    rows.store_kv(k, v, k_cache, v_cache, slots)
    assert torch.equal(k_cache, expected_k) and torch.equal(v_cache, expected_v)


@needs_kernels
def test_a_slot_outside_of_the_cache_is_refused_before_anything_is_written():
    k, cache = torch.ones(2, 2, 4), torch.zeros(5, 2, 4)
    for slot in (5, -1):
        with pytest.raises(IndexError, match=f"slot {slot} is outside of the cache of 5"):
            rows.store_kv(k, k, cache, cache, torch.tensor([0, slot]))
    with pytest.raises(ValueError, match="expects 2 rows like the cache's"):
        rows.store_kv(k, k[:, :1], cache, cache, torch.tensor([0, 1]))
    assert not cache.any()


@needs_kernels
def test_a_position_outside_of_the_rotary_table_is_refused_before_anything_is_rotated():
    q, k, table = torch.ones(2, 3, 4), torch.ones(2, 1, 4), torch.zeros(6, 4)
    with pytest.raises(IndexError, match="position 6 is outside of the cache of 6"):
        rows.rotary_embedding(torch.tensor([0, 6]), q, k, table, True)
    with pytest.raises(ValueError, match=r"expects \[2, heads, at least 4\]"):
        rows.rotary_embedding(torch.tensor([0, 1]), q, k[:1], table, True)
    assert bool((q == 1).all() and (k == 1).all())


@needs_kernels
def test_gates_without_values_are_refused():
    with pytest.raises(ValueError, match="gates and as many values"):
        rows.gated_activation(torch.zeros(3, 5), rows.Activation.SILU)


def test_a_weight_of_another_width_is_refused():
    with pytest.raises(ValueError, match="expects 8 weights"):
        rows.rms_norm(torch.zeros(2, 8), torch.zeros(9), 1e-6)
