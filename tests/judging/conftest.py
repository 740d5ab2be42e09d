"""A small judged collection on synthetic data, whose judge reads the planted truth with a known error rate."""

import re
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from study.base import paths
from study.judging import evaluate, labels, pools, store, workflow
from study.judging.collection import Collection
from tests.analysis.toys import change
from tests.tiny_study import REPOSITORY, lay_out, make_data, true_relevance

DATASET = "synthetic"
SMALL = ["dataset=synthetic", "dataset.generator.n_servers=200", "dataset.generator.n_tasks=320"]
SYSTEMS = ["labels", "tfidf", "bm25", "random", "not_there_yet"]
ERROR_RATE = 0.1


def truth_of() -> dict[tuple[int, int], int]:
    """Planted grade of a pair: (task_id, server_id) -> 0, 1, 2, for the data set in force."""
    raw = paths.raw(DATASET)
    tasks, servers = pd.read_csv(raw / "truth_tasks.csv"), pd.read_csv(raw / "truth_servers.csv")
    ids = product(map(int, tasks["task_id"]), map(int, servers["server_id"]))
    return dict(zip(ids, true_relevance(tasks, servers).ravel().tolist(), strict=True))


def parsed(folder: Path) -> dict[str, list[tuple[int, int]]]:
    """The pairs (task, server) of each batch in order of appearance, read from the text alone."""
    by_file: dict[str, list[tuple[int, int]]] = {}
    for path in sorted(folder.glob("*.txt")):
        for task, server in re.findall(r"^## Task (\d+)$|^\d+\. server_id (\d+) \|", path.read_text(), re.MULTILINE):
            if task:
                current = int(task)
            else:
                by_file.setdefault(path.stem, []).append((current, int(server)))
    return by_file


def answer(folder: Path, grade: Callable[[int, int], int]) -> None:
    """Read the batches as text and answer them: `grade` of a task and a server."""
    for name, pairs in parsed(folder).items():
        lines = [f"{task},{server},{grade(task, server)}" for task, server in pairs]
        (folder / "answers" / f"{name}.csv").write_text("\n".join([workflow.ANSWER_HEADER, *lines]) + "\n")


def judge(folder: Path, truth: dict[tuple[int, int], int], seed: int, error_rate: float = ERROR_RATE) -> None:
    """Answer the batches: the planted grade, or now and then another one."""
    rng = np.random.default_rng(seed)
    answer(folder, lambda *pair: truth[pair] if rng.random() >= error_rate else int(rng.integers(3)))


@pytest.fixture(scope="session")
def prepared_root(tmp_path_factory):
    """A root with prepared data, topics, a pool, three passes and the judgements; `root` is a copy of it."""
    root = tmp_path_factory.mktemp("judged")
    lay_out(root)
    (root / "docs").mkdir()
    shutil.copy(REPOSITORY / "docs" / "judging-guidelines.md", root / "docs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("T2M_ROOT", str(root))
        change("judging/topics.yaml", parts={"valid": 16, "test": 32})
        change("judging/pool.yaml", systems=SYSTEMS, profile="smoke", candidates=[], kept=10)
        make_data(SMALL)
        pools.draw_topics(DATASET)
        pools.make_pool(DATASET)
        truth = truth_of()
        for number in (1, 2):
            judge(workflow.write_batches(DATASET, str(number)), truth, seed=number)
        workflow.collect(DATASET, store.work(DATASET) / "round-1", judge="simulated")
        judge(workflow.write_batches(DATASET, "3"), truth, seed=3, error_rate=0.0)
        workflow.collect(DATASET, store.work(DATASET) / "round-1", judge="simulated")
    return root


@pytest.fixture
def collection(shared_root):
    return Collection.load(DATASET)


@pytest.fixture
def few_draws(monkeypatch):
    """Intervals from a few draws: their width is not what the test asks."""
    monkeypatch.setattr(evaluate, "NOISE_RESAMPLES", 3)
    monkeypatch.setattr(labels, "FEW_RESAMPLES", 20)
