"""The checks of a machine: a fault that is planted is found, and nothing else."""

import shutil
from collections import namedtuple
from importlib import metadata

from study.runner.doctor import FAULT, OK, OPTIONAL, examine, mismatches


def states(dataset: str = "synthetic") -> dict[str, str]:
    return {check.what: check.state for check in examine(dataset)}


def test_a_prepared_study_has_its_data_and_every_check_has_a_fix(root):
    (root / "requirements.txt").write_text(f"# lock\nnumpy=={metadata.version('numpy')}\n")
    found = states()
    assert {found[stage] for stage in ("fetch", "prepare", "split", "packages")} == {OK}
    assert FAULT not in found.values()
    assert all(check.fix for check in examine("task2mcp") if check.state != OK)
    assert states("task2mcp")["prepare"] == OPTIONAL


def test_another_version_and_a_missing_package_are_named(root):
    (root / "requirements.txt").write_text("numpy==1.0.0\nno-such-package==2.0\n")
    (check,) = (check for check in examine("synthetic") if check.what == "packages")
    assert check.state == FAULT
    assert check.found == f"numpy {metadata.version('numpy')} for ==1.0.0, no-such-package 0 for ==2.0"


def test_a_full_disk_and_a_mirror_that_is_not_there_are_faults(shared_root, monkeypatch, tmp_path):
    for free, state in ((2**30, FAULT), (2**40, OK)):
        usage = namedtuple("usage", "total used free")(2**41, 0, free)
        monkeypatch.setattr(shutil, "disk_usage", lambda _, usage=usage: usage)
        assert states()["disk"] == state
    monkeypatch.setenv("T2M_MIRROR", str(tmp_path / "none"))
    assert states()["T2M_MIRROR"] == FAULT


def test_a_lock_is_read_without_its_comments_hashes_and_other_pythons():
    numpy = metadata.version("numpy")
    assert mismatches(f"# a==1\nnumpy=={numpy}\n-e .\n") == []
    assert mismatches(f"numpy=={numpy} \\\n    --hash=sha256:00\n") == []
    assert mismatches('old==1; python_version < "3"\nnew==2.0; python_version >= "3"  # why\n') == ["new 0 for ==2.0"]
