"""What a machine lacks for the study, each with its fix: packages, disk, memory, data, extras."""

import os
import re
import shutil
from collections.abc import Iterator
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
    found: str
    fix: str = ""


def mismatches(lock: str) -> list[str]:
    """The packages whose installed version (0: none) is not the lock's; +cpu is no other version."""
    pins = (Requirement(line) for line in re.findall(r"(?m)^[\w.-]+==[^\s#\\][^#\\\n]*", lock))
    wanted = {pin.name: pin.specifier for pin in pins if not pin.marker or pin.marker.evaluate()}
    found = {name: next((each.version for each in distributions(name=name)), "0") for name in wanted}
    return [f"{name} {found[name]} for {pin}" for name, pin in wanted.items() if found[name] not in pin]


def examine(dataset: str) -> Iterator[Check]:
    """Check this machine for work on a data set."""
    lock, mirror, fix = paths.root() / "requirements.txt", os.environ.get("T2M_MIRROR", "."), f"dataset={dataset}"
    other = ", ".join(mismatches(lock.read_text(encoding="utf-8")) if lock.exists() else [])
    yield Check("packages", FAULT, other, "make setup") if other else Check("packages", OK, "as locked")
    free = shutil.disk_usage(paths.root()).free / GIB
    yield Check("disk", OK if free >= DISK_GIB else FAULT, f"{free:.1f} GiB", f"{DISK_GIB:.0f} GiB must be free")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    yield Check("memory", OK if memory >= MEMORY_GIB else FAULT, f"{memory:.1f} GiB", "profile.workers=1")
    yield Check("T2M_MIRROR", OK if os.path.isdir(mirror) else FAULT, mirror, "unset T2M_MIRROR")
    for stage, folder in {"fetch": paths.raw, "prepare": paths.prepared, "split": paths.splits}.items():
        yield Check(stage, OK if folder(dataset).is_dir() else OPTIONAL, str(folder(dataset)), f"study {stage} {fix}")
    for module, extra in EXTRAS.items():
        yield Check(module, OK if find_spec(module) else OPTIONAL, f"{extra} extra", f"make setup {extra}=1")
