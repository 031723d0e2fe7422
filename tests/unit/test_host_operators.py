"""CPU operators follow the loops of SGLang's Triton kernels."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from dflash_sglang.host import operators
from dflash_sglang.verify.noise import hash_columns

POOL, CONTEXT = 6, 40


def _table() -> torch.Tensor:
    return torch.arange(POOL * CONTEXT, dtype=torch.int32).view(POOL, CONTEXT)


@st.composite
def _segments(draw):
    rows = draw(st.lists(st.integers(0, POOL - 1), min_size=1, max_size=4, unique=True))
    bounds = [sorted(draw(st.tuples(*[st.integers(0, CONTEXT)] * 2))) for _ in rows]
    starts = torch.tensor([low for low, _ in bounds], dtype=torch.int32)
    ends = torch.tensor([high for _, high in bounds], dtype=torch.int32)
    return torch.tensor(rows), starts, ends


@given(_segments())
def test_extend_cache_locs_are_gathered_request_after_request(segments):
    rows, starts, ends = segments
    expected = [
        slot
        for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True)
        for slot in _table()[row, start:end].tolist()
    ]
    out = torch.full((len(expected) + 1,), -1)
    operators.assign_extend_cache_locs(rows, _table(), starts, ends, out, CONTEXT)
    assert out.tolist() == [*expected, -1]


@given(_segments())
def test_slots_are_scattered_into_each_request_and_nowhere_else(segments):
    rows, starts, ends = segments
    slots = 1000 + torch.arange(int((ends - starts).sum()))
    expected, offset = _table(), 0
    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        expected[row, start:end] = slots[offset : offset + end - start].int()
        offset += end - start
    table = _table()
    operators.assign_req_to_token_pool(rows, table, starts, ends, slots, CONTEXT)
    assert torch.equal(table, expected)


def test_draft_cache_locs_follow_the_last_token():
    out = torch.empty(6, dtype=torch.int64)
    operators.assign_draft_cache_locs_contiguous(
        torch.tensor([1, 4]), _table(), torch.tensor([5, 0]), out, CONTEXT, 1, 3
    )
    assert out.tolist() == [45, 46, 47, 160, 161, 162]


def test_bonus_token_is_the_last_accepted_one():
    tokens = torch.tensor([7, 8, 9, 0, 5, 0, 0, 0])
    bonus = torch.zeros(2, dtype=torch.int64)
    operators.fill_bonus_tokens(tokens, torch.tensor([3, 1], dtype=torch.int32), bonus, 4)
    assert bonus.tolist() == [9, 5]


def test_accepted_slots_are_packed_to_the_front():
    index = torch.tensor([0, 2, -1, 4, -1, -1])
    out = torch.zeros(4, dtype=torch.int64)
    operators.fill_accept_out_cache_loc(index, torch.arange(10, 16), out)
    assert out.tolist() == [10, 12, 14, 0]


def test_operators_are_defined_once():
    operators.define_missing()
    assert operators.define_missing() == []


def test_murmur_hash_is_that_of_sglangs_seeded_sampler():
    # tests/unit/test_verify_target.py holds hash_columns against SGLang's own kernel.
    seeds = torch.tensor([0, 7, 2**63 - 1], dtype=torch.int64).view(torch.uint64)
    positions = torch.tensor([0, 5, 2047])
    hashed = operators.murmur_hash32(seeds, positions, torch.arange(11))
    assert hashed.dtype == torch.uint32
    expected = hash_columns(seeds.view(torch.int64), positions, 11)
    assert torch.equal(hashed.to(torch.int64), expected)
