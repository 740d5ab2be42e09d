"""The lock, the list of reasons and the conda file name the same versions."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
PIN = re.compile(r"^([A-Za-z0-9_.-]+)==([^\s#]+)", re.MULTILINE)


def pins(name: str) -> dict[str, str]:
    found = PIN.findall((ROOT / name).read_text())
    return {re.sub(r"[-_.]+", "-", package).lower(): version for package, version in found}


def test_every_direct_dependency_is_locked_as_listed() -> None:
    listed, locked = pins("requirements.in"), pins("requirements.txt")
    assert len(listed) > 20
    assert {name: locked.get(name) for name in listed} == listed


def test_every_direct_dependency_has_a_reason() -> None:
    lines = [line for line in (ROOT / "requirements.in").read_text().splitlines() if "==" in line]
    assert [line for line in lines if not line.partition("#")[2].strip()] == []


def test_lock_holds_exact_versions_only() -> None:
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    loose = [line for line in lines if line and not line.startswith("#") and not PIN.match(line)]
    assert loose == []
    assert not [line for line in lines if "+" in line]  # a local build's version exists on one machine only


def test_conda_file_agrees_with_the_lock() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert environment["channels"] == ["conda-forge", "nodefaults"]
    python, _, rest = environment["dependencies"]
    assert python == "python=3.11"
    assert rest == {"pip": ["-r requirements.txt", "-e ."]}
