"""Every walk by hand, and catalogues whose labels are nothing but walks."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from baselines.list_order import ListOrder, behind, onward, runs
from study.analysis.audit import settings
from study.data.lists import steps
from study.evaluation import metrics
from study.evaluation.ranking import top_k
from tests.baselines.toys import build, fit, make_dataset, split_of

OFF = {"language_run": 99, "alphabet_run": 99, "use_run": 99}


def catalogue(n, languages):
    """`n` servers whose names tell nothing, written in one language each."""
    return [{"name": f"s{row}", "description": "", "language": languages[row % len(languages)]} for row in range(n)]


def fitted(data, n_test, **model):
    """The system and its scores of the last `n_test` tasks, learned from the others."""
    first = data.n_tasks - n_test
    system = fit(ListOrder(**model), data, split_of(data, range(first), range(first, data.n_tasks)))
    return system, system.score(np.arange(first, data.n_tasks))


def recall(data, n_test, scores):
    """Mean recall at 10 of the last `n_test` tasks, ties broken at random."""
    order = np.random.default_rng(0).permutation(data.n_servers)
    return metrics.recall(top_k(scores, 10, order)[0], sp.csr_matrix(data.relevance[-n_test:]), 10).mean()


def test_runs_and_how_far_they_go_by_hand():
    matrix = np.array([[9, 4, 5, 7, 1], [0, 1, 2, 3, -1], [8, 6, 4, 2, 0]])
    row, entries = runs(matrix, steps(matrix, 2), 3)
    assert row.tolist() == [0, 1]
    assert entries.tolist() == [[4, 5, 7, -1, -1], [0, 1, 2, 3, -1]]
    assert behind(entries, 4).tolist() == [1, 1, 0.5, 1]  # 4, 5, 7 and 0, 1, 2, 3
    assert behind(entries[:0], 2).tolist() == [0, 0]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=4), st.lists(st.floats(0, 1), min_size=6, max_size=6))
def test_starts_are_carried_on_as_a_convolution_does(cover, starts):
    np.testing.assert_allclose(np.array(starts) @ onward(np.array(cover), 6), np.convolve(starts, cover)[:6])


def test_a_walk_through_the_language_by_hand():
    # In Go are places 0, 2, 4, ...; of two Go lists one walks from its first server, one does not walk.
    tasks = [{"theme": "", "language": name} for name in ("Go", "Go", "Rust", "go")]
    data = make_dataset(tasks, catalogue(40, ["Go", "Rust"]), [[0, 2, 4], [6, 21, 8], [1, 13], [5]])
    _, scores = fitted(data, 1, **(OFF | {"language_run": 3, "prior": 1.0}))
    assert scores[0, :8].tolist() == [0.5, 0, 0.5, 0, 0.5, 0, 0, 0]
    assert not scores[0, 8:].any()


def test_a_walk_through_the_alphabet_starts_where_lists_did_or_at_a_word_of_the_theme():
    servers = catalogue(40, [""])
    servers[20]["description"] = "reads weather maps"
    tasks = [{"theme": name, "language": ""} for name in ("weather", "weather", "farming", "weather", "farming")]
    data = make_dataset(tasks, servers, [[20, 21, 22], [5, 6, 7], [30, 31, 32], [1], [1]])
    system, scores = fitted(data, 2, **(OFF | {"alphabet_run": 3}))
    assert system.from_word == 0.5  # of the two runs of tasks whose theme some server names
    np.testing.assert_allclose(scores[0, [20, 22, 5, 7, 30, 33]], [0.5, 0.5, 0.25, 0.25, 0.25, 0], rtol=1e-6)
    np.testing.assert_allclose(scores[1, [20, 22, 5, 7, 30, 33]], [0, 0, 0.5, 0.5, 0.5, 0], rtol=1e-6)


def test_a_walk_through_equally_used_servers_leaves_the_others_out():
    # Server 12 lies between, but three more lists hold it.
    lists = [[10, 20, 30], *([12, 3] for _ in range(4)), [1]]
    data = make_dataset([{"theme": "", "language": ""}] * len(lists), catalogue(40, [""]), lists)
    _, scores = fitted(data, 1, **(OFF | {"use_run": 3, "use_difference": 0}))
    assert np.flatnonzero(scores[0]).tolist() == [10, 20, 30]
    assert scores[0, 10] == pytest.approx(1 / 5)


@pytest.mark.parametrize("kind", ["language", "alphabet"])
def test_labels_that_are_walks_are_found_again(kind):
    """Recall near 1, and no other kind of walk gives it."""
    languages = [f"l{number}" for number in range(8)]
    rng = np.random.default_rng(3)
    wanted = [languages[number] for number in rng.integers(8, size=200)]
    servers = catalogue(800, languages)
    if kind == "language":  # the first ten servers in the task's language
        lists = [list(range(languages.index(name), 80, 8)) for name in wanted]
        tasks = [{"theme": "x", "language": name} for name in wanted]
    else:  # the ten servers from the one that names the theme on
        starts = [90 * number + 7 for number in range(8)]
        for name, start in zip(languages, starts, strict=True):
            servers[start]["description"] = f"about {name}"
        lists = [list(range(start, start + 10)) for start in (starts[languages.index(name)] for name in wanted)]
        tasks = [{"theme": name, "language": ""} for name in wanted]
    data = make_dataset(tasks, servers, lists)
    _, scores = fitted(data, 60)
    assert recall(data, 60, scores) > 0.99
    assert recall(data, 60, fitted(data, 60, **(OFF | {"use_run": 4}))[1]) < 0.5


@pytest.mark.parametrize(("prior", "found"), [(100.0, True), (0.01, False)])
def test_a_language_with_few_runs_starts_as_the_others_do(prior, found):
    """Lists in Go start at its first server, the one in Rust at its 51st; five more in Rust start at the first."""
    first = {"Go": list(range(0, 20, 2)), "Rust": list(range(1, 21, 2))}
    lists = [*[first["Go"]] * 19, list(range(101, 121, 2)), *[first["Rust"]] * 5]
    tasks = [{"theme": "", "language": "Go" if row < 19 else "Rust"} for row in range(25)]
    data = make_dataset(tasks, catalogue(200, ["Go", "Rust"]), lists)
    _, scores = fitted(data, 5, prior=prior)
    assert recall(data, 5, scores) == pytest.approx(1.0 if found else 0.0)


def test_labels_without_walks_leave_no_score():
    rng = np.random.default_rng(0)
    lists = [sorted(rng.choice(400, 6, replace=False), reverse=True) for _ in range(30)]
    data = make_dataset([{"theme": "", "language": ""}] * 30, catalogue(400, [""]), lists)
    assert not fitted(data, 5)[1].any()


def test_the_configured_thresholds_are_the_audits():
    model, audit = build("label_walks"), settings.read(settings.Labels)
    same = {"alphabet_gap": "close_gap", "alphabet_run": "close_run", "use_run": "level_run", "most": "theme_words"}
    for name in ("language_gap", "language_run", "use_difference", *same):
        assert getattr(model, name) == getattr(audit, same.get(name, name))
