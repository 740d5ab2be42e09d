"""Grades of a language model: what is asked and kept, how they re-order, and what is chosen on which topics."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from study.analysis.framework import load_settings
from study.analysis.usefulness import grades as measured
from study.base.errors import StudyError
from study.judging import store
from study.judging.collection import Collection

SETTINGS = load_settings(measured.Grades)


def reply(*weights):
    """A reply whose first token is 0, 1 or 2 with these probabilities."""
    tokens = [{"token": str(digit), "logprob": math.log(p)} for digit, p in enumerate(weights) if p]
    return {"model": "toy", "choices": [{"logprobs": {"content": [{"top_logprobs": tokens}]}}]}


class Client:
    """Replies in turn, and what was asked."""

    base_url = "http://toy"

    def __init__(self, replies):
        self.replies, self.asked = list(replies), []

    def post(self, path, body):
        self.asked.append(body["messages"][1]["content"])
        answer = self.replies.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_stop_keeps_the_grades_so_far_and_known_pairs_are_not_asked_again(tmp_path, monkeypatch):
    servers = pd.DataFrame(
        {"id": [10, 11], "name": ["a", "b"], "description": ["x" * 500, "y"], "language": ["", "Go"]}
    )
    tasks = pd.DataFrame({"id": [1], "name": ["t"], "description": ["d"]})
    monkeypatch.setenv("T2M_ROOT", str(tmp_path))
    monkeypatch.setattr(measured.datasets, "load", lambda name: type("D", (), {"tasks": tasks, "servers": servers}))
    monkeypatch.setattr(measured, "SAVE_EVERY", 1)
    first = Client([reply(0.5, 0.25, 0.25), StudyError("the engine stopped")])
    pairs, file = pd.DataFrame({"task_id": [1, 1], "server_id": [10, 11]}), tmp_path / "grades.csv"

    class Endpoint:
        def __init__(self, client):
            self.client = lambda cassette: client

    monkeypatch.setattr(measured, "replace", lambda settings, mode: settings)
    monkeypatch.setattr(measured, "endpoint_settings", lambda name: Endpoint(first))
    with pytest.raises(StudyError, match="the engine stopped"):
        measured.ask("synthetic", pairs, SETTINGS, file)
    assert "x" * (SETTINGS.longest + 1) not in first.asked[0]
    second = Client([reply(0, 0, 1.0)])
    monkeypatch.setattr(measured, "endpoint_settings", lambda name: Endpoint(second))
    found = measured.ask("synthetic", pairs, SETTINGS, file).set_index("server_id")["expected"]
    assert len(second.asked) == 1
    assert found.to_dict() == {10: 0.75, 11: 2.0}
    # With all grades there no endpoint is needed.
    monkeypatch.setattr(measured, "endpoint_settings", None)
    assert len(measured.ask("synthetic", pairs, SETTINGS, file)) == 2
    nothing = Client([{"model": "toy", "choices": []}])
    monkeypatch.setattr(measured, "endpoint_settings", lambda name: Endpoint(nothing))
    tasks["id"] = 2
    with pytest.raises(StudyError, match="server 10, task 2"):
        measured.ask("synthetic", pairs.assign(task_id=2)[:1], SETTINGS, file)


def run_of(part, task, *rows):
    """Rows of (server, score, expected), best first."""
    found = pd.DataFrame(rows, columns=["server_id", "score", "expected"])
    return found.assign(task_id=task, part=part, seed=0, rank=range(1, len(rows) + 1))


def test_the_order_is_score_plus_weighted_grade():
    run = run_of("valid", 1, (10, 3.0, 0.0), (11, 2.0, 1.0), (12, 1.0, 2.0))
    # Scores 1, .5, 0 and grades 0, .5, 1.
    assert measured.reordered(run, 0.0)["server_id"].tolist() == [10, 11, 12]
    assert measured.reordered(run, 1.0)["server_id"].tolist() == [10, 11, 12]  # all are 1: the order stays
    assert measured.reordered(run, 2.0)["server_id"].tolist() == [12, 11, 10]
    assert measured.reordered(run, 2.0)["rank"].tolist() == [1, 2, 3]


@pytest.mark.parametrize("parts", [["valid", "fresh"], ["fresh", "valid"]])
def test_the_weight_is_chosen_on_the_validation_topics_alone(parts):
    topics = pd.DataFrame({"task_id": [1, 2], "part": ["valid", "fresh"], "subcategory": "x"})
    rows = [(1, 10, 0), (1, 11, 2), (2, 10, 2), (2, 11, 0)]
    judged = pd.DataFrame(rows, columns=["task_id", "server_id", "final"])
    judged = judged.assign(grade_1=judged["final"], grade_2=judged["final"])
    run = pd.concat([run_of(part, task, (10, 1.0, 0.0), (11, 0.9, 2.0)) for part, task in (("valid", 1), ("fresh", 2))])
    settings = replace(SETTINGS, parts=parts, choice="valid", weights=[0.1, 4.0])
    found = measured.graded_table(Collection.of(topics, judged), run, settings).set_index(["part", "weight"])
    assert found.loc[("valid", 4.0), "diff"] > 0 == found.loc[("valid", 0.1), "diff"]
    assert found.loc["fresh"].index.tolist() == [0.0, 4.0]  # a loss there, and it stays
    assert found.loc[("fresh", 4.0), "diff"] < 0


def test_agreement_of_the_second_family_by_hand():
    rows = pd.DataFrame({"task_id": [1, 1, 2, 2], "final": [0, 0, 1, 2], "expected": [0.2, 1.2, 0.6, 1.8]})
    row = measured.second_family(rows, seed=0).iloc[0]
    # Useful ones are higher in three of four comparisons.
    assert row["auc"] == 0.75
    assert row["useful"] == 0.5
    assert row[["mean_of_0", "mean_of_1", "mean_of_2"]].tolist() == pytest.approx([0.7, 0.6, 1.8])
    # Rounded: (0, 0), (0, 1), (1, 1), (2, 2): observed 1 of 4; expected by the margins (2, 1, 1) and (1, 2, 1).
    expected = np.abs(np.subtract.outer(range(3), range(3))) ** 2
    by_chance = (np.outer([2, 1, 1], [1, 2, 1]) * expected).sum() / 4
    assert row["kappa_quadratic"] == pytest.approx(1 - 1 / by_chance)


def test_a_pair_is_asked_once(monkeypatch):
    run = pd.DataFrame({"task_id": [1, 1], "server_id": [10, 11]})
    monkeypatch.setattr(
        measured, "sampled", lambda dataset, settings: pd.DataFrame({"task_id": [2, 1], "server_id": [5, 10]})
    )
    found = measured.wanted("synthetic", SETTINGS, run)
    assert found[store.PAIR].to_numpy().tolist() == [[1, 10], [1, 11], [2, 5]]


def test_the_first_servers_are_those_of_the_pooled_run_whatever_the_system_ranks_first_today(monkeypatch):
    data = SimpleNamespace(tasks=pd.DataFrame({"id": [7, 8, 9]}), servers=pd.DataFrame({"id": [10, 11, 12]}))
    system = SimpleNamespace(score=lambda tasks: np.add.outer(100.0 * tasks, [1, 3, 2]))
    columns = ["task_id", "seed", "rank", "server_id"]
    rows = [(9, 1, 1, 12), (9, 1, 2, 10), (9, 1, 3, 11), (8, 1, 1, 11), (7, 1, 1, 10), (7, 1, 2, 12), (7, 1, 3, 11)]
    topics = pd.DataFrame({"task_id": [7, 8, 9], "part": ["valid", "test", "fresh"]})
    monkeypatch.setattr(measured.store, "read_runs", lambda name: {"own": pd.DataFrame(rows, columns=columns)})
    monkeypatch.setattr(measured.store, "read_table", lambda *names: topics)
    monkeypatch.setattr(measured, "load_split", lambda name: (data, None))
    monkeypatch.setattr(measured, "fitted", lambda *given: system)
    settings = replace(SETTINGS, system="own", depth=2, parts=["valid", "fresh"])
    found = measured.first_servers("toy", settings)
    expected = [(9, 12, 1, 202, "fresh"), (9, 10, 2, 201, "fresh"), (7, 10, 1, 1, "valid"), (7, 12, 2, 2, "valid")]
    assert list(found.itertuples(index=False, name=None)) == expected
    with pytest.raises(StudyError, match="unknown pooled run 'other'"):
        measured.first_servers("toy", replace(settings, system="other"))
