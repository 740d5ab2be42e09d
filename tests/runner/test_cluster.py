"""Rows on two workers of Ray or submitit, one of them killed on the way: the bytes of one process."""

import gc
import os
import signal
import sys
import threading
import time

import psutil
import pytest

from study.base.errors import StudyError
from study.config.compose import load
from study.runner import cluster, rows
from study.runner.cluster import run_seeds
from study.runner.row_store import read_row
from study.runner.rows import run_row
from tests.tiny_study import TINY

TRAINED = ["system=t2mrec", "system.name=long", "system.seeds=[1,2]", "system.model.towers.hidden=32"]
TRAINED += ["system.model.training.epochs=150", "system.model.training.checkpoint_every=10"]
SMALL = ["system=tfidf", "system.name=tfidf_small", "system.model.max_features=20"]
KINDS = [[f"system={name}"] for name in ("random", "popularity", "tfidf", "t2mrec_wo_two_tower")]
PAIRS = [[*words, f"protocol={protocol}"] for words in (*KINDS, SMALL) for protocol in ("cold", "warm")]
WANTED = [TRAINED, *PAIRS, ["system=t2mrec_wo_cl"]]
PATIENCE = 600  # seconds; the machine may be busy, and Ray alone takes its time to start


def tables(config):
    return [table.to_csv() for table in read_row("synthetic", config.protocol.name, config.system.name)[:2]]


def kill_a_worker_that_trains(cache, command, killed):
    """Wait for a checkpoint, then end the worker that wrote it, the hard way. `command`: its name holds this."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and not list(cache.rglob("last.ckpt")):
        time.sleep(0.02)
    for process in psutil.Process().children(recursive=True):
        if command in " ".join(process.cmdline()):
            os.kill(process.pid, signal.SIGKILL)
            killed.append(process.pid)
            return


@pytest.mark.parametrize(("module", "launcher"), [("ray", "ray"), ("submitit", "slurm")])
def test_what_is_not_installed_is_named_with_what_to_do(root, monkeypatch, module, launcher):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(StudyError, match=module) as caught:
        run_seeds([load([*TINY, "system=random", "system.name=new"])], launcher)
    assert "make setup" in str(caught.value.fix)


# Ray leaves its own logs open, and processes to the system; submitit closes no file of a job that died.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("module", "launcher", "command", "wanted"),
    [("ray", "ray", "_run_there", WANTED), ("submitit", "slurm", "submitit.core._submit", WANTED[:2])],
    ids=["ray", "slurm"],  # each of submitit's jobs starts a Python of its own
)
def test_rows_with_a_killed_worker_equal_those_of_one_process(root, monkeypatch, module, launcher, command, wanted):
    pytest.importorskip(module, reason=f"{module} is not installed")
    if module == "submitit":  # nothing is submitted where there is a Slurm
        monkeypatch.setattr("submitit.SlurmExecutor.affinity", lambda: -1)
    configs = [load([*TINY, *words, "profile.workers=2"]) for words in wanted]
    assert len(WANTED) == 12
    killed: list[int] = []
    killer = threading.Thread(target=kill_a_worker_that_trains, args=(root / ".cache" / "runs", command, killed))
    killer.start()
    run_seeds(configs, launcher, replace=True)
    killer.join()
    gc.collect()
    assert killed
    with monkeypatch.context() as patch:
        patch.setattr(rows, "run_one", lambda *_: pytest.fail("a seed was left to this process"))
        for config in configs:
            run_row(config, replace=True)
    on_the_cluster = [tables(config) for config in configs]
    for config in configs:
        run_row(load([*TINY, *wanted[configs.index(config)], "profile.workers=1"]), replace=True)
    assert on_the_cluster == [tables(config) for config in configs]


@pytest.mark.parametrize("launcher", ["ray", "slurm"])
def test_a_row_that_cannot_run_is_left_to_the_row_itself(root, monkeypatch, launcher):
    monkeypatch.setattr(cluster, "_jobs", lambda _: pytest.fail("nothing is to be started"))
    run_seeds([load([*TINY, "system=t2mrec", "protocol=loo99"])], launcher)
