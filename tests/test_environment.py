"""The lock, the list of reasons and the conda file name the same versions."""

import re
import sys
import tomllib
from importlib.metadata import distributions, metadata, requires

import yaml
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from tests.tiny_study import REPOSITORY as ROOT

PIN = re.compile(r"^([A-Za-z0-9_.-]+)==([^\s#;]+)(?:; ([^#\n]+))?", re.MULTILINE)


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(name: str, *, here: bool = False) -> dict[str, str]:
    """Package -> version in a file. `here`: those for this Python alone."""
    found = PIN.findall((ROOT / name).read_text())
    return {plain(package): pin for package, pin, marker in found if not (here and marker) or Marker(marker).evaluate()}


def markers(name: str) -> dict[str, str]:
    return {plain(package): marker.strip() for package, _, marker in PIN.findall((ROOT / name).read_text()) if marker}


def test_every_direct_dependency_is_locked_as_listed() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    project = tomllib.loads(text)["project"]
    direct = [*project["dependencies"], *project["optional-dependencies"]["study"]]
    direct += project["optional-dependencies"]["dev"]
    wanted = [Requirement(line) for line in direct]
    locked, only = pins("requirements.txt"), markers("requirements.txt")
    here = [each for each in wanted if each.marker is None or each.marker.evaluate()]
    assert {plain(each.name): f"=={locked.get(plain(each.name))}" for each in here} == {
        plain(each.name): str(each.specifier) for each in here
    }
    assert {plain(each.name): str(each.marker) for each in wanted if each.marker} == only
    lines = [line for line in text.splitlines() if line.strip().strip("'\"").startswith(tuple(direct))]
    assert len(lines) == len(direct)
    assert [line for line in lines if not line.partition("#")[2].strip()] == []  # each with its reason


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


def test_every_locked_package_runs_on_any_python_that_the_project_takes() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    wants = {name: metadata(name).get("Requires-Python") for name in pins("requirements.txt", here=True)}
    for python in ("3.11.0", "3.12.0", "3.13.0"):
        assert SpecifierSet(project).contains(python)
        assert {name: want for name, want in wants.items() if want and not SpecifierSet(want).contains(python)} == {}
    assert not SpecifierSet(project).contains("3.14.0")


def test_this_environment_is_the_lock() -> None:
    # setuptools puts its own copies of packages on the path when something imports it.
    path = [folder for folder in sys.path if not folder.endswith("_vendor")]
    installed = {plain(found.name): Version(found.version).public for found in distributions(path=path)}
    locked = pins("requirements.txt", here=True)
    assert {name: installed.get(name, "absent") for name in locked} == locked


def test_the_lock_holds_what_its_packages_require() -> None:
    """The lock is installed without resolving anything, so nothing may be missing from it or too old."""
    locked = pins("requirements.txt", here=True)
    lacking = []
    extras = {name: {""} for name in locked}
    waiting = [(name, "") for name in locked]
    while waiting:
        name, extra = waiting.pop()
        for line in requires(name) or []:
            wanted = Requirement(line)
            needed = plain(wanted.name)
            # An accelerator's libraries come with another build of torch.
            if wanted.marker and not wanted.marker.evaluate({"extra": extra}):
                continue
            if (name, needed) == ("recbole", "ray") and sys.version_info >= (3, 12):
                continue  # the bridge never imports what needs it
            if name == "torch" and re.match(r"nvidia-|cuda-|triton", needed):
                continue
            if needed not in locked or not wanted.specifier.contains(locked[needed], prereleases=True):
                lacking.append(f"{name} requires {wanted}")
                continue
            for more in wanted.extras - extras[needed]:
                extras[needed].add(more)
                waiting.append((needed, more))
    assert sorted(set(lacking)) == []
