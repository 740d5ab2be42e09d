"""Ranking the tasks of a part with a fitted system."""

from pathlib import Path

import numpy as np
import pytest

from study.data.splits import make
from study.data.toys import block_dataset
from study.evaluation.runs import run_seed


class Answers:
    """Scores the servers that a part holds for a task above all others."""

    def __init__(self, part: str) -> None:
        self.part = part

    def fit(self, data, split, *, seed, workdir):
        self.relevance = split.part(self.part)

    def score(self, tasks):
        return np.asarray(self.relevance[tasks].todense(), dtype=np.float32)


@pytest.mark.parametrize("part", ["valid", "test"])
def test_under_sampled_candidates_each_part_is_measured_by_its_own_labels(part: str, tmp_path: Path) -> None:
    data = block_dataset()
    split = make(data, "loo99", negatives=12)
    right = run_seed(Answers(part), data, split, seed=1, workdir=tmp_path, part=part)
    assert right.per_task["ndcg@10"].tolist() == [1.0] * len(split.tasks(part))
    other = {"valid": "test", "test": "valid"}[part]
    wrong = run_seed(Answers(other), data, split, seed=1, workdir=tmp_path, part=part)
    assert wrong.per_task["ndcg@10"].mean() < 1


def test_validation_under_sampled_candidates_ranks_what_leave_one_out_ranks(tmp_path: Path) -> None:
    data = block_dataset()
    system = Answers("train")
    runs = [
        run_seed(system, data, make(data, protocol, negatives=12), seed=1, workdir=tmp_path, part="valid")
        for protocol in ("loo", "loo99")
    ]
    np.testing.assert_array_equal(runs[0].top["server_id"], runs[1].top["server_id"])
