"""`logger=...`: what a tracker is told of a seed, and that being told changes no result."""

import pandas as pd
import pytest
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger

from study.base.errors import StudyError
from study.config.compose import load
from study.runner.row_store import list_rows
from study.runner.rows import run_row
from tests.tiny_study import TINY

EPOCHS = 4
SMALL = ["system=t2mrec", "system.seeds=[3]", "system.model.towers.hidden=16", f"system.model.training.epochs={EPOCHS}"]


def run(name, logger):
    """A small T2MRec: its tables, and the means of its metrics as trackers name them."""
    row = run_row(load([*TINY, *SMALL, f"system.name={name}", f"logger={logger}"]))
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


def test_a_logger_of_ones_own_is_told_the_row_stays_the_same_and_a_seed_that_fails_leaves_a_failed_run(
    root, monkeypatch
):
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
