"""Each rule of the rule baseline by hand, and planted lists that the rules find."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from baselines.attribute_counts import AttributeCounts, group_names, shares, word_matches
from study.data import prepare, synthetic
from study.data.dataset import load
from study.data.splits import make
from study.evaluation import metrics
from tests.baselines.toys import all_training, build, fit, make_dataset, split_of, top10

OFF = {"weights": (0.0,) * 4, "near": 0.0, "word": 0.0, "rare": 0.0, "fill": 0.0}


def scored(data, train, test, **model):
    return fit(AttributeCounts(**(OFF | model)), data, split_of(data, train, test)).score(np.array(test))


SERVERS = [
    {"name": "Weather MCP", "language": "Go"},
    {"name": "b", "description": "pelicans and maps", "language": "Go, Shell"},
    {"name": "c", "language": "Rust"},
    {"name": "d"},
] + [{"name": f"s{row}"} for row in range(36)]
SERVERS = [{"name": "", "description": "", "language": ""} | server for server in SERVERS]
TASKS = [
    {"theme": "Weather", "language": "go", "subcategory": "A", "name": "x"},
    {"theme": "weather", "language": "Rust", "subcategory": "A", "name": "x"},
    {"theme": "Farming", "language": "Go", "subcategory": "B", "name": "count pelicans"},
    {"theme": "weather", "language": "Go", "subcategory": "B", "name": "count pelicans"},
]
TASKS = [{"description": ""} | task for task in TASKS]
LISTS = [[2, 3], [3], [1], [0]]


@pytest.mark.parametrize(
    ("model", "wanted"),
    [
        ({"weights": (1.0, 0, 0, 0)}, [0, 0, 0.5, 1]),  # theme: tasks 0 and 1
        ({"weights": (0, 0, 1.0, 0)}, [0, 0, 1, 1]),  # theme and language: task 0
        ({"weights": (0, 0, 0, 1.0)}, [0, 1, 0, 0]),  # language and subcategory: task 2
        ({"weights": (0, 1.0, 0, 0)}, [0, 0, 0, 0]),  # theme and subcategory: none
        ({"word": 1.0}, [1, 0, 0, 0]),
        ({"rare": 1.0, "most": 0.2}, [0, 1, 0, 0]),
        ({"fill": 1.0}, [0, 0.5, 0, 0]),  # in Go, and on one of two training lists of Go tasks
    ],
)
def test_each_rule_by_hand(model, wanted):
    data = make_dataset(TASKS, SERVERS, LISTS)
    np.testing.assert_allclose(scored(data, [0, 1, 2], [3], **model)[0, :4], wanted)


def test_near_tasks_count_more():
    data = make_dataset(TASKS, SERVERS, LISTS)
    kernel = np.exp(-np.array([3, 2]) / 2.0)
    found = scored(data, [0, 1, 2], [3], near=1.0, span=2.0)[0]
    np.testing.assert_allclose(found[:4], [0, 0, kernel[0] / kernel.sum(), 1], rtol=1e-6)


def test_a_training_task_is_no_neighbour_of_itself():
    data = make_dataset(TASKS[:2], SERVERS, LISTS[:2])
    system = fit(AttributeCounts(**(OFF | {"near": 1.0})), data, all_training(data))
    np.testing.assert_allclose(system.score(np.array([1, 0]))[:, 2:4], [[1, 1], [0, 1]])


def test_empty_attributes_make_no_group():
    tasks = pd.DataFrame({"theme": ["A", "a", ""], "language": ["Go", "", "Go"]})
    assert group_names(tasks, "theme+language").tolist() == ["a\ngo", "", ""]
    data = make_dataset([{"theme": name} for name in ("A", "", "")], SERVERS, [[1], [2], [3]])
    group, counts = shares(data.relevance, group_names(data.tasks, "theme"), np.ones(3, dtype=bool))
    assert counts[group[1]].nnz == counts[group[2]].nnz == 0


def test_common_words_are_left_out():
    tasks, servers = word_matches(["weather server"], ["weather server", "a server", "server", "maps"], 0.5)
    assert (tasks @ servers.T).toarray().tolist() == [[1, 0, 0, 0]]


def test_the_rules_beat_popularity_where_labels_follow_rules(tmp_path):
    synthetic.generate(tmp_path / "raw", n_tasks=800)
    prepare.prepare("synthetic", tmp_path / "raw", tmp_path / "prepared", tmp_path / "tables")
    data = load("synthetic", tmp_path / "prepared")
    split = make(data, "cold")
    said = {}
    for name in ("label_rules", "popularity", "random"):
        ranked = top10(fit(name, data, split), data, split)
        said[name] = np.nanmean(metrics.ndcg(ranked, split.test[split.tasks("test")], 10))
    assert said["label_rules"] > said["popularity"] + 0.05
    assert said["popularity"] > said["random"]


def test_the_configured_weights_fit_the_groups():
    model = build("label_rules")
    assert len(model.weights) == len(model.groups)
