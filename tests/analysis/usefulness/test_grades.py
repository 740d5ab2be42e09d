"""Grades of a language model: what is asked and kept, how they re-order, what is chosen on which topics; and a linear
student of them: which pairs it learns from, its weights, and which student is kept."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from study.advisor.encoders.sentence import DIMENSION
from study.advisor.saved.student import COLUMNS, FIELDS, Student, file_of
from study.analysis import framework
from study.analysis.framework import ANALYSES, Context, load_settings
from study.analysis.usefulness import grades as measured
from study.base.errors import StudyError
from study.judging import store
from study.judging.collection import Collection

SETTINGS, DISTILLED = load_settings(measured.Grades), load_settings(measured.Distilled)
DATA = SimpleNamespace(
    tasks=pd.DataFrame({"id": [1, 2, 3], "name": list("abc"), "description": ["x", "y", "z"]}),
    servers=pd.DataFrame({"id": range(10, 16), "name": list("pqrstu"), "description": ["12345"] * 6}),
)


def reply(*weights):
    """A reply whose first token is 0, 1 or 2 with these probabilities."""
    tokens = [{"token": str(digit), "logprob": math.log(p)} for digit, p in enumerate(weights) if p]
    return {"model": "toy", "choices": [{"logprobs": {"content": [{"top_logprobs": tokens}]}}]}


def test_a_stop_keeps_the_grades_so_far_and_known_pairs_are_not_asked_again(new_root, monkeypatch):
    servers = pd.DataFrame({"id": [10, 11], "name": ["a", "b"], "description": ["x" * 500, "y"], "language": ""})
    tasks = pd.DataFrame({"id": [1, 2], "name": "t", "description": "d"})
    monkeypatch.setattr(measured.datasets, "load", lambda name: SimpleNamespace(tasks=tasks, servers=servers))
    monkeypatch.setattr(measured, "SAVE_EVERY", 1)
    monkeypatch.setattr(measured, "replace", lambda settings, mode: settings)
    pairs, file = pd.DataFrame({"task_id": [1, 1], "server_id": [10, 11]}), new_root / "grades.csv"

    def ask(pairs, *replies):
        """The grades, and what was asked of an endpoint that gives these replies in turn."""
        asked, left = [], list(replies)

        def post(path, body):
            asked.append(body["messages"][1]["content"])
            if isinstance(left[0], Exception):
                raise left[0]
            return left.pop(0)

        client = SimpleNamespace(base_url="http://toy", post=post)
        endpoint = SimpleNamespace(client=lambda cassette: client)
        monkeypatch.setattr(measured, "endpoint_settings", lambda name: endpoint)
        return measured.ask("synthetic", pairs, SETTINGS, file), asked

    with pytest.raises(StudyError, match="the engine stopped"):
        ask(pairs, reply(0.5, 0.25, 0.25), StudyError("the engine stopped"))
    found, asked = ask(pairs, reply(0, 0, 1.0))
    assert len(asked) == 1
    assert found.set_index("server_id")["expected"].to_dict() == {10: 0.75, 11: 2.0}
    assert len(ask(pairs)[0]) == 2  # with all grades there nothing is asked
    _, (text,) = ask(pairs.assign(task_id=2)[:1], reply(1.0))
    assert "x" * SETTINGS.longest in text
    assert "x" * (SETTINGS.longest + 1) not in text
    with pytest.raises(StudyError, match="server 11, task 2"):
        ask(pairs.assign(task_id=2)[1:], {"model": "toy", "choices": []})


def run_of(part, task, *rows):
    """Rows of (server, score, expected), best first."""
    found = pd.DataFrame(rows, columns=["server_id", "score", "expected"])
    return found.assign(task_id=task, part=part, seed=0, rank=range(1, len(rows) + 1))


def test_the_order_is_score_plus_weighted_grade():
    """Scores 1, .5, 0 and grades 0, .5, 1 once they are scaled; at weight 1 all are 1, and the order stays."""
    run = run_of("valid", 1, (10, 3.0, 0.0), (11, 2.0, 1.0), (12, 1.0, 2.0))
    orders = {weight: measured.reorder_run(run, weight)["server_id"].tolist() for weight in (0.0, 1.0, 2.0)}
    assert orders == {0.0: [10, 11, 12], 1.0: [10, 11, 12], 2.0: [12, 11, 10]}
    assert measured.reorder_run(run, 2.0)["rank"].tolist() == [1, 2, 3]


def test_the_weight_is_chosen_on_the_validation_topics_alone():
    topics = pd.DataFrame({"task_id": [1, 2], "part": ["valid", "fresh"], "subcategory": "x"})
    rows = [(1, 10, 0), (1, 11, 2), (2, 10, 2), (2, 11, 0)]
    judged = pd.DataFrame(rows, columns=["task_id", "server_id", "final"])
    judged = judged.assign(grade_1=judged["final"], grade_2=judged["final"])
    run = pd.concat([run_of(part, task, (10, 1.0, 0.0), (11, 0.9, 2.0)) for part, task in (("fresh", 2), ("valid", 1))])
    settings = replace(SETTINGS, weights=[0.1, 4.0])
    found = measured.graded_table(Collection.of(topics, judged), run, settings).set_index(["part", "weight"])
    assert found.loc[("valid", 4.0), "diff"] > 0 == found.loc[("valid", 0.1), "diff"]
    assert found.loc["fresh"].index.tolist() == [0.0, 4.0]  # a loss there, and it stays
    assert found.loc[("fresh", 4.0), "diff"] < 0


def test_agreement_of_the_second_family_by_hand():
    rows = pd.DataFrame({"task_id": [1, 1, 2, 2], "final": [0, 0, 1, 2], "expected": [0.2, 1.2, 0.6, 1.8]})
    row = measured.second_family(rows, seed=0).iloc[0]
    # Useful ones are higher in three of four comparisons.
    assert row[["auc", "useful"]].tolist() == [0.75, 0.5]
    assert row[["mean_of_0", "mean_of_1", "mean_of_2"]].tolist() == pytest.approx([0.7, 0.6, 1.8])
    # Rounded: (0, 0), (0, 1), (1, 1), (2, 2): observed 1 of 4; expected by the margins (2, 1, 1) and (1, 2, 1).
    expected = np.abs(np.subtract.outer(range(3), range(3))) ** 2
    by_chance = (np.outer([2, 1, 1], [1, 2, 1]) * expected).sum() / 4
    assert row["kappa_quadratic"] == pytest.approx(1 - 1 / by_chance)


def test_the_first_servers_are_those_of_the_pooled_run_whatever_ranks_first_today_and_a_pair_is_asked_once(monkeypatch):
    data = SimpleNamespace(tasks=pd.DataFrame({"id": [7, 8, 9]}), servers=pd.DataFrame({"id": [10, 11, 12]}))
    system = SimpleNamespace(score=lambda tasks: np.add.outer(100.0 * tasks, [1, 3, 2]))
    columns = ["task_id", "seed", "rank", "server_id"]
    rows = [(9, 1, 1, 12), (9, 1, 2, 10), (9, 1, 3, 11), (8, 1, 1, 11), (7, 1, 1, 10), (7, 1, 2, 12), (7, 1, 3, 11)]
    topics = pd.DataFrame({"task_id": [7, 8, 9], "part": ["valid", "test", "fresh"]})
    monkeypatch.setattr(measured.store, "read_runs", lambda name: {"own": pd.DataFrame(rows, columns=columns)})
    monkeypatch.setattr(measured.store, "read_table", lambda *names: topics)
    monkeypatch.setattr(measured, "load_split", lambda name: (data, None))
    monkeypatch.setattr(measured, "fit_system", lambda *given: system)
    settings = replace(SETTINGS, system="own", depth=2)
    found = measured.first_servers("toy", settings)
    expected = [(9, 12, 1, 202, "fresh"), (9, 10, 2, 201, "fresh"), (7, 10, 1, 1, "valid"), (7, 12, 2, 2, "valid")]
    assert list(found.itertuples(index=False, name=None)) == expected
    with pytest.raises(StudyError, match="unknown pooled run 'other'"):
        measured.first_servers("toy", replace(settings, system="other"))
    sample = pd.DataFrame({"task_id": [2, 7], "server_id": [5, 10]})
    monkeypatch.setattr(measured, "sample", lambda dataset, settings: sample)
    pairs = measured.pairs_to_grade("synthetic", SETTINGS, found)[store.PAIR].to_numpy().tolist()
    assert pairs == [[9, 12], [9, 10], [7, 10], [7, 12], [2, 5]]


def test_the_teacher_grades_first_deeper_and_random_servers_of_training_tasks_that_are_no_topics(new_root, monkeypatch):
    system = SimpleNamespace(score=lambda rows: np.tile(-np.arange(6.0), (len(rows), 1)))
    split = SimpleNamespace(protocol="cold", tasks=lambda part: np.array([0, 1, 2]))
    monkeypatch.setattr(measured, "load_split", lambda name: (DATA, split))
    monkeypatch.setattr(measured.store, "read_table", lambda *names: pd.DataFrame({"task_id": [2]}))
    monkeypatch.setattr(measured, "fit_system", lambda *given: system)
    pairs = measured.teacher_pairs("toy", replace(DISTILLED, tasks=2, first=2, deeper=1, until=4, anywhere=1))
    assert sorted(pairs["task_id"].unique()) == [1, 3]
    for _, own in pairs.groupby("task_id"):
        assert own["server_id"].tolist()[:2] == [10, 11]
        assert own["server_id"].iloc[2] in (12, 13)
        assert own["server_id"].is_unique


def test_the_weights_are_those_of_a_ridge_within_a_task_and_correlations_those_of_tasks_left_out():
    """40 tasks with 12 servers each, two features with a weight, and grades that differ by task as well."""
    rng = np.random.default_rng(0)
    tasks = pd.Series(np.repeat(np.arange(40), 12))
    found = np.zeros((len(tasks), len(COLUMNS) * DIMENSION))
    found[:, [0, DIMENSION]] = rng.normal(size=(len(tasks), 2))
    grades = found[:, 0] - 2 * found[:, DIMENSION] + 10 * tasks
    x, y = measured.centre_by_task(found, tasks), measured.centre_by_task(grades, tasks)
    assert np.abs(y.reshape(40, 12).sum(axis=1)).max() < 1e-9
    weights, two = measured.train(x, y, 0.5).weights, x[:, [0, DIMENSION]]
    expected = np.linalg.solve(two.T @ two + 0.5 * np.eye(2), two.T @ y[:, 0])
    np.testing.assert_allclose(weights[0, :2], expected, rtol=1e-9)
    np.testing.assert_allclose(expected, [1, -2], rtol=0.01)
    assert np.count_nonzero(np.abs(weights) > 1e-12) == 2
    assert measured.correlations(x, y, tasks, [0.01])[0.01] > 0.999
    # Grades without a reason are learned by heart, and no fold knows those of another.
    noise, wide = (measured.centre_by_task(rng.normal(size=size), tasks) for size in (len(x), x.shape))
    own = measured.train(wide, noise, 0.01)
    assert np.corrcoef(wide @ own.weights.T.ravel(), noise[:, 0])[0, 1] > 0.99
    assert abs(measured.correlations(wide, noise, tasks, [0.01])[0.01]) < 0.15
    # Without the request no product counts.
    assert measured.without_request(np.ones((1, len(COLUMNS) * 2))).tolist() == [[0, 0, 1, 1, 0, 0, 1, 1]]


def test_scores_of_a_task_are_scaled_to_the_grades(monkeypatch):
    place = {"x": 0, "y": 1, "12345": 2}
    eye = np.eye(3, DIMENSION, dtype=np.float32)
    monkeypatch.setattr(measured, "encode", lambda texts: eye[[place[text] for text in texts]])
    monkeypatch.setattr(measured.kinds, "texts", lambda table, kinds, kind: table["description"].tolist())
    requests, fields = measured.vectors(DATA, pd.DataFrame({"task_id": [2, 1, 2], "server_id": [11, 10, 10]}))
    assert requests[:, :2].tolist() == [[0, 1], [1, 0], [0, 1]]
    assert [fields[name][0, 2] for name in FIELDS] == [1, 1]
    student = SimpleNamespace(scores=lambda asked, shown: np.array([3.0, 1.0, 2.0][: len(asked)], dtype=np.float32))
    run = pd.DataFrame({"task_id": [1, 1, 2, 1], "server_id": [10, 11, 12, 13]})
    assert measured.score_run(student, DATA, run)["expected"].tolist() == [2.0, 0.0, 0.0, 1.0]


def test_the_student_that_is_best_on_the_choosing_topics_ranks_the_others(new_root, monkeypatch):
    """Grades depend on the server alone; the teacher's are all kept, so that nothing is asked."""
    configuration = SimpleNamespace(dataset=SimpleNamespace(name="synthetic"))
    rng = np.random.default_rng(0)
    fields = {name: rng.normal(size=(6, DIMENSION)).astype(np.float32) for name in FIELDS}
    known = pd.DataFrame([(task, server, server % 3, "m") for task in (1, 3) for server in range(10, 16)])
    known.columns = [*store.PAIR, "expected", "model"]
    run = pd.DataFrame({"task_id": 2, "server_id": [10, 11, 12], "rank": [1, 2, 3], "score": 0.0, "part": "valid"})
    run = pd.concat([run, run.assign(task_id=1, part="fresh")])
    runs = {DISTILLED.system: run, "field_dense": run.assign(server_id=run["server_id"] + 1)}
    seen = []

    def table(collection, own, settings):
        parts = sorted(own["part"].unique(), reverse=True)
        seen.append((parts, own["server_id"].min()))
        return pd.DataFrame({"part": parts, "weight": 1.0, "n": 1, "ndcg@10": 0.4 if len(seen) == 1 else 0.5})

    def vectors(data, pairs):
        rows = pairs["server_id"].to_numpy() - 10
        return np.ones((len(pairs), DIMENSION), dtype=np.float32), {name: of[rows] for name, of in fields.items()}

    monkeypatch.setattr(measured, "load_split", lambda name: (DATA, None))
    monkeypatch.setattr(measured, "teacher_pairs", lambda *given: None)
    monkeypatch.setattr(measured, "ask", lambda *given: known)
    monkeypatch.setattr(measured, "first_servers", lambda name, settings: runs[settings.system])
    monkeypatch.setattr(measured, "graded_table", table)
    monkeypatch.setattr(measured, "vectors", vectors)
    monkeypatch.setattr(measured.Collection, "load", lambda name: None)
    monkeypatch.setattr(framework, "load_settings", lambda kind: replace(DISTILLED, penalties=[0.1]))
    monkeypatch.setattr(framework, "settings_file", lambda kind: new_root)
    study = Context(ANALYSES["usefulness/distilled"], configuration)
    found = measured.distilled(study)["distilled"]
    assert (study.facts["kept"], study.facts["models"]) == (measured.BLIND, ["m"])
    both = ["valid", "fresh"]
    assert seen == [(["valid"], 10)] * 2 + [(both, 10), (both, 11)]
    assert DISTILLED.also == ["field_dense"]
    assert found[["system", "student", "part"]].to_numpy().tolist() == [
        [DISTILLED.system, "all", "valid"],
        *([system, measured.BLIND, part] for system in runs for part in both),
    ]
    kept = Student.load(file_of("synthetic"))
    assert not kept.asks
    scores = kept.scores(np.zeros((1, DIMENSION), dtype=np.float32), fields)
    assert scores[[1, 4]].min() > scores[[0, 3]].max() + 0.5  # 11 and 14 have grade 2, 12 and 15 none
