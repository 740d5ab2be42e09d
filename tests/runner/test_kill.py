"""`study run` killed outright while its workers train: started again, it ends where an undisturbed run ends."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from study.config.compose import load
from study.runner.outputs import Outputs
from study.runner.rows import run_row
from tests.tiny_study import TINY

EPOCHS = 600  # long enough that neither worker is done before the other has begun
WANTED = [*TINY, "system=t2mrec", "system.name=killed", "system.seeds=[1,2]", "system.model.towers.hidden=32"]
WANTED += [f"system.model.training.epochs={EPOCHS}", "system.model.training.checkpoint_every=20"]
PATIENCE = 240  # seconds; the machine may be busy


def until(condition: Callable[[], bool]) -> bool:
    """Wait for the condition; returns whether it came true in time."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return False


def start(root: Path) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "study", "run", *WANTED, "profile.workers=2"]
    own = os.environ | {"T2M_ROOT": str(root)}
    return subprocess.Popen(words, env=own, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def results(root: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[bytes, bytes]:
    monkeypatch.setenv("T2M_ROOT", str(root))
    outputs = Outputs.of("synthetic", "cold", "killed")
    return outputs.per_task.read_bytes(), outputs.top10.read_bytes()


def test_killed_run_resumes_to_identical_results(root, prepared_root, tmp_path, monkeypatch):
    cache = root / ".cache" / "runs"
    with start(root) as killed:
        try:
            assert until(lambda: len(list(cache.rglob("last.ckpt"))) == 2), "the workers never reached a checkpoint"
        finally:
            killed.send_signal(signal.SIGKILL)
        # The pipe closes when the last worker has gone: they end by themselves when their parent is dead.
        said = killed.communicate(timeout=PATIENCE)[1].decode()
    assert killed.returncode == -signal.SIGKILL
    assert "fitted" not in said
    assert not list(cache.rglob("facts-*.json")), "a seed was finished before the kill, so nothing was shown"
    assert len(list(cache.rglob("last.ckpt"))) == 2
    assert not Outputs.of("synthetic", "cold", "killed").record.exists()

    with start(root) as again:
        said_again = again.communicate(timeout=PATIENCE)[1].decode()
    assert again.returncode == 0, said_again
    assert said_again.count("resuming from") == 2

    undisturbed = tmp_path / "undisturbed"
    shutil.copytree(prepared_root, undisturbed, symlinks=True)
    monkeypatch.setenv("T2M_ROOT", str(undisturbed))
    run_row(load([*WANTED, "profile.workers=1"]))
    assert results(undisturbed, monkeypatch) == results(root, monkeypatch)
