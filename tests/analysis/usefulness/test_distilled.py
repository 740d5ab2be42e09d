"""Distillation: which pairs are graded, which lists are learned, what is kept, how the scores are used."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from study.advisor.encoders.sentence import DIMENSION
from study.advisor.saved.student import COLUMNS, FIELDS, Student, file_of
from study.analysis import framework
from study.analysis.framework import ANALYSES, Context, load_settings
from study.analysis.usefulness import grades as distilled
from study.config.compose import load

SETTINGS = load_settings(distilled.Distilled)
SMALL = replace(SETTINGS, tasks=2, first=2, deeper=1, until=4, anywhere=1)
DATA = SimpleNamespace(
    tasks=pd.DataFrame({"id": [1, 2, 3], "name": list("abc"), "description": ["x", "y", "z"]}),
    servers=pd.DataFrame({"id": range(10, 16), "name": list("pqrstu"), "description": ["12345"] * 6}),
)


def test_first_deeper_and_random_servers_of_training_tasks_that_are_no_topics(tmp_path, monkeypatch):
    class System:
        def score(self, rows):
            return np.tile(-np.arange(6.0), (len(rows), 1))

    split = SimpleNamespace(protocol="cold", tasks=lambda part: np.array([0, 1, 2]))
    monkeypatch.setenv("T2M_ROOT", str(tmp_path))
    monkeypatch.setattr(distilled, "load_split", lambda name: (DATA, split))
    monkeypatch.setattr(distilled.store, "read_table", lambda *names: pd.DataFrame({"task_id": [2]}))
    monkeypatch.setattr(distilled, "fitted", lambda *given: System())
    pairs = distilled.drawn("toy", SMALL)
    assert sorted(pairs["task_id"].unique()) == [1, 3]
    for _, own in pairs.groupby("task_id"):
        assert own["server_id"].tolist()[:2] == [10, 11]
        assert own["server_id"].iloc[2] in (12, 13)
        assert own["server_id"].is_unique


def test_without_the_request_no_product_counts():
    found = np.ones((1, len(COLUMNS) * 2))
    assert distilled.unasked(found).tolist() == [[0, 0, 1, 1, 0, 0, 1, 1]]


@pytest.fixture(scope="module")
def planted():
    """Features of 40 tasks with 12 servers each, two of them with a weight, and grades that differ by task as well."""
    rng = np.random.default_rng(0)
    tasks = pd.Series(np.repeat(np.arange(40), 12))
    found = np.zeros((len(tasks), len(COLUMNS) * DIMENSION))
    found[:, [0, DIMENSION]] = rng.normal(size=(len(tasks), 2))
    return found, found[:, 0] - 2 * found[:, DIMENSION] + 10 * tasks, tasks


def test_the_weights_are_those_of_a_ridge_over_differences_within_a_task(planted):
    found, grades, tasks = planted
    x, y = distilled.centred(found, tasks), distilled.centred(grades, tasks)
    assert np.abs(y.reshape(40, 12).sum(axis=1)).max() < 1e-9
    weights = distilled.train(x, y, 0.5).weights
    two = x[:, [0, DIMENSION]]
    expected = np.linalg.solve(two.T @ two + 0.5 * np.eye(2), two.T @ y[:, 0])
    np.testing.assert_allclose(weights[0, :2], expected, rtol=1e-9)
    np.testing.assert_allclose(expected, [1, -2], rtol=0.01)
    assert np.count_nonzero(np.abs(weights) > 1e-12) == 2


def test_correlations_are_those_of_tasks_left_out(planted):
    found, grades, tasks = planted
    x, y = distilled.centred(found, tasks), distilled.centred(grades, tasks)
    assert distilled.correlations(x, y, tasks, [0.01])[0.01] > 0.999
    # Grades without a reason are learned by heart, and no fold knows those of another.
    rng = np.random.default_rng(1)
    noise, wide = distilled.centred(rng.normal(size=len(x)), tasks), distilled.centred(rng.normal(size=x.shape), tasks)
    own = distilled.train(wide, noise, 0.01)
    assert np.corrcoef(wide @ own.weights.T.ravel(), noise[:, 0])[0, 1] > 0.99
    assert abs(distilled.correlations(wide, noise, tasks, [0.01])[0.01]) < 0.15


def test_scores_of_a_task_are_scaled_to_the_grades(monkeypatch):
    words = {"x": 0, "y": 1, "12345": 2}
    monkeypatch.setattr(
        distilled, "encode", lambda texts: np.eye(3, DIMENSION, dtype=np.float32)[list(map(words.get, texts))]
    )
    monkeypatch.setattr(distilled.kinds, "texts", lambda table, kinds, kind: table["description"].tolist())
    requests, fields = distilled.vectors(DATA, pd.DataFrame({"task_id": [2, 1, 2], "server_id": [11, 10, 10]}))
    assert requests[:, :2].tolist() == [[0, 1], [1, 0], [0, 1]]
    assert [fields[name][0, 2] for name in FIELDS] == [1, 1]
    student = SimpleNamespace(scores=lambda asked, shown: np.array([3.0, 1.0, 2.0][: len(asked)], dtype=np.float32))
    run = pd.DataFrame({"task_id": [1, 1, 2, 1], "server_id": [10, 11, 12, 13]})
    found = distilled.scored(student, DATA, run)
    assert found["expected"].tolist() == [2.0, 0.0, 0.0, 1.0]
    assert (found["milliseconds"] > 0).all()


def test_the_student_that_is_best_on_the_choosing_topics_ranks_the_others(tmp_path, monkeypatch):
    """Grades depend on the server alone; the teacher's are all kept, so that nothing is asked."""
    configuration = load(["dataset=synthetic"])
    monkeypatch.setenv("T2M_ROOT", str(tmp_path))
    rng = np.random.default_rng(0)
    fields = {name: rng.normal(size=(6, DIMENSION)).astype(np.float32) for name in FIELDS}
    known = pd.DataFrame([(task, server, server % 3, "m") for task in (1, 3) for server in range(10, 16)])
    known.columns = [*distilled.store.PAIR, "expected", "model"]
    run = pd.DataFrame({"task_id": 2, "server_id": [10, 11, 12], "rank": [1, 2, 3], "score": 0.0, "part": "valid"})
    run = pd.concat([run, run.assign(task_id=1, part="fresh")])
    seen = []

    def table(collection, own, settings):
        seen.append((settings.parts, sorted(own["part"].unique()), own["server_id"].min()))
        values = [0.4 if len(seen) == 1 else 0.5] * len(settings.parts)
        return pd.DataFrame({"part": settings.parts, "weight": 1.0, "n": 1, "ndcg@10": values})

    monkeypatch.setattr(distilled, "load_split", lambda name: (DATA, None))
    monkeypatch.setattr(distilled, "drawn", lambda *given: None)
    monkeypatch.setattr(distilled, "ask", lambda *given: known)
    other = run.assign(server_id=run["server_id"] + 1)
    monkeypatch.setattr(
        distilled, "first_servers", lambda name, settings: run if settings.system == SETTINGS.system else other
    )
    monkeypatch.setattr(distilled, "graded_table", table)
    monkeypatch.setattr(distilled.Collection, "load", lambda name: None)
    monkeypatch.setattr(framework, "load_settings", lambda kind: replace(SETTINGS, penalties=[0.1]))

    def vectors(data, pairs):
        rows = pairs["server_id"].to_numpy() - 10
        return np.ones((len(pairs), DIMENSION), dtype=np.float32), {name: of[rows] for name, of in fields.items()}

    monkeypatch.setattr(distilled, "vectors", vectors)
    study = Context(ANALYSES["usefulness/distilled"], configuration)
    found = distilled.distilled(study)["distilled"]
    assert (study.facts["kept"], study.facts["models"]) == (distilled.BLIND, ["m"])
    both = ["valid", "fresh"]
    assert seen[:2] == [(["valid"], ["valid"], 10)] * 2
    assert seen[2:] == [(both, sorted(both), 10), (both, sorted(both), 11)]
    assert SETTINGS.also == ["field_dense"]
    assert found[["system", "student", "part"]].to_numpy().tolist() == [
        [SETTINGS.system, "all", "valid"],
        *([system, distilled.BLIND, part] for system in (SETTINGS.system, "field_dense") for part in both),
    ]
    kept = Student.load(file_of("synthetic"))
    assert not kept.asks
    scores = kept.scores(np.zeros((1, DIMENSION), dtype=np.float32), fields)
    assert scores[[1, 4]].min() > scores[[0, 3]].max() + 0.5  # 11 and 14 have grade 2, 12 and 15 none
