"""Order and repetition of lists: hand-computed cases and planted truths."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from study.analysis.audit import labels
from study.analysis.audit.detectors import Labels
from study.analysis.framework import load_settings
from study.data.lists import shuffled
from tests.analysis.toys import NO_REASON, UNSORTED, made, toy

FAST = replace(load_settings(Labels), permutations=20)


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """1,000 servers and 2,000 tasks by the default mixture."""
    return made(tmp_path_factory.mktemp("planted"), n_servers=1000, n_tasks=2000)


@given(arrays(np.int64, (4, 5), elements=st.integers(0, 9)), st.integers(0, 100))
def test_permutations_keep_what_they_promise(matrix, seed):
    matrix = np.where(np.arange(5) < np.array([[5], [3], [1], [4]]), matrix, -1)
    rng = np.random.default_rng(seed)
    moved, dealt = shuffled(matrix, rng), labels.redealt(matrix, rng)
    np.testing.assert_array_equal(np.sort(moved, axis=1), np.sort(matrix, axis=1))
    np.testing.assert_array_equal(moved >= 0, matrix >= 0)
    np.testing.assert_array_equal(dealt >= 0, matrix >= 0)
    np.testing.assert_array_equal(np.sort(dealt.ravel()), np.sort(matrix.ravel()))


def test_planted_sorted_and_copied_lists_are_found(planted):
    data, truth = planted
    table = labels.list_table(data, FAST).set_index("measure")
    share = truth["parameters"]["ascending_share"]
    sorted_lists = table.loc["lists wholly ascending by id"]
    assert abs(sorted_lists["observed"] - share) < 0.03
    assert sorted_lists["chance_high"] < 0.001
    assert sorted_lists["p"] == pytest.approx(1 / 21)
    # A share of the tasks copies the list of another; defects are planted afterwards in 1 % of the lists.
    copied = table.loc["lists beyond the first of each set", "observed"]
    assert abs(copied - truth["parameters"]["duplicate_share"]) < 0.02


def test_lists_without_order_or_copies_show_none(tmp_path):
    data, _ = made(tmp_path, n_servers=500, mixture=NO_REASON, **UNSORTED)
    table = labels.list_table(data, FAST)
    inside = (table["observed"] >= table["chance_low"] - 0.003) & (table["observed"] <= table["chance_high"] + 0.05)
    assert inside[table["measure"].str.contains("ascending by|beyond|follows|run of 6")].all()


def test_groups_by_hand():
    data = toy([{"theme": theme} for theme in "aaba"], [[0, 1], [1, 0], [0, 1], [2, 3]], 6)
    table = labels.group_table(data)
    row = table[table["size"] == 3].iloc[0]
    assert (row["groups"], row["tasks"], row["pairs"]) == (1, 3, 3)
    assert row[["same_theme", "same_order", "chance_theme"]].tolist() == pytest.approx([1 / 3, 1 / 3, 3 / 6])
    assert table.iloc[-1]["tasks"] == 3
