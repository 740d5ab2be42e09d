"""What a result was made with: configuration, versions, code, machine."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from study.base import paths
from study.base.errors import StudyError, require_file

# Packages whose version can change a result.
PACKAGES = "numpy scipy pandas scikit-learn torch pytorch-lightning numba bm25s sentence-transformers transformers "
PACKAGES += "lightgbm openai optuna"
# Folders whose content is code or configuration; results and locks may differ without making a run "dirty".
SOURCES = ("src", "baselines", "conf", "notebooks", "requirements.txt", "pyproject.toml")
FIX = "run the system again, or take the file from git"


def git_state() -> dict[str, Any]:
    """The commit, and whether code or configuration differs from it; None where there is no repository."""

    def git(*words: str) -> str | None:
        how: dict[str, Any] = {"cwd": paths.root(), "capture_output": True, "text": True, "timeout": 20, "check": True}
        try:
            return str(subprocess.run(["git", *words], **how).stdout).strip()  # noqa: S603, S607
        except (OSError, subprocess.SubprocessError):
            return None

    changed = git("status", "--porcelain", "--", *SOURCES)
    return {"commit": git("rev-parse", "HEAD"), "dirty": None if changed is None else bool(changed)}


def accelerator() -> str | None:
    """The accelerator that torch has at hand; None without one, or where nothing of this process has loaded torch,
    which takes seconds."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return None
    if torch.cuda.is_available():
        return str(torch.cuda.get_device_name())
    return "mps" if torch.backends.mps.is_available() else None


def hardware() -> dict[str, Any]:
    """Processor, cores usable by this process, memory in GiB, and `accelerator`."""
    return _machine() | {"accelerator": accelerator()}


@cache
def _machine() -> dict[str, Any]:
    model, cpuinfo = platform.processor() or platform.machine(), Path("/proc/cpuinfo")
    if cpuinfo.exists() and (named := re.search(r"(?m)^model name\s*:(.*)", cpuinfo.read_text())):
        model = named[1].strip()
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {"processor": model, "cores": usable, "memory_gib": round(memory, 1)}


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that a result depends on."""
    return {"python": platform.python_version()} | {name: version(name) for name in PACKAGES.split()}


def record(**parts: Any) -> dict[str, Any]:
    """A run record: `parts` with code, versions and hardware added."""
    return parts | {"git": git_state(), "versions": versions(), "hardware": hardware()}


def read_record(path: Path) -> dict[str, Any]:
    """Read a record that `record` made. Raises StudyError: no file, or one that is no record."""
    return parse_record(require_file(path, FIX, "the record is missing").read_bytes(), path)


def parse_record(text: str | bytes, file: Path, row: str | None = None) -> dict[str, Any]:
    """A record from its JSON. Raises StudyError, which names `file` and `row`: it is none, or lacks a part."""
    try:
        content = json.loads(text)
    except ValueError as error:
        raise StudyError(f"not a readable record: {error}", file=file, row=row, fix=FIX) from error
    for key in ("git", "versions", "hardware"):
        if not isinstance(content, dict) or not isinstance(content.get(key), dict):
            raise StudyError("the record lacks a part", file=file, row=row, column=key, fix=FIX)
    return dict(content)
