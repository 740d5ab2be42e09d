"""The distilled linear model: its scores by hand, damaged files."""

import numpy as np
import pandas as pd
import pytest

from study.advisor.encoders.sentence import DIMENSION
from study.advisor.saved.student import COLUMNS, FIELDS, Student
from study.base.errors import StudyError

TASKS, EACH = 40, 12


@pytest.fixture(scope="module")
def pairs():
    """Requests, fields and tasks of random vectors, and the weights that made the grades."""
    rng = np.random.default_rng(0)
    tasks = np.repeat(np.arange(TASKS), EACH)
    requests = rng.normal(size=(TASKS, DIMENSION)).astype(np.float32)[tasks]
    fields = {name: rng.normal(size=(len(tasks), DIMENSION)).astype(np.float32) for name in FIELDS}
    planted = np.zeros((DIMENSION, len(COLUMNS)))
    planted[:3] = rng.normal(size=(3, len(COLUMNS)))
    return requests, fields, tasks, planted


def test_scores_by_hand(pairs):
    requests, fields, _, planted = pairs
    product, server = (planted[:, column::2] for column in (0, 1))
    expected = sum(
        (vectors * (requests * product[:, column] + server[:, column])).sum(axis=1)
        for column, vectors in enumerate(fields.values())
    )
    student = Student(planted)
    assert student.asks
    np.testing.assert_allclose(student.scores(requests, fields), expected, rtol=1e-3, atol=1e-4)
    one = {name: vectors[:EACH] for name, vectors in fields.items()}  # one request for all servers
    np.testing.assert_allclose(student.scores(requests[:1], one), expected[:EACH], rtol=1e-3, atol=1e-4)
    planted = planted * [0, 1, 0, 1]
    assert not Student(planted).asks
    assert (Student(planted).scores(requests, fields) == Student(planted).scores(0 * requests, fields)).all()


def test_a_kept_student_is_the_same_and_a_missing_or_damaged_one_is_named(pairs, tmp_path):
    requests, fields, _, planted = pairs
    file = tmp_path / "weights.csv"
    with pytest.raises(StudyError, match="no distilled model"):
        Student.load(file)
    Student(planted).save(file)
    stored = Student.load(file)
    np.testing.assert_allclose(stored.scores(requests, fields), Student(planted).scores(requests, fields), atol=1e-3)
    whole = pd.read_csv(file)
    for damaged in (whole.head(5), whole.rename(columns={"product_all": "x"}), whole.replace(0.0, np.nan)):
        damaged.to_csv(file, index=False)
        with pytest.raises(StudyError, match="not a distilled model"):
            Student.load(file)
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(StudyError, match="not a distilled model"):
        Student.load(file)
