"""`logger=...`: what a tracker is told of a seed, and that being told changes no result."""

import sys
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest

from study.config.compose import load
from study.errors import StudyError
from study.runner.loggers import INSTALL, require_logger
from study.runner.row_store import list_rows
from study.runner.rows import run_row
from study.t2mrec.module import EpochBar
from tests.tiny_study import TINY

EPOCHS = 4
SMALL = ["system=t2mrec", "system.seeds=[3]", "system.model.towers.hidden=16", f"system.model.training.epochs={EPOCHS}"]


def run(name, logger, *words):
    """A small T2MRec: its tables, and the means of its metrics."""
    row = run_row(load([*TINY, *SMALL, f"system.name={name}", f"logger={logger}", *words]))
    means = row.per_task.drop(columns=["task_id", "seed"]).mean()
    return [table.to_csv() for table in row[:2]], means


def test_tensorboard_gets_settings_losses_and_means_and_the_row_stays_the_same(root):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    untold, _ = run("untold", "none")
    at_end = EpochBar.on_train_epoch_end
    told, means = run("told", "tensorboard")
    assert told == untold
    assert EpochBar.on_train_epoch_end is at_end
    (folder,) = (root / ".cache" / "logs" / "tensorboard" / "synthetic-cold").iterdir()
    seen = events.EventAccumulator(str(folder)).Reload()
    losses = seen.Scalars("loss")
    assert [point.step for point in losses] == list(range(EPOCHS))
    assert losses[-1].value < losses[0].value
    for metric, mean in means.items():
        assert seen.Scalars(metric.replace("@", "_"))[-1].value == pytest.approx(mean, abs=1e-6)
    assert seen.Scalars("parameters")[-1].value > 0
    assert f"epochs: {EPOCHS}" in (folder / "hparams.yaml").read_text()


def test_seeds_in_processes_of_their_own_are_told_too(root):
    pytest.importorskip("tensorboard")
    run("two", "tensorboard", "system.seeds=[1,2]", "profile.workers=2")
    folders = list((root / ".cache" / "logs" / "tensorboard" / "synthetic-cold").iterdir())
    assert sorted(folder.name[-2:] for folder in folders) == ["-1", "-2"]


@pytest.mark.filterwarnings("ignore")  # MLflow's own
def test_mlflow_keeps_runs_in_a_database_below_the_cache(root, monkeypatch):
    tracking = pytest.importorskip("mlflow.tracking")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    _, means = run("told", "mlflow")
    client = tracking.MlflowClient(f"sqlite:///{root / '.cache' / 'logs' / 'mlflow.db'}")
    (one,) = client.search_runs([client.get_experiment_by_name("synthetic-cold").experiment_id])
    assert one.info.status == "FINISHED"
    assert one.data.params["model/training/epochs"] == str(EPOCHS)
    assert one.data.metrics["ndcg_10"] == pytest.approx(means["ndcg@10"])
    assert len(client.get_metric_history(one.info.run_id, "loss")) == EPOCHS


def test_trackio_is_told_what_the_others_are(root, monkeypatch):
    calls = []
    told = SimpleNamespace(
        log=lambda metrics, step: calls.append((step, metrics)), finish=lambda: calls.append(("end", None))
    )

    def init(project, name, *, config, **_):
        calls.append((project, config))
        return told

    fake = SimpleNamespace(init=init, __spec__=object())
    monkeypatch.setitem(sys.modules, "trackio", fake)
    _, means = run("told", "trackio")
    (project, config), *losses, (_, last), end = calls
    assert project == "synthetic-cold"
    assert (config["seed"], config["model"]["training"]["epochs"]) == (3, EPOCHS)
    assert [step for step, _ in losses] == list(range(EPOCHS))
    assert np.isclose(last["ndcg_10"], means["ndcg@10"])
    assert last["seconds_fit"] > 0
    assert end == ("end", None)


@pytest.mark.skipif(find_spec("trackio") is None, reason="trackio is not installed")  # reads its folder when imported
def test_real_trackio_writes_below_the_cache(root, monkeypatch):
    monkeypatch.delenv("TRACKIO_DIR", raising=False)
    run("told", "trackio")
    assert list((root / ".cache" / "logs" / "trackio").rglob("*.db"))


def test_a_seed_that_fails_leaves_a_failed_run(root, monkeypatch):
    ended = []
    monkeypatch.setattr("study.runner.loggers.TrackioLogger.log_hyperparams", lambda *_: None)
    monkeypatch.setattr("study.runner.loggers.TrackioLogger.finalize", lambda _, status: ended.append(status))
    monkeypatch.setattr("study.runner.rows.run_seed", lambda *_, **__: 1 / 0)
    monkeypatch.setitem(sys.modules, "trackio", SimpleNamespace(__spec__=object()))
    with pytest.raises(StudyError, match="ZeroDivisionError"):
        run("failing", "trackio")
    assert ended == ["failed"]
    assert ("cold", "failing") not in list_rows("synthetic")


@pytest.mark.parametrize("name", INSTALL)
def test_a_missing_package_is_named_before_anything_is_computed(root, monkeypatch, name):
    monkeypatch.setattr("study.runner.loggers.find_spec", lambda _: None)
    monkeypatch.setattr("study.runner.rows.run_one", lambda *_: pytest.fail("a seed was started"))
    with pytest.raises(StudyError, match=f"package {name} is not installed") as caught:
        run("never", name)
    assert (caught.value.column, caught.value.fix) == ("logger", INSTALL[name])


def test_an_unknown_logger_is_refused():
    with pytest.raises(StudyError, match="unknown logger 'wandb'") as caught:
        require_logger("wandb")
    assert "tensorboard" in str(caught.value.fix)


def test_a_command_that_trains_no_row_refuses_the_key(conf_root, call):
    code, _, said = call("bench", "logger=tensorboard")
    assert (code, "'logger=tensorboard' has no effect here" in said) == (2, True)
