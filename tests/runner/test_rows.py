"""Stage `run`: what it leaves behind, what a failure costs, and what a tracker is told; test_kill.py stops some."""

import numpy as np
import pandas as pd
import pytest
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger

from baselines.popularity import Popularity
from study.base import paths
from study.base.errors import StudyError
from study.runner import rows as running
from study.runner.inputs import load_inputs
from study.runner.row_store import list_rows, read_row
from study.runner.rows import run_row
from tests.pipeline.conftest import config
from tests.tiny_study import contents


def test_outputs_hold_what_the_contract_says(shared_root):
    values, top, record = read_row("synthetic", "cold", "tfidf")
    assert list(values.columns[:2]) == ["task_id", "seed"]
    assert len(values) == 16  # a fifth of 80 tasks
    assert top.groupby(["task_id", "seed"]).size().eq(10).all()
    assert not top.duplicated(["task_id", "seed", "server_id"]).any()
    assert {"config", "versions", "git", "hardware", "seeds", "profile"} <= set(record)
    assert record["seeds"][0]["seconds_fit"] >= 0


def test_longer_run_is_kept_on_request(root):
    top = run_row(config("system=tfidf", "run_depth=60")).top10  # as many as there are servers
    long = pd.read_parquet(paths.results("synthetic") / "runs" / "cold" / "tfidf.parquet")
    assert long.groupby(["task_id", "seed"])["rank"].max().eq(60).all()
    falls = long.sort_values("rank").groupby(["task_id", "seed"])["score"].diff().dropna()
    assert (falls <= 0).all()
    assert top["rank"].max() == 10
    assert list(long[long["rank"] <= 10]["server_id"]) == list(top["server_id"])


def test_finished_seeds_are_kept_and_the_rest_is_run(root, monkeypatch):
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


@pytest.mark.parametrize(("step", "warned"), [(0, True), (1, False)])
def test_a_row_of_equal_scores_alone_is_noted(root, monkeypatch, caplog, step, warned):
    def score(self, tasks):
        return np.tile(step * np.arange(60, dtype=np.float32), (len(tasks), 1))

    monkeypatch.setattr(Popularity, "score", score)
    run_row(config("system=popularity"))
    assert ("popularity cold: equal scores decide every top ten" in caplog.text) == warned


def test_a_key_tells_what_decides_a_run_from_what_does_not(root):
    same = running.row_key(config("system=tfidf"))
    others = ["system.title=x", "system.name=tfidf_x", "system.seeds=[4]", "profile.workers=3", "tuning.trials=3"]
    assert running.row_key(config("system=tfidf", *others)) == same
    for change in ("system.model.max_features=9", "run_depth=20", "profile.threads=2", "protocol=warm"):
        assert running.row_key(config("system=tfidf", change)) != same, change
    prepared = paths.prepared("synthetic") / "labels.parquet"
    pd.read_parquet(prepared).iloc[:-1].to_parquet(prepared)
    assert running.row_key(config("system=tfidf")) != same


def raising(self, *_args, **_kwargs):
    raise RuntimeError("out of luck")


def scoring(wrong):
    """The scores of popularity, with another one for the fourth test task and the sixth server."""
    fair = Popularity.score

    def score(self, tasks):
        scores = np.array(fair(self, tasks))
        scores[tasks == load_inputs("synthetic", "cold")[1].tasks("test")[3], 5] = wrong
        return scores

    return score


# What a method does instead -> what is said of it.
WRONG = [
    ("fit", raising, "mine under cold: seed 1 failed: RuntimeError: out of luck"),
    ("score", scoring(np.nan), r"score nan.* for task {task} with seed 1"),
    ("score", scoring(np.inf), r"score inf.* for task {task} with seed 1"),
    ("score", lambda self, tasks: "x", "no table of numbers"),
    ("score", lambda self, tasks: [[1.0], [1.0, 2.0]], "no table"),
    ("score", lambda self, tasks: np.zeros((len(tasks), 3)), r"shape \(16, 3\), expected \(16, 60\)"),
    ("rank", lambda self, tasks, k, known: (np.zeros((3, k), int),) * 2, r"shapes \(3, 11\) and \(3, 11\)"),
]


@pytest.mark.parametrize(("method", "wrong", "message"), WRONG)
def test_a_failing_seed_and_scores_that_are_none_are_named(root, monkeypatch, method, wrong, message):
    before, (data, split) = contents(root / "results"), load_inputs("synthetic", "cold")
    monkeypatch.setattr(Popularity, method, wrong, raising=False)
    with pytest.raises(StudyError, match=message.format(task=data.tasks["id"].iloc[split.tasks("test")[3]])) as caught:
        run_row(config("system=popularity", "system.name=mine"))
    assert method == "fit" or ("mine.yaml" in str(caught.value) and "Popularity" in str(caught.value))
    assert contents(root / "results") == before


def test_a_server_that_is_not_ranked_has_minus_infinity(root, monkeypatch):
    monkeypatch.setattr(Popularity, "score", scoring(-np.inf))
    assert len(run_row(config("system=popularity", "system.name=mine")).top10) == 160


def test_what_cannot_be_run_says_why(root):
    with pytest.raises(StudyError, match="not applicable under 'loo99'"):
        run_row(config("system=t2mrec", "protocol=loo99"))
    with pytest.raises(StudyError, match="study tune system=task_knn"):
        run_row(config("system=task_knn"))
    # A missing input names the stage that makes it.
    for missing, hint in (("splits/synthetic/cold", "study split"), ("prepared/synthetic/tasks", "study prepare")):
        (root / "data" / f"{missing}.parquet").unlink()
        with pytest.raises(StudyError, match=hint):
            run_row(config("system=tfidf"))


EPOCHS = 4
SMALL = ["system=t2mrec", "system.seeds=[3]", "system.model.towers.hidden=16", f"system.model.training.epochs={EPOCHS}"]


def run(name, logger):
    """A small T2MRec: its tables, and the means of its metrics as trackers name them."""
    row = run_row(config(*SMALL, f"system.name={name}", f"logger={logger}"))
    means = row.per_task.drop(columns=["task_id", "seed"]).mean()
    return [table.to_csv() for table in row[:2]], means.rename(lambda metric: metric.replace("@", "_"))


@pytest.mark.filterwarnings("ignore")  # MLflow's own
def test_mlflow_keeps_runs_in_a_database_below_the_cache(root, monkeypatch):
    tracking = pytest.importorskip("mlflow.tracking")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    _, means = run("told", "mlflow")
    client = tracking.MlflowClient(f"sqlite:///{root / '.cache' / 'logs' / 'mlflow.db'}")
    (one,) = client.search_runs([client.get_experiment_by_name("synthetic-cold").experiment_id])
    assert (one.info.status, one.data.params["model/training/epochs"]) == ("FINISHED", str(EPOCHS))
    assert one.data.metrics["ndcg_10"] == pytest.approx(means["ndcg_10"])
    assert len(client.get_metric_history(one.info.run_id, "loss")) == EPOCHS


def test_a_logger_is_told_the_row_stays_the_same_and_a_seed_that_fails_leaves_a_failed_run(root, monkeypatch):
    (root / "conf" / "logger" / "own.yaml").write_text((root / "conf" / "logger" / "csv.yaml").read_text())
    untold, _ = run("untold", "none")
    told, means = run("told", "own")
    assert told == untold
    (folder,) = (root / ".cache" / "logs" / "csv" / "synthetic-cold").iterdir()
    table = pd.read_csv(folder / "metrics.csv")
    assert table["loss"].count() == EPOCHS
    assert table["parameters"].max() > 0
    assert f"epochs: {EPOCHS}" in (folder / "hparams.yaml").read_text()
    assert table["ndcg_10"].dropna().tolist() == [pytest.approx(means["ndcg_10"])]
    ended = []
    monkeypatch.setattr(CSVLogger, "finalize", lambda _, status: ended.append(status))
    monkeypatch.setattr("study.runner.rows.run_seed", lambda *_, **__: 1 / 0)
    with pytest.raises(StudyError, match="ZeroDivisionError"):
        run("failing", "csv")
    assert ended == ["failed"]
    assert ("cold", "failing") not in list_rows("synthetic")


def test_a_missing_package_is_named_before_anything_is_computed(root, monkeypatch):
    def missing(*_, **__):
        raise ModuleNotFoundError("try pip install tensorboard")

    monkeypatch.setattr(TensorBoardLogger, "__init__", missing)
    monkeypatch.setattr("study.runner.rows.run_one", lambda *_: pytest.fail("a seed was started"))
    with pytest.raises(StudyError, match="pip install tensorboard") as caught:
        run("never", "tensorboard")
    assert caught.value.column == "logger"
