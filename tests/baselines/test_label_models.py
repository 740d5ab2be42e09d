"""Models of the labels: counts by attribute, catalogue-order runs, label ranker; by hand and on planted lists."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from baselines.probes import label_ranker
from baselines.probes.attribute_counts import AttributeCounts, group_names, shares, word_matches
from baselines.probes.label_ranker import LabelRanker, Likeness, Ridge, on_paper
from baselines.probes.list_order import ListOrder, onward, runs
from study.analysis.audit.detectors import Labels
from study.analysis.framework import load_settings
from study.base.errors import StudyError
from study.data.lists import steps
from study.evaluation import metrics
from study.evaluation.ranking import top_k
from tests.baselines import toys
from tests.baselines.toys import all_training, build, copy_dataset, fit, make_dataset, split_of

NO_COUNTS = {"weights": (0.0,) * 4, "near": 0.0, "word": 0.0, "rare": 0.0, "fill": 0.0}
NO_RUNS = {"language_run": 99, "alphabet_run": 99, "use_run": 99}
KERNELS = {"theme": 1.0, "text": 0.5, "theme*near3": 0.7}
SERVERS = [{"name": "Weather MCP", "language": "Go"}]
SERVERS += [{"name": "b", "description": "pelicans and maps", "language": "Go, Shell"}]
SERVERS += [{"name": "c", "language": "Rust"}]
SERVERS += [{"name": name} for name in ("d", *(f"s{row}" for row in range(36)))]
TASKS = [
    {"theme": "Weather", "language": "go", "subcategory": "A", "name": "x"},
    {"theme": "weather", "language": "Rust", "subcategory": "A", "name": "x"},
    {"theme": "Farming", "language": "Go", "subcategory": "B", "name": "count pelicans"},
    {"theme": "weather", "language": "Go", "subcategory": "B", "name": "count pelicans"},
]
LISTS = [[2, 3], [3], [1], [0]]
# Theme: tasks 0 and 1; theme and subcategory: none; theme and language: task 0; language and subcategory: task 2.
RULES = [({"weights": (1.0, 0, 0, 0)}, [0, 0, 0.5, 1]), ({"weights": (0, 1.0, 0, 0)}, [0, 0, 0, 0])]
RULES += [({"weights": (0, 0, 1.0, 0)}, [0, 0, 1, 1]), ({"weights": (0, 0, 0, 1.0)}, [0, 1, 0, 0])]
# The last one: in Go, and on one of two training lists of Go tasks.
RULES += [({"word": 1.0}, [1, 0, 0, 0]), ({"rare": 1.0, "most": 0.2}, [0, 1, 0, 0]), ({"fill": 1.0}, [0, 0.5, 0, 0])]


def scored(data, train, test, **model):
    return fit(AttributeCounts(**(NO_COUNTS | model)), data, split_of(data, train, test)).score(np.array(test))


@pytest.mark.parametrize(("model", "wanted"), RULES)
def test_each_rule_by_hand(model, wanted):
    data = make_dataset(TASKS, SERVERS, LISTS)
    np.testing.assert_allclose(scored(data, [0, 1, 2], [3], **model)[0, :4], wanted)


def test_near_tasks_count_more_and_a_training_task_is_no_neighbour_of_itself():
    data = make_dataset(TASKS, SERVERS, LISTS)
    kernel = np.exp(-np.array([3, 2]) / 2.0)
    found = scored(data, [0, 1, 2], [3], near=1.0, span=2.0)[0]
    np.testing.assert_allclose(found[:4], [0, 0, kernel[0] / kernel.sum(), 1], rtol=1e-6)
    data = make_dataset(TASKS[:2], SERVERS, LISTS[:2])
    system = fit(AttributeCounts(**(NO_COUNTS | {"near": 1.0})), data, all_training(data))
    np.testing.assert_allclose(system.score(np.array([1, 0]))[:, 2:4], [[1, 1], [0, 1]])


def test_empty_attributes_make_no_group_and_common_words_are_left_out():
    tasks = pd.DataFrame({"theme": ["A", "a", ""], "language": ["Go", "", "Go"]})
    assert group_names(tasks, "theme+language").tolist() == ["a\ngo", "", ""]
    data = make_dataset([{"theme": name} for name in ("A", "", "")], SERVERS, [[1], [2], [3]])
    member, share, names = shares(data.relevance, data.tasks["theme"], np.arange(3))
    assert ((member @ share).toarray()[:, :4].tolist(), names) == ([[0, 1, 0, 0], [0] * 4, [0] * 4], ["a"])
    tasks, servers = word_matches(["weather server"], ["weather server", "a server", "server", "maps"], 0.5)
    assert (tasks @ servers.T).toarray().tolist() == [[1, 0, 0, 0]]


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
    cover = [1, 1, 0.5, 1]  # 4, 5, 7 and 0, 1, 2, 3
    assert onward(entries, 9, 4).toarray().tolist() == [[0] * n + cover[: 4 - n] for n in range(4)]
    assert onward(entries, 2, 4)[0].toarray().tolist() == [1, 1, 0, 0]
    assert onward(entries[:0], 2, 4).nnz == 0


def test_a_walk_through_the_language_by_hand():
    # In Go are places 0, 2, 4, ...; of two Go lists one walks from its first server, one does not walk.
    tasks = [{"theme": "", "language": name} for name in ("Go", "Go", "Rust", "go")]
    data = make_dataset(tasks, catalogue(40, ["Go", "Rust"]), [[0, 2, 4], [6, 21, 8], [1, 13], [5]])
    _, scores = fitted(data, 1, **(NO_RUNS | {"language_run": 3, "prior": 1.0}))
    assert scores[0].tolist() == [0.5, 0, 0.5, 0, 0.5, *[0] * 35]


def test_a_walk_through_the_alphabet_starts_where_lists_did_or_at_a_word_of_the_theme():
    servers = catalogue(40, [""])
    servers[20]["description"] = "reads weather maps"
    tasks = [{"theme": name, "language": ""} for name in ("weather", "weather", "farming", "weather", "farming")]
    data = make_dataset(tasks, servers, [[20, 21, 22], [5, 6, 7], [30, 31, 32], [1], [1]])
    system, scores = fitted(data, 2, **(NO_RUNS | {"alphabet_run": 3}))
    assert system.from_word == 0.5  # of the two runs of tasks whose theme some server names
    np.testing.assert_allclose(scores[0, [20, 22, 5, 7, 30, 33]], [0.5, 0.5, 0.25, 0.25, 0.25, 0], rtol=1e-6)
    np.testing.assert_allclose(scores[1, [20, 22, 5, 7, 30, 33]], [0, 0, 0.5, 0.5, 0.5, 0], rtol=1e-6)


def test_a_walk_through_equally_used_servers_leaves_the_others_out():
    # Server 12 lies between, but three more lists hold it.
    lists = [[10, 20, 30], *([12, 3] for _ in range(4)), [1]]
    data = make_dataset([{"theme": "", "language": ""}] * len(lists), catalogue(40, [""]), lists)
    _, scores = fitted(data, 1, **(NO_RUNS | {"use_run": 3, "use_difference": 0}))
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
    assert recall(data, 60, fitted(data, 60, **(NO_RUNS | {"use_run": 4}))[1]) < 0.5


def test_the_configured_weights_fit_the_groups_and_the_thresholds_are_the_audits():
    counts, model, audit = build("attribute_counts"), build("list_order"), load_settings(Labels)
    assert len(counts.weights) == len(counts.groups)
    same = {"alphabet_gap": "close_gap", "alphabet_run": "close_run", "use_run": "level_run", "most": "theme_words"}
    for name in ("language_gap", "language_run", "use_difference", *same):
        assert getattr(model, name) == getattr(audit, same.get(name, name))


@pytest.fixture
def toy():
    rng, words = np.random.default_rng(0), ["ship", "boat", "train", "plane", "lorry"]
    tasks = [{"name": " ".join(rng.choice(words, 2)), "theme": str(rng.choice(["a", "B", "b"]))} for _ in range(12)]
    servers = [{"name": word, "description": word, "language": "Go, Rust"} for word in words]
    return make_dataset(tasks, servers, [sorted(rng.choice(5, 2, replace=False)) for _ in range(12)])


def test_factors_by_hand(toy):
    known = np.array([0, 3, 5])
    likeness, theme = Likeness(toy, known, KERNELS), toy.tasks["theme"].str.casefold().to_numpy()
    assert (likeness.factor("theme", np.array([1])) == (theme[1] == theme[known])).all()
    np.testing.assert_allclose(likeness.factor("near3", np.array([4])), np.exp(-np.array([[4, 1, 1]]) / 3), rtol=1e-6)
    np.testing.assert_allclose(np.diag(likeness.total(KERNELS, known)), 1 + 0.5 + 0.7, rtol=1e-5)
    product = likeness.factor("theme", known) * likeness.factor("near3", known)
    np.testing.assert_allclose(likeness.kernel("theme*near3", known), product)
    for kernel in ("colour", "near0", "theme*"):
        with pytest.raises(StudyError, match="unknown factor"):
            Likeness(toy, known, [kernel])


def test_a_training_task_is_scored_as_if_it_had_been_left_out_and_a_new_one_by_all(toy):
    known = np.arange(9)
    likeness, labels = Likeness(toy, known, KERNELS), toy.relevance[known].toarray()
    ridge = Ridge(likeness, sp.csr_matrix(labels), KERNELS, 0.5)
    kernel = likeness.total(KERNELS, np.arange(12)).astype(np.float64)
    for task, place in [*zip(known, known, strict=True), (10, -1)]:
        rest = known[known != task]
        matrix = kernel[np.ix_(rest, rest)] + 0.5 * np.eye(len(rest))
        expected = kernel[task, rest] @ np.linalg.solve(matrix, labels[rest])
        asked = np.array([task]), np.array([place])
        np.testing.assert_allclose(ridge.score(*asked)[0], expected, atol=1e-4)
        weights = likeness.kernel("theme", asked[0])[0, rest]
        share = label_ranker.shares(likeness, "theme", sp.csr_matrix(labels), *asked)[0]
        np.testing.assert_allclose(share, weights @ labels[rest] / max(weights.sum(), 1), atol=1e-6)


def test_what_is_in_common_on_paper_by_hand():
    tasks = [{"name": "a", "theme": "Cloud Cost", "language": "rust"}, {"name": "b", "theme": "", "language": "C"}]
    cloud = {"name": "Cloud", "description": "cloud cost", "language": "Rust, Go"}
    data = make_dataset(tasks, [cloud, {"name": "x", "description": "clouds", "language": "C++"}], [[0], [1]])
    language, theme = (of_tasks @ of_servers for of_tasks, of_servers in on_paper(data)[1:])
    assert (language.tolist(), theme.tolist()) == ([[1, 0], [0, 0]], [[2, 0], [0, 0]])


@pytest.mark.parametrize("trees", [0, 5])
def test_what_is_copied_in_training_is_found_and_candidates_stand_above_all_others(trees, tmp_path):
    data, split = copy_dataset()
    sizes = {"trees": trees, "candidates": 12, "least_in_leaf": 2, "leaves": 4}
    system = fit(LabelRanker([{"text": 1.0, "theme": 0.5}], shares=["theme"], **sizes), data, split, tmp_path)
    assert toys.recall10(system, data, split).mean() > 0.9
    if trees:
        scores = np.sort(system.score(split.tasks("test")[:3]), axis=1)
        assert ((scores > 1e3) == (np.arange(data.n_servers) >= data.n_servers - 12)).all()
