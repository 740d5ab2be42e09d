"""The checks of a machine: a fault that is planted is found, and nothing else."""

import shutil
from collections import namedtuple
from importlib import metadata

import pytest

from study.runner.doctor import FAULT, OK, OPTIONAL, examine, locked


def states(dataset: str = "synthetic") -> dict[str, str]:
    return {check.what: check.state for check in examine(dataset)}


def test_a_prepared_study_has_its_data_and_every_lack_has_a_fix(root):
    (root / "requirements.txt").write_text(f"# lock\nnumpy=={metadata.version('numpy')}\n")
    found = states()
    assert {found[f"data: {part}"] for part in ("raw", "prepared", "splits")} == {OK}
    assert (found["packages"], found["saved models"]) == (OK, OPTIONAL)
    assert all(bool(check.fix) == (check.state != OK) for check in examine("task2mcp"))
    assert states("task2mcp")["data: prepared"] == OPTIONAL


def test_another_version_and_a_missing_package_are_named(root):
    (root / "requirements.txt").write_text("numpy==1.0.0\nno-such-package==2.0\n")
    (check,) = (check for check in examine("synthetic") if check.what == "packages")
    assert check.state == FAULT
    assert f"numpy {metadata.version('numpy')} for 1.0.0" in check.found
    assert "no-such-package none for 2.0" in check.found


@pytest.mark.parametrize(("free", "state"), [(2**30, FAULT), (2**40, OK)])
def test_a_full_disk_is_a_fault(root, monkeypatch, free, state):
    usage = namedtuple("usage", "total used free")(2**41, 0, free)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert states()["disk"] == state


def test_another_python_and_a_mirror_that_is_not_there_are_faults(root, monkeypatch, tmp_path):
    (root / "pyproject.toml").write_text('[project]\nrequires-python = ">=3.99"\n')
    monkeypatch.setenv("T2M_MIRROR", str(tmp_path / "none"))
    found = states()
    assert (found["Python"], found["T2M_MIRROR"]) == (FAULT, FAULT)


def test_a_lock_is_read_without_its_comments_and_builds():
    assert locked("# a==1\ntorch==2.13.0+cpu\nMarkupSafe==3.0.4\n-e .\n") == {"torch": "2.13.0", "MarkupSafe": "3.0.4"}
    markers = 'old==1; python_version < "3"\nnew==2.0; python_version >= "3"  # why\n'
    assert locked(markers) == {"new": "2.0"}
