"""The best few columns of a row, whatever the row holds."""

import pytest
import torch
from effort import cases
from hypothesis import given
from hypothesis import strategies as st

from dflash_sglang.kernels import library
from dflash_sglang.kernels.top_columns import top_columns

library.load()


@cases(100)
@given(
    st.integers(0, 99),
    st.integers(1, 64),
    st.integers(1, 9),
    st.sampled_from([1, 5, 63, 64, 65, 100, 1_000, 8_193, 262_144]),
    st.integers(1, 32),
)
def test_it_equals_a_full_sort(seed, bs, positions, columns, count):
    bs = min(bs, max(1, 2_000_000 // (positions * columns)))
    count = min(count, columns)
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(bs, positions, columns, generator=generator)
    values, places = top_columns(logits, count)
    # Of equal numbers the one that stands first.
    order = logits.sort(dim=-1, descending=True, stable=True).indices[..., :count]
    assert torch.equal(places, order)
    assert torch.equal(values, logits.gather(-1, order))


@cases(50)
@given(st.lists(st.sampled_from([0.0, -0.0, 1.0, -2.5, float("-inf")]), min_size=1, max_size=90))
def test_equal_numbers_and_minus_infinity_are_ranked_by_place(row):
    logits = torch.tensor(row)
    for count in {1, (len(row) + 1) // 2, len(row)}:
        values, places = top_columns(logits, count)
        order = logits.sort(descending=True, stable=True).indices[:count]
        assert places.tolist() == order.tolist()
        assert torch.equal(values, logits[order])


def test_what_is_no_number_is_never_the_best():
    logits = torch.full((3, 200), float("nan"))
    logits[1, 150], logits[2, 7] = 2.0, -1e30
    _, places = top_columns(logits, 4)
    assert places.tolist() == [[0, 1, 2, 3], [150, 0, 1, 2], [7, 0, 1, 2]]


def test_rows_of_a_view_are_found():
    logits = torch.randn(4, 6, 300)
    part = logits[:, ::2, 10:]
    assert torch.equal(top_columns(part, 3)[1], part.topk(3).indices)


@pytest.mark.parametrize(
    ("logits", "count"),
    [
        (torch.zeros(2, 5), 6),
        (torch.zeros(2, 5), 0),
        (torch.zeros(2, 5, dtype=torch.float64), 1),
        (torch.zeros(2, 5, dtype=torch.bfloat16), 1),
    ],
    ids=["too many", "none", "float64", "bfloat16"],
)
def test_what_does_not_fit_is_refused(logits, count):
    with pytest.raises(ValueError, match="top_columns expects"):
        top_columns(logits, count)
    with pytest.raises(ValueError, match="top_columns expects"):
        library.reference("top_columns")(logits, count)
