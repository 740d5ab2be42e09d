"""A small judged collection on synthetic data, whose judge reads the planted truth with a known error rate."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
import yaml

from study.base import paths
from study.base.files import write_csv
from study.config.compose import build_system, load
from study.evaluation.runs import rank_tasks, run_table
from study.judging import evaluate, labels, store
from study.judging.verify import final_grades
from tests.tiny_study import lay_out, make_data, true_relevance

DATASET = "synthetic"
SMALL = ["dataset=synthetic", "dataset.generator.n_servers=200", "dataset.generator.n_tasks=320"]
ERROR_RATE = 0.1


def truth_of():
    """Planted grade of a pair: (task_id, server_id) -> 0, 1, 2, for the data set in force."""
    raw = paths.raw(DATASET)
    tasks, servers = pd.read_csv(raw / "truth_tasks.csv"), pd.read_csv(raw / "truth_servers.csv")
    ids = product(map(int, tasks["task_id"]), map(int, servers["server_id"]))
    return dict(zip(ids, true_relevance(tasks, servers).ravel().tolist(), strict=True))


def change_yaml(path, **values):
    """Set top-level keys of a settings file."""
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | values))


def draw_topics(data, split, rng):
    """Tasks of two parts of the split."""
    rows = {part: np.sort(rng.choice(split.tasks(part), n, replace=False)) for part, n in (("valid", 16), ("test", 32))}
    tables = [data.tasks.iloc[own][["id", "subcategory"]].assign(part=part) for part, own in rows.items()]
    return pd.concat(tables).rename(columns={"id": "task_id"})[store.COLUMNS["topics"]]


def pooled_runs(data, split, topics):
    """The first ten of three systems and of the released lists, by name."""
    released = pd.read_parquet(paths.prepared(DATASET) / "labels.parquet").rename(columns={"position": "rank"})
    runs = {store.LABELS: released[released["task_id"].isin(topics["task_id"])].assign(seed=0)}
    for name in ("bm25", "random", "tfidf"):
        system = build_system(load([f"dataset={DATASET}", f"system={name}", "profile=smoke"]).system)
        system.fit(data, split, seed=1, workdir=paths.cache())
        for part, ids in topics.groupby("part")["task_id"]:
            rows, scores = rank_tasks(system, split, ids.to_numpy() - 1, part=part, k=10, seed=1)
            found = run_table(data, ids.to_numpy(), rows, scores, 1)
            runs[name] = pd.concat([runs[name], found]) if name in runs else found
    return runs


def judge(pairs, rng):
    """Two passes that read the planted grade or, now and then, another; where they differ, a third that knows it."""
    truth = truth_of()
    planted = np.array([truth[pair] for pair in pairs[store.PAIR].itertuples(index=False, name=None)])
    wrong, other = rng.random((2, len(planted))) < ERROR_RATE, rng.integers(3, size=(2, len(planted)))
    first, second = (pd.array(np.where(wrong[i], other[i], planted), dtype="Int64") for i in (0, 1))
    rows = pairs[[*store.PAIR, "round"]].assign(grade_1=first, grade_2=second, grade_3=pd.array(planted, dtype="Int64"))
    disputed = final_grades(rows.assign(grade_3=np.nan)).isna()
    rows["grade_3"] = rows["grade_3"].where(disputed)
    return rows.assign(final=final_grades(rows), guideline_version="1.0", judge="simulated")[
        store.COLUMNS["judgements"]
    ]


@pytest.fixture(scope="session")
def prepared_root(tmp_path_factory):
    """A root with prepared data, topics, a pool, three passes and the judgements; `root` is a copy of it."""
    root, rng = tmp_path_factory.mktemp("judged"), np.random.default_rng(0)
    lay_out(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("T2M_ROOT", str(root))
        make_data(SMALL)
        data, split = store.load_split(DATASET)
        topics, ids = draw_topics(data, split, rng), data.servers["id"].to_numpy()
        runs = pooled_runs(data, split, topics)
        control = [
            pd.DataFrame({"task_id": t, "server_id": rng.choice(ids, 5, replace=False)}) for t in topics["task_id"]
        ]
        named = [run[store.PAIR].assign(sources=name) for name, run in runs.items()]
        pairs = pd.concat([*named, pd.concat(control).assign(sources="")])
        pairs = pairs.groupby(store.PAIR)["sources"].agg(list).reset_index()
        pairs["control"] = pairs["sources"].map(lambda names: int("" in names))
        pairs["sources"] = pairs["sources"].map(lambda names: ";".join(filter(None, names)))
        pool = pairs[store.PAIR].assign(order=rng.permutation(len(pairs)), round=1)
        lengths = data.servers.assign(server_id=ids, characters=data.servers["description"].str.len())
        tables = {
            "topics": topics,
            "pool": pool,
            "provenance": pairs,
            "lengths": lengths,
            "judgements": judge(pool, rng),
        }
        for name, table in tables.items():
            write_csv(store.file(DATASET, name), table[store.COLUMNS[name]])
        every = pd.concat([run.assign(system=name) for name, run in runs.items()])
        write_csv(store.runs_file(DATASET), every[["system", *store.RUN]])
    return root


@pytest.fixture
def shared_root(prepared_root, monkeypatch):
    """The judged root itself, for tests that write nothing."""
    monkeypatch.setenv("T2M_ROOT", str(prepared_root))


@pytest.fixture
def few_draws(monkeypatch):
    """Intervals from a few draws: their width is not what the test asks."""
    monkeypatch.setattr(evaluate, "NOISE_RESAMPLES", 3)
    monkeypatch.setattr(labels, "FEW_RESAMPLES", 20)
