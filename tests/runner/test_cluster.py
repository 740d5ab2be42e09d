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
from study.runner import cluster, rows
from study.runner.cluster import run_seeds
from study.runner.row_store import read_row
from study.runner.rows import run_row
from tests.pipeline.conftest import config

TRAINED = ["system=t2mrec", "system.name=long", "system.seeds=[1,2]", "system.model.towers.hidden=32"]
TRAINED += ["system.model.training.epochs=100", "system.model.training.checkpoint_every=10"]
WANTED = [TRAINED, ["system=tfidf", "protocol=warm"]]
PATIENCE = 600  # seconds; the machine may be busy, and Ray alone takes its time to start


def kill_a_worker_that_trains(cache, command, killed):
    """Wait for a checkpoint, then end a worker, whose command holds the word, the hard way."""
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
        run_seeds([config("system=random", "system.name=new")], launcher)
    assert "make setup" in str(caught.value.fix)
    monkeypatch.setattr(cluster, "_jobs", lambda _: pytest.fail("nothing is to be started"))
    run_seeds([config("system=t2mrec", "protocol=loo99")], launcher)  # which cannot run: left to the row itself


@pytest.mark.slow
# Ray leaves its own logs open, and processes to the system; submitit closes no file of a job that died.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("module", "launcher", "command"), [("ray", "ray", "_run_there"), ("submitit", "slurm", "submitit.core._submit")]
)
def test_rows_with_a_killed_worker_equal_those_of_one_process(root, monkeypatch, module, launcher, command):
    pytest.importorskip(module, reason=f"{module} is not installed")
    if module == "submitit":  # nothing is submitted where there is a Slurm
        monkeypatch.setattr("submitit.SlurmExecutor.affinity", lambda: -1)

    def made(workers):
        """The tables of the rows, written from the seeds that are there or computed."""
        for words in WANTED:
            run_row(config(*words, f"profile.workers={workers}"), replace=True)
        read = [read_row("synthetic", one.protocol.name, one.system.name) for one in (config(*each) for each in WANTED)]
        return [table.to_csv() for row in read for table in row[:2]]

    killed: list[int] = []
    killer = threading.Thread(target=kill_a_worker_that_trains, args=(root / ".cache" / "runs", command, killed))
    killer.start()
    run_seeds([config(*words, "profile.workers=2") for words in WANTED], launcher, replace=True)
    killer.join()
    gc.collect()
    assert killed
    with monkeypatch.context() as patch:
        patch.setattr(rows, "run_one", lambda *_: pytest.fail("a seed was left to this process"))
        on_the_cluster = made(2)
    assert on_the_cluster == made(1)
