"""The distilled cross-encoder: its loss by hand, what it learns, a training that stops, damaged files."""

import math

import numpy as np
import pytest
import torch

from study.errors import StudyError
from study.reranking import student
from study.reranking.student import Graded, Learning, Student, train

HOW = Learning(epochs=3, lists=2, learning_rate=1e-3, temperature=0.25, tokens=24, longest=40, seed=1)
LISTS = [
    Graded(task, ("Reads PDF files", "Plays music", "Switches lights"), np.array([2.0, 0.0, 0.0]))
    for task in ("open a PDF", "PDF text", "tables of a PDF", "a PDF of pages")
]


def learn(folder, how=HOW, progress=lambda *told: None):
    return train(LISTS, how, folder / "checkpoint.pt", progress)


def test_the_loss_by_hand():
    scores, grades = torch.tensor([[0.0, 0.0]]), torch.tensor([[2.0, 0.0]])
    p = 1 / (1 + math.exp(-2.0))  # the softmax of 2 and 0 at temperature 1
    entropy = -(p * math.log(p) + (1 - p) * math.log(1 - p))
    assert float(student.loss(scores, grades, 1.0)) == pytest.approx(math.log(2) - entropy + math.log(2))


def test_it_learns_the_order_of_the_grades_and_is_the_same_when_kept(tmp_path):
    learned = learn(tmp_path)
    found = learned.scores("text of a PDF", LISTS[0].servers)
    assert found[0] > found[1:].max()
    learned.save(tmp_path / "kept")
    kept = Student.load(tmp_path / "kept")
    np.testing.assert_array_equal(kept.scores("text of a PDF", LISTS[0].servers), found)
    assert kept.text("name", "x" * 99) == "name. " + "x" * 40


def test_a_stopped_training_ends_as_an_uninterrupted_one(tmp_path):
    whole = learn(tmp_path).scores("a PDF", LISTS[0].servers)

    def stop(step, steps, loss):
        assert steps == 6
        if step == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learn(tmp_path, progress=stop)
    seen = []
    again = learn(tmp_path, progress=lambda step, *rest: seen.append(step))
    assert seen == [3, 4, 5, 6]
    np.testing.assert_allclose(again.scores("a PDF", LISTS[0].servers), whole, rtol=0, atol=1e-6)
    assert not list(tmp_path.iterdir())


def test_a_missing_and_a_damaged_student_are_named(tmp_path):
    with pytest.raises(StudyError, match="no distilled model"):
        Student.load(tmp_path)
    (tmp_path / student.FACTS).write_text('{"tokens": 9, "longest": 9}')
    (tmp_path / student.WEIGHTS).write_bytes(b"damaged")
    with pytest.raises(StudyError, match="not a distilled model"):
        Student.load(tmp_path)
