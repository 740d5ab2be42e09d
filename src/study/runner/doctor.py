"""What a machine lacks for the study, each with its fix: packages, disk, memory, data, extras."""

import os
import re
import shutil
from importlib.metadata import distributions
from importlib.util import find_spec
from typing import NamedTuple

from packaging.requirements import Requirement

from study.base import paths

OK, OPTIONAL, FAULT = "ok", "optional", "fault"  # optional: only some commands need it
DISK_GIB, MEMORY_GIB, GIB = 2.0, 4.0, 2**30  # data and caches of Task2MCP take 1.5 GiB, two trainings of T2MRec 2.8
EXTRAS = {"xllamacpp": "LLM", "peft": "LORA", "faiss": "FAISS"}  # module -> `make setup` NAME=1


class Check(NamedTuple):
    """One thing that was examined; `state` is `OK`, `OPTIONAL` or `FAULT`."""

    what: str
    state: str
    value: str
    fix: str


def mismatches(lock: str) -> list[str]:
    """The packages whose installed version (0: none) is not the lock's; +cpu is no other version."""
    pins = (Requirement(line) for line in re.findall(r"(?m)^[\w.-]+==[^\s#\\][^#\\\n]*", lock))
    specifiers = {pin.name: pin.specifier for pin in pins if not pin.marker or pin.marker.evaluate()}
    installed = {name: next((each.version for each in distributions(name=name)), "0") for name in specifiers}
    return [f"{name} {installed[name]} for {pin}" for name, pin in specifiers.items() if installed[name] not in pin]


def _has_scm() -> bool:
    """Whether DVC works here: in a git repository, or where its settings say that there is none."""
    local = paths.root() / ".dvc" / "config.local"
    return (paths.root() / ".git").exists() or (local.exists() and "no_scm = true" in local.read_text(encoding="utf-8"))


def examine(dataset: str) -> list[Check]:
    """Check this machine for work on a data set."""
    lock, mirror = paths.root() / "requirements.txt", os.environ.get("T2M_MIRROR", ".")
    other = ", ".join(mismatches(lock.read_text(encoding="utf-8")) if lock.exists() else [])
    free = shutil.disk_usage(paths.root()).free / GIB
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    folders = {"fetch": paths.raw(dataset), "prepare": paths.prepared(dataset), "split": paths.splits(dataset)}
    checks = [
        ("packages", not other, FAULT, other or "as locked", "make setup"),
        ("disk", free >= DISK_GIB, FAULT, f"{free:.1f} GiB", f"{DISK_GIB:.0f} GiB must be free"),
        ("memory", memory >= MEMORY_GIB, FAULT, f"{memory:.1f} GiB", "profile.workers=1"),
        ("git repository", _has_scm(), OPTIONAL, "or core.no_scm of DVC", "dvc config --local core.no_scm true"),
        ("T2M_MIRROR", os.path.isdir(mirror), FAULT, mirror, "unset T2M_MIRROR"),
        *((name, at.is_dir(), OPTIONAL, str(at), f"study {name} dataset={dataset}") for name, at in folders.items()),
        *((name, find_spec(name), OPTIONAL, f"{key} extra", f"make setup {key}=1") for name, key in EXTRAS.items()),
    ]
    return [Check(what, OK if right else otherwise, value, fix) for what, right, otherwise, value, fix in checks]
