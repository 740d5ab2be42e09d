"""Rows whose process or worker is killed while it trains, here, by Ray or submitit: the bytes of an undisturbed run."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from study.base.errors import StudyError
from study.runner import cluster, rows
from study.runner.cluster import run_seeds
from study.runner.row_store import list_rows, read_row
from study.runner.rows import run_row
from tests.pipeline.conftest import config
from tests.tiny_study import TINY

LONG = ["system=t2mrec", "system.seeds=[1,2]", "system.model.towers.hidden=32"]
# Long enough that neither worker is done before the other has begun.
HERE = [*LONG, "system.model.training.epochs=400", "system.model.training.checkpoint_every=20"]
THERE = [*LONG, "system.name=long", "system.model.training.epochs=100", "system.model.training.checkpoint_every=10"]
PATIENCE = 600  # seconds; the machine may be busy, and Ray alone takes its time to start


def start(root, *more):
    words = [sys.executable, "-m", "study", "run", *TINY, *HERE, "system.name=killed", "profile.workers=2", *more]
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(words, env=os.environ | {"T2M_ROOT": str(root)}, process_group=0, **streams)


def wait_for_checkpoints(cache, number):
    end = time.monotonic() + PATIENCE
    while len(list(cache.rglob("last.ckpt"))) < number and time.monotonic() < end:
        time.sleep(0.01)


def tables(system, protocol="cold"):
    return [table.to_csv() for table in read_row("synthetic", protocol, system)[:2]]


@pytest.mark.slow
def test_an_interrupt_ends_the_workers_and_begins_no_further_seed(root):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in the background, and so do children
    cache = root / ".cache" / "runs"
    with start(root, "system.seeds=[1,2,3,4]") as stopped:
        wait_for_checkpoints(cache, 2)
        os.killpg(stopped.pid, signal.SIGINT)
        told = stopped.communicate(timeout=PATIENCE)[1]
    assert (stopped.returncode, "goes on from here" in told) == (130, True), told
    assert len(list(cache.rglob("last.ckpt"))) == 2
    assert not list(cache.rglob("facts-*.json")), told


@pytest.mark.slow
def test_killed_run_resumes_to_identical_results(root):
    cache = root / ".cache" / "runs"
    with start(root) as killed:
        wait_for_checkpoints(cache, 2)
        killed.send_signal(signal.SIGKILL)
        # The pipe closes when the last worker has gone: they end by themselves when their parent is dead.
        stderr = killed.communicate(timeout=PATIENCE)[1]
    assert (killed.returncode, "fitted" in stderr) == (-signal.SIGKILL, False)
    assert len(list(cache.rglob("last.ckpt"))) == 2, "the workers never reached a checkpoint"
    assert not list(cache.rglob("facts-*.json")), "a seed was finished before the kill, so nothing was shown"
    assert ("cold", "killed") not in list_rows("synthetic")
    with start(root) as again:
        stderr = again.communicate(timeout=PATIENCE)[1]
    assert (again.returncode, stderr.count("resuming from")) == (0, 2), stderr
    run_row(config(*HERE, "system.name=undisturbed", "profile.workers=1"))
    assert tables("killed") == tables("undisturbed")


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
    wanted, killed = [THERE, ["system=tfidf", "protocol=warm"]], []

    def made(workers):
        """The tables of the rows, written from the seeds that are there or computed."""
        for words in wanted:
            run_row(config(*words, f"profile.workers={workers}"), replace=True)
        return tables("long") + tables("tfidf", "warm")

    def kill_a_worker_that_trains():
        """One whose command holds the word, the hard way."""
        wait_for_checkpoints(root / ".cache" / "runs", 1)
        for worker in psutil.Process().children(recursive=True):
            if command in " ".join(worker.cmdline()):
                worker.kill()
                killed.append(worker.pid)
                break

    killer = threading.Thread(target=kill_a_worker_that_trains)
    killer.start()
    run_seeds([config(*words, "profile.workers=2") for words in wanted], launcher, replace=True)
    killer.join()
    gc.collect()
    assert killed
    with monkeypatch.context() as patch:
        patch.setattr(rows, "run_one", lambda *_: pytest.fail("a seed was left to this process"))
        on_the_cluster = made(2)
    assert on_the_cluster == made(1)
