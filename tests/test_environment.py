"""The lock, the list of reasons and the conda file name the same versions, for every Python that the project takes."""

import re
import tomllib
from importlib.metadata import PackageNotFoundError, metadata

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from tests.tiny_study import REPOSITORY as ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK = re.findall(r"(?m)^[\w.-]+==[^\\\n]*", (ROOT / "requirements.txt").read_text())
LOCKED = {re.sub(r"[-_.]+", "-", each.name).lower(): each for each in map(Requirement, LOCK)}


def test_every_direct_dependency_is_locked_as_listed() -> None:
    extras = PROJECT["optional-dependencies"]
    for line in [*PROJECT["dependencies"], *extras["study"], *extras["dev"]]:
        wanted = Requirement(line)
        if wanted.name == "torch":  # installed before the lock
            continue
        locked = LOCKED[re.sub(r"[-_.]+", "-", wanted.name).lower()]
        assert (wanted.specifier, str(wanted.marker)) == (locked.specifier, str(locked.marker)), line
    text = (ROOT / "requirements.txt").read_text()
    assert "torch" not in LOCKED
    assert len(LOCK) == len(LOCKED)
    assert len(re.findall(r"==[^\n]*\\\n +--hash=sha256:[0-9a-f]{64}", text)) == len(LOCKED)  # each has a hash


def test_conda_file_agrees_with_the_lock() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert environment["dependencies"] == ["python=3.11", "pip", {"pip": ["-r requirements.txt"]}]


@pytest.mark.parametrize("python", ["3.11.0", "3.12.0", "3.13.0", "3.14.0"])
def test_every_locked_package_runs_on_any_python_that_the_project_takes(python: str) -> None:
    assert SpecifierSet(PROJECT["requires-python"]).contains(python) == (python != "3.14.0")
    for name, locked in LOCKED.items():
        try:
            about = metadata(name)
        except PackageNotFoundError:  # of another Python
            assert locked.marker is not None, name
            continue
        assert f"=={Version(about['Version']).public}" == str(locked.specifier), "this environment is not the lock"
        wants = about.get("Requires-Python")
        assert python == "3.14.0" or not wants or SpecifierSet(wants).contains(python), name
