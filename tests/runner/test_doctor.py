"""The checks of a machine: a fault that is planted is found, and nothing else."""

import shutil
from collections import namedtuple
from importlib import metadata

from study.runner.doctor import FAULT, OK, OPTIONAL, examine, mismatches

NUMPY = metadata.version("numpy")


def states(dataset: str = "synthetic") -> dict[str, str]:
    return {check.what: check.state for check in examine(dataset)}


def test_a_prepared_study_has_its_data_and_planted_faults_are_found(root, monkeypatch):
    (root / "requirements.txt").write_text(f"# lock\nnumpy=={NUMPY}\n")
    assert {states()[stage] for stage in ("fetch", "prepare", "split", "packages")} == {OK}
    assert FAULT not in states().values()
    assert states("task2mcp")["prepare"] == OPTIONAL
    assert states()["git repository"] == OPTIONAL
    (root / ".dvc").mkdir(exist_ok=True)
    (root / ".dvc" / "config.local").write_text("[core]\n    no_scm = true\n")
    assert states()["git repository"] == OK
    (root / "requirements.txt").write_text("numpy==1.0.0\nno-such-package==2.0\n")
    usage = namedtuple("usage", "total used free")(2**41, 0, 2**30)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    monkeypatch.setenv("T2M_MIRROR", str(root / "none"))
    faults = {check.what: check.value for check in examine("synthetic") if check.state == FAULT}
    assert faults.keys() == {"packages", "disk", "T2M_MIRROR"}
    assert faults["packages"] == f"numpy {NUMPY} for ==1.0.0, no-such-package 0 for ==2.0"


def test_a_lock_is_read_without_its_comments_hashes_and_other_pythons():
    assert mismatches(f"# a==1\nnumpy=={NUMPY}\n-e .\n") == []
    assert mismatches(f"numpy=={NUMPY} \\\n    --hash=sha256:00\n") == []
    assert mismatches('old==1; python_version < "3"\nnew==2.0; python_version >= "3"  # why\n') == ["new 0 for ==2.0"]
