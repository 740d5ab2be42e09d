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
LOCK = [line.partition("#")[0].partition("--hash")[0] for line in (ROOT / "requirements.txt").read_text().splitlines()]
LOCKED = {re.sub(r"[-_.]+", "-", each.name).lower(): each for each in map(Requirement, filter(str.strip, LOCK))}


def test_every_direct_dependency_is_locked_as_listed() -> None:
    extras = PROJECT["optional-dependencies"]
    for line in [*PROJECT["dependencies"], *extras["study"], *extras["dev"]]:
        wanted = Requirement(line)
        locked = LOCKED[re.sub(r"[-_.]+", "-", wanted.name).lower()]
        assert (wanted.specifier, str(wanted.marker)) == (locked.specifier, str(locked.marker)), line
    assert not [each for each in LOCKED.values() if "+" in str(each.specifier)]  # a local build's, on one machine only


def test_conda_file_agrees_with_the_lock() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert environment["dependencies"] == ["python=3.11", "pip", {"pip": ["-r requirements.txt", "-e ."]}]


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
