"""A small judged collection on synthetic data, whose judge reads the planted truth with a known error rate."""

import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from study import paths
from study.config.compose import load
from study.data.synthetic import true_relevance
from study.judging import batches, collecting, pools, store
from study.pipeline import data as stages

ROOT = Path(__file__).resolve().parents[2]
DATASET = "synthetic"
SMALL = ["dataset=synthetic", "dataset.generator.n_servers=200", "dataset.generator.n_tasks=320"]
SYSTEMS = ["labels", "tfidf", "bm25", "random", "not_there_yet"]
ERROR_RATE = 0.1


@pytest.fixture(scope="session")
def truth_of():
    """Planted grade of a pair: (task_id, server_id) -> 0, 1, 2, for the data set in force."""

    def of() -> dict[tuple[int, int], int]:
        raw = paths.raw(DATASET)
        tasks, servers = pd.read_csv(raw / "truth_tasks.csv"), pd.read_csv(raw / "truth_servers.csv")
        grades = true_relevance(tasks, servers)
        return {
            (int(task), int(server)): int(grades[i, j])
            for i, task in enumerate(tasks["task_id"])
            for j, server in enumerate(servers["server_id"])
        }

    return of


def judge(folder: Path, truth: dict[tuple[int, int], int], seed: int, error_rate: float = ERROR_RATE) -> None:
    """Read the batches as text and answer them: the planted grade, or now and then another one."""
    rng = np.random.default_rng(seed)
    for batch in folder.glob("*.txt"):
        task, lines = None, ["task_id,server_id,grade"]
        for line in batch.read_text().splitlines():
            if found := re.match(r"## Task (\d+)$", line):
                task = int(found[1])
            elif found := re.match(r"\d+\. server_id (\d+) \|", line):
                pair = (task, int(found[1]))
                grade = truth[pair] if rng.random() >= error_rate else int(rng.integers(3))
                lines.append(f"{pair[0]},{pair[1]},{grade}")
        (folder / "answers" / f"{batch.stem}.csv").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="session")
def judged_root(tmp_path_factory, truth_of):
    """A root with prepared data, topics, a pool, three passes and the judgements; tests copy it."""
    root = tmp_path_factory.mktemp("judged")
    shutil.copytree(ROOT / "conf", root / "conf")
    (root / "baselines").symlink_to(ROOT / "baselines")
    (root / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "judging-guidelines.md", root / "docs")
    settings = root / "conf" / "judging"
    chosen = yaml.safe_load((settings / "topics.yaml").read_text()) | {"parts": {"valid": 16, "test": 32}}
    (settings / "topics.yaml").write_text(yaml.safe_dump(chosen))
    chosen = yaml.safe_load((settings / "pool.yaml").read_text()) | {
        "systems": SYSTEMS,
        "profile": "smoke",
        "candidates": [],
    }
    (settings / "pool.yaml").write_text(yaml.safe_dump(chosen))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("T2M_ROOT", str(root))
        config = load(SMALL)
        for stage in (stages.fetch, stages.prepare, stages.split):
            stage(config)
        pools.draw_topics(DATASET)
        pools.make_pool(DATASET)
        truth = truth_of()
        for number in (1, 2):
            judge(batches.write_batches(DATASET, str(number)), truth, seed=number)
        collecting.collect(DATASET, store.work(DATASET) / "round-1", judge="simulated")
        judge(batches.write_batches(DATASET, "3"), truth, seed=3, error_rate=0.0)
        collecting.collect(DATASET, store.work(DATASET) / "round-1", judge="simulated")
    return root


@pytest.fixture
def root(judged_root, tmp_path, monkeypatch):
    """A private copy of the judged root, in force for the test."""
    copy = tmp_path / "study"
    shutil.copytree(judged_root, copy, symlinks=True)
    monkeypatch.setenv("T2M_ROOT", str(copy))
    return copy


@pytest.fixture
def shared_root(judged_root, monkeypatch):
    """The judged root itself, for tests that write nothing."""
    monkeypatch.setenv("T2M_ROOT", str(judged_root))
    return judged_root


@pytest.fixture
def simulated_judge():
    return judge
