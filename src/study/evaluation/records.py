"""What a result was made with: configuration, versions, code, machine."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from study import paths
from study.errors import StudyError

# Packages whose version can change a result.
PACKAGES = (
    *("numpy", "scipy", "pandas", "scikit-learn", "torch", "pytorch-lightning", "numba", "bm25s"),
    *("sentence-transformers", "transformers", "lightgbm", "openai", "optuna"),
)
# Folders whose content is code or configuration; results and locks may differ without making a run "dirty".
SOURCES = ("src", "baselines", "conf", "notebooks", "requirements.txt", "pyproject.toml")


def git_state(root: Path | None = None) -> dict[str, Any]:
    """The commit, and whether code or configuration differs from it; None where there is no repository."""
    root = root or paths.root()

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, timeout=20, check=True)  # noqa: S603, S607
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--", *SOURCES)
    return {"commit": git("rev-parse", "HEAD"), "dirty": None if changed is None else bool(changed)}


def accelerator() -> str | None:
    """The accelerator that torch has at hand; None without one, or where nothing of this process has loaded torch.

    Loading torch takes seconds, and what runs without it uses no accelerator. A system may leave one unused.
    """
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
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30 if hasattr(os, "sysconf") else None
    return {"processor": model, "cores": usable, "memory_gib": memory and round(memory, 1)}


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that a result depends on."""
    return {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}


def record(**parts: Any) -> dict[str, Any]:
    """A run record: `parts` with code, versions and hardware added."""
    return parts | {"git": git_state(), "versions": versions(), "hardware": hardware()}


def read_record(path: Path) -> dict[str, Any]:
    """Read a record that `record` made.

    Raises:
        StudyError: no file, or one that is no record.
    """
    fix = "run the system again, or take the file from git"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise StudyError("the record is missing", file=path, fix=fix) from error
    except (OSError, ValueError) as error:
        raise StudyError(f"not a readable record: {error}", file=path, fix=fix) from error
    return require_record(content, path, fix=fix)


def require_record(
    content: Any, file: Path, row: str | None = None, *, fix: str = "run the system again"
) -> dict[str, Any]:
    """`content` if it is a record. Raises StudyError: it is no JSON object, or lacks a part; names `file` and `row`."""
    if not isinstance(content, dict):
        raise StudyError("a record is a JSON object", file=file, row=row, fix=fix)
    for key in ("git", "versions", "hardware"):
        if not isinstance(content.get(key), dict):
            raise StudyError("the record lacks a part", file=file, row=row, column=key, fix=fix)
    return content
