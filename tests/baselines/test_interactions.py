"""Training interactions as pairs, histories, counts and ratings; settings."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from baselines.interactions import Pairs, batched, counts, prefixes, stars, train_positions, training_lists
from baselines.settings import of_choice, require_choice
from study.data.splits import make
from study.errors import StudyError
from tests.baselines.toys import with_other_answers


def test_training_lists_keep_the_listed_order_and_hold_no_other_server(blocks):
    data, split = blocks
    lists = training_lists(data, split)
    for task, row in enumerate(lists):
        assert set(row) == set(split.train[[task]].indices)
        places = [data.lists[task].tolist().index(server) for server in row]
        assert places == sorted(places)
    changed, other = with_other_answers(data, split, ("valid", "test"))
    for before, after in zip(lists, training_lists(changed, other), strict=True):
        np.testing.assert_array_equal(before, after)
    cold = make(data, "cold")
    assert [len(row) for row in training_lists(data, cold)] == np.diff(cold.train.indptr).tolist()


@given(st.lists(st.integers(0, 6), min_size=1, max_size=8), st.integers(0, 99))
def test_prefixes_split_a_list_in_two(counts, seed):
    lists = [np.arange(count) + 10 * row for row, count in enumerate(counts)]
    drawn = list(prefixes(lists, "random", np.random.default_rng(seed)))
    assert [row for row, _, _ in drawn] == [row for row, count in enumerate(counts) if count >= 2]
    for row, seen, targets in drawn:
        assert min(len(seen), len(targets)) > 0
        assert sorted([*seen, *targets]) == lists[row].tolist()
    for row, seen, targets in prefixes(lists, "list", np.random.default_rng(seed)):
        assert [*seen, *targets] == lists[row][: len(seen) + 1].tolist()


def test_every_beginning_is_drawn_as_often_as_any_other():
    rngs = map(np.random.default_rng, range(600))
    drawn = [len(seen) for rng in rngs for _, seen, _ in prefixes([np.arange(5)], "random", rng)]
    drawn = np.bincount(drawn, minlength=6)
    assert drawn[[0, 5]].tolist() == [0, 0]
    assert abs(drawn[1:5] - 150).max() < 5 * np.sqrt(600 * 0.25 * 0.75)


def test_batches_hold_every_example_once_and_similar_lengths_together():
    examples = ["x" * n for n in range(1, 30)]
    parts = batched(examples, len, 4, np.random.default_rng(0))
    assert sorted((example for part in parts for example in part), key=len) == examples
    assert all(max(map(len, part)) - min(map(len, part)) <= 3 for part in parts)
    assert [len(part[0]) for part in parts] != sorted(len(part[0]) for part in parts)


def test_a_setting_may_state_a_value_for_each_choice_of_another():
    assert of_choice({"item": 1, "user": 2}, "item") == 1
    assert of_choice(3, "item") == 3
    with pytest.raises(StudyError, match="'none'"):
        of_choice({"item": 1}, "none")
    require_choice("colour", "red", ("red", "blue"))
    with pytest.raises(StudyError, match="unknown colour 'green'") as caught:
        require_choice("colour", "green", ("red", "blue"))
    assert caught.value.column == "system.model.colour"
    assert caught.value.fix == "one of: red, blue"
    with pytest.raises(StudyError, match="unknown order 'sorted'"):
        list(prefixes([np.arange(3)], "sorted", np.random.default_rng(0)))


def test_pairs_answer_as_the_matrix_does_and_negatives_are_uniform_outside_of_it():
    rng = np.random.default_rng(0)
    matrix = sp.random(20, 15, density=0.3, format="csr", random_state=rng)
    pairs, dense = Pairs(matrix), matrix.toarray() > 0
    rows, columns = rng.integers(20, size=200), rng.integers(15, size=200)
    np.testing.assert_array_equal(pairs.hold(rows, columns), dense[rows, columns])
    pool = np.array([1, 4, 9])
    np.testing.assert_array_equal(pairs.outside(pool), 3 - dense[:, pool].sum(axis=1))
    drawn = pairs.draw_outside(rows, rng, pool)
    free = pairs.outside(pool)[rows] > 0
    assert not dense[rows, drawn][free].any()
    counted = np.bincount(pairs.draw(np.zeros(3000, dtype=np.int64), rng), minlength=15)
    assert not counted[~dense[0]].any()
    np.testing.assert_allclose(counted[dense[0]] / 3000, 1 / dense[0].sum(), atol=0.05)
    # Negatives are uniform over what a task does not list.
    pairs = Pairs(sp.csr_matrix(np.array([[1, 0, 0, 1, 0], [1, 1, 1, 1, 1]], dtype=np.float32)))
    drawn = pairs.draw_outside(np.zeros(6000, dtype=np.int64), np.random.default_rng(0))
    found = np.bincount(drawn, minlength=5)
    assert found[[0, 3]].tolist() == [0, 0]
    assert abs(found[[1, 2, 4]] - 2000).max() < 5 * np.sqrt(6000 * 2 / 9)
    assert len(pairs.draw_outside(np.ones(4, dtype=np.int64), np.random.default_rng(0))) == 4


def test_counts_and_stars_follow_the_place_of_training_servers_in_the_list(blocks):
    data, split = blocks
    places, ratings, weights = train_positions(data, split), stars(data, split, "rank"), counts(data, split, "rank")
    for task in (0, 4, 17):
        for server in split.train[[task]].indices:
            place = list(data.lists[task]).index(server) + 1
            assert places[task, server] == place
            assert ratings[task, server] == [5, 5, 4, 4, 3, 3, 2, 2, 1, 1][place - 1]
            assert weights[task, server] == 11 - place
    assert set(stars(data, split, "binary").data) == {5.0}
    assert set(counts(data, split, "binary").data) == {1.0}
