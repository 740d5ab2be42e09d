"""Training interactions as pairs, lists, counts and ratings."""

import numpy as np
import scipy.sparse as sp

from baselines.interactions import Pairs, stars
from study.data.lists import training_lists
from study.data.splits import make
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


def test_stars_follow_the_place_of_training_servers_in_the_list(blocks):
    data, split = blocks
    ratings = stars(data, split, "rank")
    for task in (0, 4, 17):
        for server in split.train[[task]].indices:
            place = list(data.lists[task]).index(server) + 1
            assert ratings[task, server] == [5, 5, 4, 4, 3, 3, 2, 2, 1, 1][place - 1]
    assert set(stars(data, split, "binary").data) == {5.0}
