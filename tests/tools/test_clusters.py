"""Comparisons of queries that share an origin: by hand, and against the plain bootstrap."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.errors import StudyError
from study.evaluation.significance import bootstrap_interval, compare_all, randomisation
from study.tools.results import clustered, interval


def test_queries_of_one_origin_are_one_unit():
    rng = np.random.default_rng(0)
    origins = rng.normal(size=40)
    difference, groups = np.repeat(origins, 10), np.repeat(np.arange(40), 10).astype(str)
    low, high = interval(difference, groups, seed=1)
    alone = bootstrap_interval(origins, seed=1)
    naive = bootstrap_interval(difference, seed=1)
    # Ten copies of an origin tell no more than the origin.
    assert (low, high) == pytest.approx(alone, abs=0.03)
    assert high - low > 2.5 * (naive[1] - naive[0])


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=30), st.integers(0, 3))
def test_intervals_hold_to_what_was_seen(values, seed):
    difference = np.array(values)
    low, high = interval(difference, np.arange(len(values)).astype(str), seed=seed)
    assert difference.min() - 1e-9 <= low <= high <= difference.max() + 1e-9


def test_one_origin_has_no_interval():
    assert np.isnan(interval(np.array([1.0, 2.0]), np.array(["a", "a"]), seed=0)).all()


def frame(values):
    return pd.DataFrame({"task_id": [f"q{n}" for n in range(len(values))], "seed": 0, "hit_rate@1": values})


def test_tests_use_the_origins():
    frames = {"a": frame([1.0, 1, 1, 1, 0, 1]), "b": frame([0.0, 0, 0, 1, 1, 0])}
    groups = {"q0": "x", "q1": "x", "q2": "x", "q3": "y", "q4": "y", "q5": "z"}
    plain = compare_all(frames, "b", ["hit_rate@1"], 0)
    found = clustered(plain, frames, groups, 0).iloc[0]
    assert (found["groups"], found["n"], found["difference"]) == (3, 6, plain["difference"][0])
    assert found["randomisation_p"] == randomisation(np.array([3.0, -1.0, 1.0]), seed=0)
    assert found["randomisation_p"] > plain["randomisation_p"][0]
    with pytest.raises(StudyError, match="no group"):
        clustered(plain, frames, {"q0": "x"}, 0)
