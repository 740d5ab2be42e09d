"""What a machine lacks for the study, each with its fix: Python, packages, disk, memory, data, caches, extras."""

from __future__ import annotations

import os
import platform
import re
import shutil
import tomllib
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from study import paths
from study.runner.loggers import INSTALL

OK, OPTIONAL, FAULT = "ok", "optional", "fault"
DISK_GIB = 2.0  # data and caches of Task2MCP take 1.5; the environment (3.4) is there, or this would not run
MEMORY_GIB = 4.0  # two T2MRec trainings side by side take 2.8
# Module -> what asks for it, and how it comes.
EXTRAS = {
    "xllamacpp": ("local language models", "make setup LLM=1"),
    "peft": ("adapters for language models", "make setup LORA=1"),
    "faiss": ("large catalogues", "make setup FAISS=1"),
    **{name: (f"logger={name}", fix) for name, fix in INSTALL.items()},
}
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
GIB = 2**30


class Check(NamedTuple):
    """One thing that was looked at: `state` is `OK`, `OPTIONAL` (only some commands need it) or `FAULT`."""

    what: str
    state: str
    found: str
    fix: str = ""


def examine(dataset: str) -> list[Check]:
    """Every check of this machine for work on a data set."""
    return [*_python(), *_packages(), *_room(), *_files(dataset), *_extras()]


def _python() -> Iterator[Check]:
    project = paths.root() / "pyproject.toml"
    if project.exists():
        needed = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["requires-python"]
        good = SpecifierSet(needed).contains(platform.python_version(), prereleases=True)
        fix = "" if good else f"make setup PYTHON=... with Python {needed}"
        yield Check("Python", OK if good else FAULT, platform.python_version(), fix)


def locked(text: str) -> dict[str, str]:
    """Package -> version of a lock, as far as it is for this Python; lines of another form are left out."""
    pins = [Requirement(line) for line in re.findall(r"(?m)^[\w.-]+==[^\s#][^#\n]*", text)]
    return {pin.name: Version(str(pin.specifier)[2:]).public for pin in pins if not pin.marker or pin.marker.evaluate()}


def _packages() -> Iterator[Check]:
    lock = paths.root() / "requirements.txt"
    if not lock.exists():
        return
    wanted, other = locked(lock.read_text(encoding="utf-8")), []
    for name, version in wanted.items():
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            other.append(f"{name} none for {version}")
        else:
            if Version(found).public != Version(version).public:  # a build such as +cpu is no other version
                other.append(f"{name} {found} for {version}")
    shown = ", ".join(other[:5]) + (f", {len(other) - 5} more" if len(other) > 5 else "")
    yield Check("packages", FAULT if other else OK, shown or f"{len(wanted)} as locked", "make setup" if other else "")


def _room() -> Iterator[Check]:
    free = shutil.disk_usage(paths.root()).free / GIB
    good = free >= DISK_GIB
    yield Check("disk", OK if good else FAULT, f"{free:.1f} GiB free", "" if good else f"free {DISK_GIB:.0f} GiB")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    good = memory >= MEMORY_GIB
    fix = "" if good else "profile=smoke, or one worker: profile.workers=1"
    yield Check("memory", OK if good else FAULT, f"{memory:.1f} GiB, {os.cpu_count()} cores", fix)


def _files(dataset: str) -> Iterator[Check]:
    stages = {"fetch": paths.raw(dataset), "prepare": paths.prepared(dataset), "split": paths.splits(dataset)}
    for stage, folder in stages.items():
        there = folder.is_dir() and any(folder.iterdir())
        fix = "" if there else f"study {stage} dataset={dataset}"
        yield Check(f"data: {folder.parent.name}", OK if there else OPTIONAL, str(folder) if there else "none", fix)
    saved = sorted(path.parent.name for path in paths.models(dataset).glob("*/record.json"))
    fix = "" if saved else f"study export dataset={dataset} system=field_dense"
    yield Check("saved models", OK if saved else OPTIONAL, ", ".join(saved) or "none", fix)
    size = sum(path.stat().st_size for path in paths.cache().rglob("*") if path.is_file()) / GIB
    yield Check("cache", OK, f"{size:.1f} GiB in {paths.cache()}")
    if "T2M_MIRROR" in os.environ:
        there = os.path.isdir(os.environ["T2M_MIRROR"])
        yield Check("T2M_MIRROR", OK if there else FAULT, os.environ["T2M_MIRROR"], "" if there else "unset T2M_MIRROR")


def _extras() -> Iterator[Check]:
    for module, (about, fix) in EXTRAS.items():
        there = find_spec(module) is not None
        yield Check(about, OK if there else OPTIONAL, module if there else "none", "" if there else fix)
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    fix = "" if browser else "install chromium: tests of pages are skipped without"
    yield Check("browser", OK if browser else OPTIONAL, browser or "none", fix)
