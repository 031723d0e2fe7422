"""KV moves of the CPU kernels equal their PyTorch reference, overlapping moves included."""

import pytest
import torch
from effort import cases
from hypothesis import given
from hypothesis import strategies as st

from dflash_sglang.kernels import kv, library

library.load()

SLOTS = 12


def _pointers(buffers: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    addresses = torch.tensor([b.data_ptr() for b in buffers], dtype=torch.uint64)
    return addresses, torch.tensor([b.stride(0) * b.element_size() for b in buffers])


@cases(100)
@given(st.data())
def test_move_kv_equals_reference(data):
    targets = data.draw(st.lists(st.integers(0, SLOTS - 1), unique=True, max_size=SLOTS))
    sources = data.draw(
        st.lists(st.integers(0, SLOTS - 1), min_size=len(targets), max_size=len(targets))
    )
    buffers = [torch.randn(SLOTS, 2, 3), torch.randn(SLOTS, 5).bfloat16()]
    expected = [buffer.clone() for buffer in buffers]
    moves = torch.tensor(targets, dtype=torch.int64), torch.tensor(sources, dtype=torch.int64)
    kv.move_kv(*_pointers(buffers), *moves)
    kv._move_kv_reference(*_pointers(expected), *moves)
    for buffer, right in zip(buffers, expected, strict=True):
        assert torch.equal(buffer, right)


def test_move_kv_refuses_unequal_lists():
    pointers = _pointers([torch.zeros(SLOTS, 4)])
    with pytest.raises(ValueError, match="got 2 and 1"):
        kv.move_kv(*pointers, torch.tensor([1, 2]), torch.tensor([3]))
