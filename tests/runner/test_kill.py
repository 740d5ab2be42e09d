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


def start(root):
    words = [sys.executable, "-m", "study", "run", *TINY, *WANTED, "system.name=killed", "profile.workers=2"]
    own = os.environ | {"T2M_ROOT": str(root)}
    return subprocess.Popen(words, env=own, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_killed_run_resumes_to_identical_results(root):
    cache, end = root / ".cache" / "runs", time.monotonic() + PATIENCE
    with start(root) as killed:
        while len(list(cache.rglob("last.ckpt"))) < 2 and time.monotonic() < end:
            time.sleep(0.01)
        killed.send_signal(signal.SIGKILL)
        # The pipe closes when the last worker has gone: they end by themselves when their parent is dead.
        said = killed.communicate(timeout=PATIENCE)[1]
    assert (killed.returncode, "fitted" in said) == (-signal.SIGKILL, False)
    assert len(list(cache.rglob("last.ckpt"))) == 2, "the workers never reached a checkpoint"
    assert not list(cache.rglob("facts-*.json")), "a seed was finished before the kill, so nothing was shown"
    assert ("cold", "killed") not in list_rows("synthetic")
    with start(root) as again:
        said = again.communicate(timeout=PATIENCE)[1]
    assert (again.returncode, said.count("resuming from")) == (0, 2), said
    run_row(config(*WANTED, "system.name=undisturbed", "profile.workers=1"))
    resumed, undisturbed = (read_row("synthetic", "cold", name) for name in ("killed", "undisturbed"))
    assert [table.to_csv() for table in resumed[:2]] == [table.to_csv() for table in undisturbed[:2]]
