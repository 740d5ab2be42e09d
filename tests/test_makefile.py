"""`make repro` on the synthetic data sees what was written or removed while it ran, and after it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.tiny_study import REPOSITORY

MADE = "results/synthetic/.made"
# Stands in for the program; its report takes long enough for a user to write another yaml, and for a file system whose
# clock ticks every few milliseconds.
STUDY = '#!/bin/sh\n[ "$1" = report ] && [ -n "$WRITTEN" ] && sleep 0.1 && echo "title: Mine" > "$WRITTEN"\nexit 0\n'


@pytest.fixture
def make(tmp_path: Path):
    """A folder with the Makefile, a yaml and a stand-in for `study`; runs make on the stamp of the synthetic data."""
    shutil.copy(REPOSITORY / "Makefile", tmp_path)
    shutil.copy(REPOSITORY / "requirements.txt", tmp_path)
    for folder in ("src", "baselines", "notebooks", "conf/system/own", ".venv/bin"):
        (tmp_path / folder).mkdir(parents=True)
    program = tmp_path / ".venv/bin/study"
    program.write_text(STUDY)
    program.chmod(0o755)
    (tmp_path / "conf/system/own/one.yaml").write_text("title: One\n")
    old = 1_000_000_000
    for path in tmp_path.rglob("*"):
        os.utime(path, (old, old))

    def run(*words: str, written: str = "") -> int:
        own = os.environ | {"WRITTEN": written}
        return subprocess.run(
            ["make", *words, MADE], cwd=tmp_path, env=own, capture_output=True, check=False
        ).returncode

    return run


def test_what_is_written_meanwhile_or_removed_afterwards_is_seen(make, tmp_path):
    assert make(written="conf/system/own/two.yaml") == 0
    assert make("-q") == 1  # the other yaml came during the run
    assert make() == 0
    assert make("-q") == 0
    (tmp_path / "conf/system/own/two.yaml").unlink()
    assert make("-q") == 1


def test_a_run_that_fails_leaves_no_stamp(make, tmp_path):
    (tmp_path / ".venv/bin/study").write_text("#!/bin/sh\nexit 2\n")
    assert make() == 2
    assert not (tmp_path / MADE).exists()
