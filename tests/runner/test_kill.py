"""`study run` killed outright while its workers train: started again, it ends where an undisturbed run ends."""

import os
import signal
import subprocess
import sys
import time

import pytest

from study.runner.row_store import list_rows, read_row
from study.runner.rows import run_row
from tests.pipeline.conftest import config
from tests.tiny_study import TINY

# Long enough that neither worker is done before the other has begun.
WANTED = ["system=t2mrec", "system.seeds=[1,2]", "system.model.towers.hidden=32"]
WANTED += ["system.model.training.epochs=400", "system.model.training.checkpoint_every=20"]
PATIENCE = 240  # seconds; the machine may be busy


def start(root, *more):
    words = [sys.executable, "-m", "study", "run", *TINY, *WANTED, "system.name=killed", "profile.workers=2", *more]
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(words, env=os.environ | {"T2M_ROOT": str(root)}, process_group=0, **streams)


def wait_for_checkpoints(cache):
    end = time.monotonic() + PATIENCE
    while len(list(cache.rglob("last.ckpt"))) < 2 and time.monotonic() < end:
        time.sleep(0.01)


@pytest.mark.slow
def test_an_interrupt_ends_the_workers_and_begins_no_further_seed(root):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in the background, and so do children
    cache = root / ".cache" / "runs"
    with start(root, "system.seeds=[1,2,3,4]") as stopped:
        wait_for_checkpoints(cache)
        os.killpg(stopped.pid, signal.SIGINT)
        told = stopped.communicate(timeout=PATIENCE)[1]
    assert (stopped.returncode, "goes on from here" in told) == (130, True), told
    assert len(list(cache.rglob("last.ckpt"))) == 2
    assert not list(cache.rglob("facts-*.json")), told


@pytest.mark.slow
def test_killed_run_resumes_to_identical_results(root):
    cache = root / ".cache" / "runs"
    with start(root) as killed:
        wait_for_checkpoints(cache)
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
    run_row(config(*WANTED, "system.name=undisturbed", "profile.workers=1"))
    resumed, undisturbed = (read_row("synthetic", "cold", name) for name in ("killed", "undisturbed"))
    assert [table.to_csv() for table in resumed[:2]] == [table.to_csv() for table in undisturbed[:2]]
