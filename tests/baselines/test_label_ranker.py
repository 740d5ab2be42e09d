"""Label ranker: the closed-form leave-one-out equals leaving out, and the trees learn from training labels alone."""

import numpy as np
import pytest
import scipy.sparse as sp

from baselines import label_ranker as k
from baselines.label_ranker import LabelRanker, ServerFeatures
from study.errors import StudyError
from tests.baselines.toys import copy_dataset, fit, make_dataset, recall10

KERNELS = {"theme": 1.0, "text": 0.5, "theme*near3": 0.7}


def toy(seed=0):
    rng = np.random.default_rng(seed)
    words = ["ship", "boat", "train", "plane", "lorry"]
    tasks = [
        {"name": " ".join(rng.choice(words, 2)), "theme": str(rng.choice(["a", "B", "b"])), "language": "Go"}
        for _ in range(12)
    ]
    servers = [{"name": word, "description": word, "language": "Go, Rust"} for word in words]
    return make_dataset(tasks, servers, [sorted(rng.choice(5, 2, replace=False)) for _ in range(12)])


def likeness(data, known):
    return k.Likeness(data, known, k.all_kernels([KERNELS], ()), max_features=None, max_ngram=1)


def test_factors_by_hand():
    data = toy()
    known = np.array([0, 3, 5])
    found = likeness(data, known)
    theme = data.tasks["theme"].str.casefold().to_numpy()
    assert (found.factor("theme", np.array([1])) == (theme[1] == theme[known])).all()
    np.testing.assert_allclose(found.factor("near3", np.array([4])), np.exp(-np.array([[4, 1, 1]]) / 3), rtol=1e-6)
    own = found.total(KERNELS, known)
    np.testing.assert_allclose(np.diag(own), 1 + 0.5 + 0.7, rtol=1e-5)
    product = found.factor("theme", known) * found.factor("near3", known)
    np.testing.assert_allclose(found.kernel("theme*near3", known), product)


def test_a_training_task_is_scored_as_if_it_had_been_left_out_and_a_new_one_by_all():
    data, known = toy(), np.arange(9)
    found, labels = likeness(data, known), data.relevance[known].toarray()
    ridge = k.Ridge(KERNELS, 0.5)
    ridge.fit(found, sp.csr_matrix(labels))
    kernel = found.total(KERNELS, np.arange(12)).astype(np.float64)
    for task, place in [*zip(known, known, strict=True), (10, -1)]:
        rest = known[known != task]
        expected = kernel[task, rest] @ np.linalg.solve(
            kernel[np.ix_(rest, rest)] + 0.5 * np.eye(len(rest)), labels[rest]
        )
        asked = np.array([task]), np.array([place])
        np.testing.assert_allclose(ridge.score(*asked)[0], expected, atol=1e-4)
        weights = found.kernel("theme", asked[0])[0, rest]
        shares = k.shares(found, "theme", sp.csr_matrix(labels), *asked)[0]
        np.testing.assert_allclose(shares, weights @ labels[rest] / max(weights.sum(), 1), atol=1e-6)


def test_server_features_by_hand():
    data = make_dataset(
        [{"name": "a", "theme": "Cloud Cost", "language": "rust"}, {"name": "b", "theme": "", "language": "C"}],
        [
            {"name": "Cloud", "description": "cloud cost", "language": "Rust, Go"},
            {"name": "x", "description": "clouds", "language": "C++"},
        ],
        [[0], [1]],
    )
    _, language, theme = ServerFeatures(data).of(np.array([0, 1]))
    assert language.tolist() == [[1, 0], [0, 0]]
    assert theme.tolist() == [[2, 0], [0, 0]]


def small(**changes):
    sizes = {"trees": 5, "candidates": 12, "least_in_leaf": 2, "leaves": 4}
    return LabelRanker(**{"ridges": [{"text": 1.0, "theme": 0.5}], "shares": ["theme"], **sizes, **changes})


@pytest.mark.parametrize("trees", [0, 5])
def test_what_is_copied_in_training_is_found_for_new_tasks(trees, tmp_path):
    data, split = copy_dataset()
    system = fit(small(trees=trees), data, split, tmp_path)
    assert recall10(system, data, split).mean() > 0.9


def test_candidates_stand_above_all_others_and_known_servers_are_left_out(tmp_path):
    data, split = copy_dataset()
    system = small()
    system.fit(data, split, seed=0, workdir=tmp_path)
    tasks = split.tasks("test")[:3]
    scores = system.score(tasks)
    chosen = np.sort(scores, axis=1)[:, -12:]
    assert (chosen > 1e3).all()
    assert (np.sort(scores, axis=1)[:, :-12] < 1e3).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ridges": [{"colour": 1.0}]}, "no factor 'colour'"),
        ({"ridges": [{"near0": 1.0}]}, "no factor 'near0'"),
        ({"ridges": []}, "every ridge"),
        ({"ridges": [{"text": 0.0}]}, "every ridge"),
        ({"regularisation": 0.0}, "every ridge"),
        ({"shares": ["theme*"]}, "no factor ''"),
    ],
)
def test_wrong_settings_are_refused(changes, message):
    with pytest.raises(StudyError, match=message):
        small(**changes)
