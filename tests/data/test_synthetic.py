"""The synthetic data holds what it was told to hold, its truth fits its files, and its text carries the signal."""

import json

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from sklearn.feature_extraction.text import TfidfVectorizer

from study.base.errors import StudyError
from study.data import annotation, prepare, splits, synthetic
from study.data.dataset import load
from tests.tiny_study import true_relevance

MIXTURE = {"topic_match": 0.4, "language_match": 0.3, "alphabetical": 0.2, "random": 0.1}


def truths(folder):
    return {name: pd.read_csv(folder / f"truth_{name}.csv") for name in ("labels", "servers", "tasks")}


def test_same_seed_same_bytes_and_another_seed_other_bytes(synthetic_raw, tmp_path):
    again, other = synthetic.generate(tmp_path / "again"), synthetic.generate(tmp_path / "other", seed=1)
    names = {path.name for path in synthetic_raw.iterdir()}
    truths = {"truth.json", "truth_labels.csv", "truth_servers.csv", "truth_tasks.csv"}
    assert names == {"mcp_raw.json", "task_raw.json", "mcp_task.csv", "mcp_task_all.csv"} | truths
    for name in names:
        assert (again / name).read_bytes() == (synthetic_raw / name).read_bytes()
        assert (other / name).read_bytes() != (synthetic_raw / name).read_bytes()


def test_truth_is_exactly_what_the_loader_reads(synthetic_raw, synthetic_data):
    truth = truths(synthetic_raw)["labels"]
    listed = truth[truth["in_list"]]
    servers, tasks = synthetic_data.servers["id"].to_numpy(), synthetic_data.tasks["id"].to_numpy()
    read = [(tasks[task], servers[server]) for task, row in enumerate(synthetic_data.lists) for server in row]
    assert list(zip(listed["task_id"], listed["server_id"], strict=True)) == read
    longer = pd.read_csv(synthetic_raw / "mcp_task_all.csv")
    everything = [(task, s) for task, row in zip(longer.task_id, longer.mcp_ids, strict=True) for s in json.loads(row)]
    assert list(zip(truth["task_id"], truth["server_id"], strict=True)) == everything


def test_quirks_are_there(synthetic_raw, synthetic_data, tmp_path):
    cleaning = prepare.prepare("synthetic", synthetic_raw, tmp_path)
    rows = cleaning.set_index(["rule", "table", "column"])["rows"]
    assert rows["id 0 (no server has it) left out", "labels", "server_id"] == 3
    assert rows["repeated id in one list left out", "labels", "server_id"] == 3
    assert rows["id 0 (no server has it) left out", "labels_all", "server_id"] == 0
    assert rows["null becomes empty text", "servers", "language"] > 0
    assert rows["spelling variants unified", "servers", "category_clean"] > 0
    assert rows["spelling variants unified", "tasks", "theme_clean"] > 0
    ids = synthetic_data.servers["id"]
    assert not ids.is_monotonic_increasing
    assert ids.max() > len(ids)
    names = synthetic_data.servers.sort_values("id")["name"].str.casefold()
    assert names.is_monotonic_increasing


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    sizes = {"n_servers": 3000, "n_tasks": 3000, "zero_lists": 0, "repeat_lists": 0, "duplicate_share": 0.2}
    folder = synthetic.generate(tmp_path_factory.mktemp("large"), mixture=MIXTURE, **sizes)
    prepare.prepare("large", folder, folder / "out")
    return folder, load("large", folder / "out"), truths(folder)


def test_planted_copies_and_ascending_lists(large):
    _, data, truth = large
    lists = pd.Series([tuple(row) for row in data.lists], index=data.tasks["id"])
    copied = truth["tasks"].set_index("task_id")["copied_from"]
    copies = copied[copied > 0]
    assert len(copies) == pytest.approx(0.2 * 3000, abs=5)
    assert (lists[copies.index].to_numpy() == lists[copies].to_numpy()).all()
    assert (copied[copies] == 0).all()
    topics = truth["tasks"].set_index("task_id")["topic"]
    assert (topics[copies.index].to_numpy() == topics[copies].to_numpy()).all()
    assert lists[copied == 0].duplicated().sum() == 0
    ids = data.servers["id"].to_numpy()
    ascending = np.mean([(np.diff(ids[list(row)]) > 0).all() for row in lists[copied == 0]])
    assert ascending == pytest.approx(0.2, abs=0.04)


def test_every_source_has_its_share_and_keeps_its_promise(large):
    _, _, truth = large
    labels = truth["labels"].merge(truth["tasks"], on="task_id")
    labels = labels.merge(truth["servers"], on="server_id", suffixes=("", "_of_server"))
    originals = labels[labels["copied_from"] == 0]
    shares = originals["source"].value_counts(normalize=True)
    for source, share in MIXTURE.items():
        # 30,000 labels: a standard deviation of at most 0.003; small groups hand some labels over to random.
        assert abs(shares[source] - share) < 0.02, source
    by_source = dict(list(originals.groupby("source")))
    topic = by_source["topic_match"]
    assert (topic["topic"] == topic["topic_of_server"]).all()
    assert (topic["facet"] == topic["facet_of_server"]).mean() == pytest.approx(0.7 + 0.3 / 3, abs=0.03)
    language = by_source["language_match"]
    assert (language["language"] == language["language_of_server"]).all()
    # Alphabetical fillers of one list follow one another, so most have a neighbour within two places.
    rank = pd.Series(np.arange(len(truth["servers"])), index=np.sort(truth["servers"]["server_id"]))
    fillers = by_source["alphabetical"].assign(rank=lambda table: rank[table["server_id"]].to_numpy())
    gaps = fillers.sort_values(["task_id", "rank"]).groupby("task_id")["rank"].diff().dropna()
    assert (gaps <= 2).mean() > 0.9
    # Random labels are uniform over the catalogue: ten bins by id.
    bins = np.bincount(rank[by_source["random"]["server_id"]].to_numpy() * 10 // 3000, minlength=10)
    assert scipy.stats.chisquare(bins).pvalue > 1e-4


def test_grades(large):
    _, _, truth = large
    graded = true_relevance(truth["tasks"].head(50), truth["servers"])
    assert graded.shape == (50, 3000)
    assert set(np.unique(graded)) == {0, 1, 2}
    row_of = pd.Series(np.arange(3000), index=truth["servers"]["server_id"])
    labels = truth["labels"].query("task_id <= 50")
    assert (graded[labels["task_id"] - 1, row_of[labels["server_id"]]] == labels["grade"]).all()
    task, server = 3, int(np.flatnonzero(graded[3] == 2)[0])
    assert truth["tasks"].loc[task, "facet"] == truth["servers"].loc[server, "facet"]


def test_text_beats_random_and_learning_beats_text(synthetic_data):
    data = synthetic_data
    split = splits.make(data, "cold")
    train, test = split.tasks("train"), split.tasks("test")
    texts = data.task_texts()
    model = TfidfVectorizer().fit(data.server_texts() + [texts[row] for row in train])
    tasks, servers = model.transform(texts), model.transform(data.server_texts())

    def recall(scores):
        best = np.argsort(-scores, axis=1, kind="stable")[:, :10]
        return np.array([np.isin(data.lists[row], top).mean() for top, row in zip(best, test, strict=True)])

    noise = np.random.default_rng(0).random((len(test), data.n_servers))
    near = (tasks[test] @ tasks[train].T).toarray()
    near[near < np.sort(near, axis=1)[:, [-20]]] = 0
    random, lexical, learned = (
        recall(scores + 1e-6 * noise)
        for scores in (noise, (tasks[test] @ servers.T).toarray(), near @ data.relevance[train].toarray())
    )
    assert lexical.mean() > random.mean() + 0.1
    assert learned.mean() > lexical.mean() + 0.05
    assert scipy.stats.wilcoxon(learned, lexical, alternative="greater", method="asymptotic").pvalue < 1e-3


def test_weighted_draws():
    groups, weight = np.array([1, 0, 1, -1, 1]), np.array([1.0, 5.0, 2.0, 9.0, 7.0])
    sampled = annotation.draw(np.random.default_rng(0), groups, weight, np.full(20_000, 1))
    counts = np.bincount(sampled, minlength=5)
    assert counts[[1, 3]].tolist() == [0, 0]
    assert scipy.stats.chisquare(counts[[0, 2, 4]], 20_000 * np.array([0.1, 0.2, 0.7])).pvalue > 1e-4
    assert annotation.draw(np.random.default_rng(0), groups, weight, np.array([2, 0, 5])).tolist() == [-1, 1, -1]
    nobody = np.array([-1, -1])
    assert annotation.draw(np.random.default_rng(0), nobody, np.ones(2), np.array([0])).tolist() == [-1]


def test_the_smallest_catalogue_fills_every_list(tmp_path):
    folder = synthetic.generate(tmp_path, n_servers=36, n_tasks=40)
    prepare.prepare("tiny", folder, tmp_path / "out")
    assert load("tiny", tmp_path / "out").n_servers == 36
    smallest = {"n_servers": 2, "n_tasks": 5, "list_length": 1, "extra_labels": 0, "seed": 0}
    assert len(pd.read_csv(synthetic.generate(tmp_path / "least", **smallest) / "mcp_task.csv")) == 5


IMPOSSIBLE = [("ascending_share", 1.5), ("popularity_sd", -1.0), ("popularity_sd", float("inf")), ("n_servers", 20)]
IMPOSSIBLE += [("list_length", 0), ("seed", -1), ("n_servers", 40.5), ("mixture", "even"), ("null_share", "few")]
IMPOSSIBLE += [("mixture", {"topic_match": 1.0}), ("mixture.random", dict.fromkeys(MIXTURE, 0.5) | {"random": -0.5})]


@pytest.mark.parametrize(("column", "value"), IMPOSSIBLE)
def test_impossible_parameters(column, value, tmp_path):
    with pytest.raises(StudyError) as caught:
        synthetic.generate(tmp_path, **{column.partition(".")[0]: value})
    assert (caught.value.column, caught.value.fix is not None) == (column, True)
    assert not list(tmp_path.iterdir())
