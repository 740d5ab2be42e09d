"""Distillation: which pairs are graded, which lists are learned, what is kept, how the scores are used."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from study.analysis.usefulness import distilled
from study.config.reader import read_settings
from study.reranking.student import Graded

SETTINGS = read_settings(distilled.Distilled, Path(__file__).parents[3] / "conf" / "usefulness" / "distilled.yaml")
SMALL = replace(SETTINGS, tasks=2, first=2, deeper=1, until=4, anywhere=1, longest=3)
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
    monkeypatch.setattr(distilled.grades, "fitted", lambda *given: System())
    pairs = distilled.drawn("toy", SMALL)
    assert sorted(pairs["task_id"].unique()) == [1, 3]
    for _, own in pairs.groupby("task_id"):
        assert own["server_id"].tolist()[:2] == [10, 11]
        assert own["server_id"].iloc[2] in (12, 13)
        assert own["server_id"].is_unique


def test_lists_hold_short_texts_and_all_have_the_same_length():
    known = pd.DataFrame({"task_id": [1, 1, 1, 1, 2], "server_id": [10, 11, 12, 13, 10], "expected": 1.0})
    (only,) = distilled.lists(DATA, known, SMALL)
    assert (only.task, only.servers[0], len(only.grades)) == ("a. x", "p. 123", 4)


def test_a_student_is_trained_again_only_for_other_lists_or_settings(tmp_path, monkeypatch):
    monkeypatch.setenv("T2M_ROOT", str(tmp_path))
    settings = replace(SETTINGS, epochs=1, lists=1, tokens=16)
    found = [Graded("a", ("b", "c"), np.array([2.0, 0.0]))]
    first, seconds = distilled.trained(found, settings, tmp_path / "kept")
    monkeypatch.setattr(distilled, "train", lambda *given: pytest.fail("trained again"))
    again, same = distilled.trained(found, settings, tmp_path / "kept")
    assert same == seconds
    np.testing.assert_array_equal(again.scores("a", ["b", "c"]), first.scores("a", ["b", "c"]))
    with pytest.raises(pytest.fail.Exception):
        distilled.trained(found, replace(settings, seed=2), tmp_path / "kept")


def test_scores_of_a_task_are_scaled_to_the_grades():
    student = SimpleNamespace(text=lambda name, text: name, scores=lambda task, shown: np.array([3.0, 1.0, 2.0]))
    run = pd.DataFrame({"task_id": 1, "server_id": [10, 11, 12]})
    found = distilled.scored(student, DATA, run)
    assert found["expected"].tolist() == [2.0, 0.0, 1.0]
    assert (found["milliseconds"] > 0).all()
