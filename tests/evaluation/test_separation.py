"""How far labelled servers stand out: by hand, for every model alike, and free of the scale of the space."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from study.data.splits import Split
from study.evaluation.separation import mean_separation, separation


def test_separation_by_hand():
    distance = np.array([[0.1, 0.2, 0.3, 0.4], [0.5, 0.5, 0.1, 0.9]])
    related = np.array([[True, False, True, False], [True, False, False, False]])
    found = separation(distance, related, depth=2)
    # First task: listed .1 .3, others .2 .4: median .2 over .3; nearer in 3 of 4 comparisons; one of two in the top 2.
    assert found.loc[0].to_dict() == pytest.approx({"matched": 0.2, "ratio": 0.2 / 0.3, "auc": 0.75, "recall": 0.5})
    # Second: listed .5, others .5 .1 .9: a tie counts half; nearest two are the third and the first.
    assert found.loc[1].to_dict() == pytest.approx({"matched": 0.5, "ratio": 1.0, "auc": 0.5, "recall": 1.0})


def test_one_function_measures_every_model_alike():
    # Servers 0, 1 and 2 are listed by a test task; server 3 is nearest to both and no candidate.
    none, test = sp.csr_matrix((3, 4)), sp.csr_matrix(np.array([[1, 0, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]], np.float32))
    split = Split("cold", none, none, test, cold=True)
    tasks = np.array([[1, 0], [0, 1], [1, 0]], np.float32)
    servers = np.array([[0.8, 0.6], [0.6, 0.8], [0.6, -0.8], [0.7071, 0.7071]], np.float32)
    # Task 0 lists 0 and 2 (distances .2 and .4), another: 1 (.4); task 1 lists 1 (.2) and 2 (1.8), another: 0 (.4).
    means = mean_separation(tasks, servers, split, "test", depth=1)
    assert [means[name] for name in ("recall", "auc", "matched")] == pytest.approx([0.5, 0.625, 0.65])
    assert mean_separation(sp.csr_matrix(tasks), sp.csr_matrix(servers), split, depth=1) == pytest.approx(means)


def test_separation_is_free_of_scale_and_even_for_noise():
    rng = np.random.default_rng(0)
    distance, related = rng.random((200, 50)), rng.random((200, 50)) < 0.2
    related[:, 0], related[:, 1] = True, False
    found = separation(distance, related, depth=10)
    assert found["auc"].mean() == pytest.approx(0.5, abs=0.02)
    scaled = separation(7 * distance, related, depth=10)
    pd.testing.assert_frame_equal(found[["ratio", "auc", "recall"]], scaled[["ratio", "auc", "recall"]])
