"""A checkout works as it comes: any line ends, without git, without the public data, on any Python that is there; and
`make repro` sees what was written or removed while it ran, and after it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny_study import REPOSITORY

VENV = Path(sys.executable).parents[1]
CONTENT = {"a.csv": b"x,y\n1,2\n", "a.csv.xz": b"\xfd7zXZ\0\n\r\n", "a.yaml": b"a: 1\n", "odd": b"1\r\n2\n"}


def run(folder: Path, *command: str, **environment: str) -> str:
    outside = {name: value for name, value in os.environ.items() if name not in {"PYTHON", "VENV", "UV"}}
    done = subprocess.run(command, cwd=folder, env=outside | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_clone_has_the_committed_bytes_whatever_autocrlf_says(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    shutil.copy(REPOSITORY / ".gitattributes", source)
    for name, content in CONTENT.items():
        (source / name).write_bytes(content)
    run(source, "git", "init", "-q")
    run(source, "git", "add", ".")
    run(source, "git", "-c", "user.name=x", "-c", "user.email=x@x", "-c", "commit.gpgsign=false", "commit", "-qm", "x")
    run(tmp_path, "git", "clone", "-q", "-c", "core.autocrlf=true", "source", "clone")
    assert {name: (tmp_path / "clone" / name).read_bytes() for name in CONTENT} == CONTENT


def test_setup_takes_a_python_that_starts(tmp_path: Path) -> None:
    for there, taken in ((["3.11", "3.12", "3.13"], "3.11"), (["3.12", "3.13"], "3.13"), (["3.12"], "3.12")):
        for version in ("3.11", "3.12", "3.13"):
            program = tmp_path / f"python{version}"  # one that a version manager does not start ends with an error
            program.write_text(f"#!/bin/sh\nexit {0 if version in there else 127}\n")
            program.chmod(0o755)
        words = ("make", "--dry-run", "setup", f"VENV={tmp_path / 'venv'}")
        environment = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "MAKEFLAGS": ""}
        assert f"\npython{taken} -m venv " in "\n" + run(REPOSITORY, *words, **environment)


@pytest.mark.slow
@pytest.mark.parametrize("git", [False, True])
def test_dvc_works_without_git_once_set_up(tmp_path: Path, git: bool) -> None:
    shutil.copytree(REPOSITORY / ".dvc", tmp_path / ".dvc", ignore=lambda *_: ("tmp", "cache", "config.local"))
    (tmp_path / "dvc.yaml").write_text("stages: {one: {cmd: touch made, outs: [made]}}\n")
    if git:
        run(tmp_path, "git", "init", "-q")
    setup = ("make", f"--makefile={REPOSITORY / 'Makefile'}", f"--old-file={VENV / '.installed'}", f"VENV={VENV}")
    run(tmp_path, *setup, "scm", MAKEFLAGS="")
    run(tmp_path, sys.executable, "-m", "dvc", "repro", "-q")
    assert (tmp_path / "made").exists()
    assert (tmp_path / ".dvc" / "config.local").exists() is not git


@pytest.mark.slow
def test_without_a_mirror_its_tests_are_skipped_which_is_said_in_one_line() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "T2M_MIRROR"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/data/test_release.py"]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "\nskipped 2: T2M_MIRROR names no folder with the public data\n" in done.stdout


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
