"""Stage `run`: what it leaves behind, and that a stop or a failure costs only what failed; test_kill.py repeats one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from baselines.popularity import Popularity
from study.base import paths
from study.base.errors import StudyError
from study.runner import rows as running
from study.runner.inputs import load_inputs
from study.runner.row_store import list_rows, read_row
from study.runner.rows import run_row
from tests.pipeline.conftest import config, results


def test_outputs_hold_what_the_contract_says(root: Path) -> None:
    values, top, record = read_row("synthetic", "cold", "tfidf")
    assert list(values.columns[:2]) == ["task_id", "seed"]
    assert len(values) == 16  # a fifth of 80 tasks
    assert top.groupby(["task_id", "seed"]).size().eq(10).all()
    assert not top.duplicated(["task_id", "seed", "server_id"]).any()
    assert {"config", "versions", "git", "hardware", "seeds", "profile"} <= set(record)
    assert record["seeds"][0]["seconds_fit"] >= 0


def test_longer_run_is_kept_on_request(root: Path) -> None:
    top = run_row(config("system=tfidf", "run_depth=60")).top10  # as many as there are servers
    long = pd.read_parquet(paths.results("synthetic") / "runs" / "cold" / "tfidf.parquet")
    assert long.groupby(["task_id", "seed"])["rank"].max().eq(60).all()
    falls = long.sort_values("rank").groupby(["task_id", "seed"])["score"].diff().dropna()
    assert (falls <= 0).all()
    assert top["rank"].max() == 10
    assert list(long[long["rank"] <= 10]["server_id"]) == list(top["server_id"])


def test_more_places_than_servers_are_refused_before_any_seed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_run_missing", lambda *_: pytest.fail("a seed was started"))
    with pytest.raises(StudyError, match="61 places of the run to keep, and only 60 servers") as caught:
        run_row(config("system=random", "run_depth=61", "system.name=random_x"))
    assert (caught.value.file, caught.value.column) == (root / "conf" / "config.yaml", "run_depth")
    assert caught.value.fix == "run_depth=60 or less"
    assert ("cold", "random_x") not in list_rows("synthetic")


def test_sampled_candidates_bound_the_places_too(root: Path) -> None:
    wanted = config("system=random", "run_depth=60")
    data, split = running.load_inputs(wanted.dataset.name, wanted.protocol.name)
    sampled = replace(split, candidates=np.zeros((len(split.tasks("test")), 30), dtype=np.int64))
    running.require_places(wanted, data, split)
    with pytest.raises(StudyError, match="only 30 servers of synthetic are ranked under cold"):
        running.require_places(wanted, data, sampled)


def test_pool_larger_than_the_catalogue_is_refused_once(root, monkeypatch, caplog):
    monkeypatch.setattr(running, "_run_missing", lambda *_: pytest.fail("a seed was started"))
    with pytest.raises(StudyError, match="61 servers in T2MRec's pool K2, and only 60 servers") as caught:
        run_row(config("system=t2mrec", "system.model.scoring.pool=61", "system.name=t2mrec_x"))
    assert caught.value.column == "system.model.scoring.pool"
    assert caught.value.fix == "system.model.scoring.pool=60 or less"
    assert not caplog.records
    wanted = config("system=t2mrec", "system.model.scoring.pool=60", "system.name=t2mrec_x")
    running.require_places(wanted, *running.load_inputs(wanted.dataset.name, wanted.protocol.name))


def test_finished_seeds_are_kept_and_the_rest_is_run(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    fit = Popularity.fit

    def stopping(self, data, split, *, seed, workdir):
        calls.append(seed)
        if calls == [1, 2]:
            raise KeyboardInterrupt
        return fit(self, data, split, seed=seed, workdir=workdir)

    monkeypatch.setattr(Popularity, "fit", stopping)
    wanted = config("system=popularity", "system.name=popularity_more", "system.seeds=[1,2,3]")
    with pytest.raises(KeyboardInterrupt):
        run_row(wanted)
    run_row(wanted)
    assert calls == [1, 2, 2, 3]
    kept = read_row("synthetic", "cold", "popularity_more").per_task
    assert sorted(kept["seed"].unique()) == [1, 2, 3]
    assert not list((paths.cache() / "runs").rglob("*.json"))


def test_a_key_tells_what_decides_a_run_from_what_does_not(root: Path) -> None:
    same = running.row_key(config("system=tfidf"))
    others = ["system.title=x", "system.name=tfidf_x", "system.seeds=[4]", "profile.workers=3", "tuning.trials=3"]
    assert running.row_key(config("system=tfidf", *others)) == same
    for change in ("system.model.max_features=9", "run_depth=20", "profile.threads=2", "protocol=warm"):
        assert running.row_key(config("system=tfidf", change)) != same, change
    prepared = paths.prepared("synthetic") / "labels.parquet"
    pd.read_parquet(prepared).iloc[:-1].to_parquet(prepared)
    assert running.row_key(config("system=tfidf")) != same


def test_failing_seed_is_named_and_earlier_results_stay(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = results(root)

    def broken(self, *_args, **_kwargs):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(Popularity, "fit", broken)
    with pytest.raises(StudyError, match="popularity under cold: seed 1 failed: RuntimeError: out of luck"):
        run_row(config("system=popularity"))
    assert results(root) == before


@pytest.mark.parametrize(
    ("wrong", "said"),
    [(np.nan, "score nan"), (np.inf, "score inf"), ("x", "no table of numbers"), ([[1.0], [1.0, 2.0]], "no table")],
)
def test_scores_that_are_no_numbers_are_refused(root: Path, monkeypatch: pytest.MonkeyPatch, wrong, said) -> None:
    fair, before = Popularity.score, results(root)
    task = load_inputs("synthetic", "cold")[1].tasks("test")[3]

    def score(self: Popularity, tasks: np.ndarray) -> Any:
        if not isinstance(wrong, float):
            return wrong
        scores = np.array(fair(self, tasks))
        scores[tasks == task, 5] = wrong
        return scores

    monkeypatch.setattr(Popularity, "score", score)
    with pytest.raises(StudyError, match=said) as caught:
        run_row(config("system=popularity", "system.name=mine"))
    assert "mine.yaml" in str(caught.value)
    assert "Popularity" in str(caught.value)
    if isinstance(wrong, float):
        number = load_inputs("synthetic", "cold")[0].tasks["id"].iloc[task]
        assert f"for task {number} with seed 1" in str(caught.value)
    assert results(root) == before


def test_a_server_that_is_not_ranked_has_minus_infinity(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fair = Popularity.score
    monkeypatch.setattr(
        Popularity, "score", lambda self, tasks: np.where(np.arange(60) == 5, -np.inf, fair(self, tasks))
    )
    top = run_row(config("system=popularity", "system.name=mine")).top10
    assert not top.empty


def test_wrong_shape_of_scores_is_an_error(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Popularity, "score", lambda self, tasks: np.zeros((len(tasks), 3), np.float32))
    with pytest.raises(StudyError, match=r"shape \(16, 3\), expected \(16, 60\)"):
        run_row(config("system=popularity"))


def test_wrong_shape_of_a_ranking_is_an_error(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Popularity, "rank", lambda self, tasks, k, known: (np.zeros((3, k), int), np.zeros((3, k))), False
    )
    with pytest.raises(
        StudyError, match=r"rank\(\) of Popularity gave shapes \(3, 11\) and \(3, 11\), expected \(16, 11\)"
    ):
        run_row(config("system=popularity"))


def test_what_cannot_be_run_says_why(root: Path) -> None:
    with pytest.raises(StudyError, match="not applicable under 'loo99'"):
        run_row(config("system=t2mrec", "protocol=loo99"))
    with pytest.raises(StudyError, match="study tune system=task_knn"):
        run_row(config("system=task_knn"))
    # A missing input names the stage that makes it.
    for missing, hint in (("splits/synthetic/cold", "study split"), ("prepared/synthetic/tasks", "study prepare")):
        (root / "data" / f"{missing}.parquet").unlink()
        with pytest.raises(StudyError, match=hint):
            run_row(config("system=tfidf"))
