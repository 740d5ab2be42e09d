"""Label lists as matrices: runs against counting by hand, and what their order measures."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from study.data.lists import order_measures, run_lengths, steps


def brute_runs(row, gap):
    """Run lengths of one list, entry by entry."""
    lengths = []
    for i, _ in enumerate(row):
        first = last = i
        while first > 0 and 0 < row[first] - row[first - 1] <= gap:
            first -= 1
        while last < len(row) - 1 and 0 < row[last + 1] - row[last] <= gap:
            last += 1
        lengths.append(last - first + 1)
    return lengths


@given(arrays(np.int64, (3, 7), elements=st.integers(0, 30)), st.integers(1, 30))
def test_run_lengths_agree_with_counting_by_hand(matrix, gap):
    lengths = run_lengths(steps(matrix, gap))
    assert lengths.tolist() == [brute_runs(row.tolist(), gap) for row in matrix]


def test_unfilled_places_belong_to_no_run():
    matrix = np.array([[3, 5, -1, -1], [1, 2, 3, 9]])
    assert run_lengths(steps(matrix)).tolist() == [[2, 2, 1, 1], [4, 4, 4, 4]]
    assert run_lengths(steps(matrix, 1)).tolist() == [[1, 1, 1, 1], [3, 3, 3, 1]]


def test_order_measures_by_hand():
    matrix = np.array([[0, 1, 2, 50], [9, 4, 20, 21], [7, -1, -1, -1]])
    measures = order_measures(matrix, 5, 3)
    assert measures["lists wholly ascending by id"] == pytest.approx(1 / 3)  # a list of one is not called sorted
    assert measures["labels in an ascending run of 3 or more"] == pytest.approx(7 / 9)
    assert measures["labels in a run of 3 or more with gaps of at most 5"] == pytest.approx(3 / 9)
    assert measures["labels whose server follows its predecessor in the catalogue"] == pytest.approx(3 / 9)
    assert measures["mean longest ascending run (entries)"] == pytest.approx((4 + 3 + 1) / 3)
