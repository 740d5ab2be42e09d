"""What this machine has found out about ways to start a server: whether the package is there, and whether it started.

npm and pip are asked with the user's own settings. A start is noted by ``study tools index``. Both have a date, and
stay until the same is found out again.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from study.catalog import store
from study.catalog.records import package_key, repository
from study.errors import StudyError
from study.files import write_json

ASKED = ("npm", "pypi")
# Questions at a time: each is a program of its own.
_AT_ONCE = 4
# pip says that a package does not exist, too, where it reached no index.
_UNREACHED = re.compile(r"Retrying|Could not fetch|connection|timed out", re.IGNORECASE)


@dataclass(frozen=True)
class Check:
    """What is known of one package or address.

    Attributes:
        asked: the day (ISO 8601) on which npm or pip was asked; empty: not yet.
        found, version: whether there is such a package, and its latest version.
        released: the day of that version, where npm says it.
        repository: what the package itself names, as `records.repository` writes it.
        deprecated: what its authors say instead of using it.
        started, tools, seconds: the day of a start on this machine, the tools listed then, and the time to that list.
        failed: the day on which it did not start on this machine, if it has not started since.
    """

    asked: str = ""
    found: bool = True
    version: str = ""
    released: str = ""
    repository: str = ""
    deprecated: str = ""
    started: str = ""
    tools: int = 0
    seconds: float = 0.0
    failed: str = ""


def today() -> str:
    """This day, UTC, as ISO 8601."""
    return datetime.now(UTC).date().isoformat()


def known() -> Mapping[str, Check]:
    """Every check by the key of its package (`package_key`) or address; StudyError for a file that cannot be read."""
    file = _file()
    return _read(file, file.stat().st_mtime_ns) if file.is_file() else {}


@lru_cache(maxsize=1)
def _read(file: Path, _changed: int) -> Mapping[str, Check]:
    try:
        return {key: Check(**row) for key, row in json.loads(file.read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise StudyError(
            f"cannot be read ({error})", file=file, fix="remove it; what it says is asked again"
        ) from error


def note(found: Mapping[str, Mapping[str, Any]]) -> None:
    """Keep facts (fields of `Check`) by key; other facts of the same key stay."""
    rows = {key: asdict(check) for key, check in known().items()}
    rows |= {key: asdict(replace(known().get(key, Check()), **facts)) for key, facts in found.items()}
    write_json(_file(), rows)


def of(server: Mapping[Any, Any]) -> dict[str, Check]:
    """The checks of a server's packages and addresses (a row of `merge.COLUMNS`), in their order."""
    keys = [package_key(item["registry"], item["identifier"]) for item in json.loads(server["packages"])]
    keys += [item["url"] for item in json.loads(server["remotes"])]
    return {key: known()[key] for key in keys if key in known()}


def in_words(key: str, check: Check, place: str) -> str:
    """A check on one line; `place`: the repository of the server."""
    index = key.partition(":")[0]
    said = []
    if check.asked:
        of_day = f" of {check.released}" if check.released else ""
        there = f"{index} has {check.version}{of_day}" if check.found else f"NOT ON {index.upper()}"
        said.append(f"{there} ({check.asked})")
    if check.repository and place and check.repository != place:
        said.append(f"THE PACKAGE NAMES {check.repository}")
    said += ["deprecated by its authors"] if check.deprecated else []
    said += [f"started here, {check.tools} tools in {check.seconds:.1f} s ({check.started})"] if check.started else []
    said += [f"did not start here ({check.failed})"] if check.failed else []
    return ", ".join(said)


def ask(kind: str, identifier: str) -> Check:
    """Ask npm or pip for a package. StudyError: they cannot be asked; that says nothing of the package."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--retries", "1"]
    words = {
        "npm": ["npm", "view", identifier, "version", "deprecated", "repository.url", "time", "--json"],
        # uvx chooses its own Python, so this one's version does not matter.
        "pypi": [*pip, "index", "versions", "--ignore-requires-python", identifier],
    }[kind]
    try:
        # The name was checked when it was read: it cannot be an option, and no shell sees it.
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
    except (OSError, subprocess.SubprocessError) as error:
        raise StudyError(
            f"{kind} cannot be asked for {identifier} ({error})", fix="install it, or try again"
        ) from error
    found = _of_npm(done.stdout) if kind == "npm" else _of_pip(done.stdout, done.stderr)
    if found is None:
        lines = (done.stderr or done.stdout).splitlines() or [""]
        said = next((line for line in lines if "error" in line.lower()), lines[0])
        raise StudyError(f"{kind} does not say what it has of {identifier}: {said:.160}", fix="try again")
    return found


def _of_npm(text: str) -> Check | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    # Of a package that has one of the fields alone, npm prints the bare value.
    about = value if isinstance(value, dict) else {"version": value}
    if "error" in about:
        missing = isinstance(about["error"], dict) and about["error"].get("code") == "E404"
        return Check(today(), found=False) if missing else None
    place, _ = repository(about.get("repository.url"))
    version, times = str(about.get("version") or ""), about.get("time")
    released = str(times.get(version, ""))[:10] if isinstance(times, dict) else ""
    released = released if re.fullmatch(r"\d{4}-\d\d-\d\d", released) else ""
    return Check(today(), True, version, released, place, str(about.get("deprecated") or ""))


def _of_pip(text: str, said: str) -> Check | None:
    if found := re.search(r"\(([^)]+)\)", text):
        return Check(today(), True, found[1])
    missing = "No matching distribution" in said and not _UNREACHED.search(said)
    return Check(today(), found=False) if missing else None


def ask_all(packages: Iterable[tuple[str, str]]) -> list[StudyError]:
    """Ask for packages (registry, identifier) and `note` what is found; returns what could not be asked."""
    wanted = [item for item in dict.fromkeys(packages) if item[0] in ASKED]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = list(pool.map(_ask, wanted))
    pairs = [(package_key(*item), answer) for item, answer in zip(wanted, answers, strict=True)]
    note({key: _asked(answer) for key, answer in pairs if isinstance(answer, Check)})
    return [answer for _, answer in pairs if isinstance(answer, StudyError)]


def _ask(item: tuple[str, str]) -> Check | StudyError:
    try:
        return ask(*item)
    except StudyError as error:
        return error


def _asked(check: Check) -> dict[str, Any]:
    """What an answer says, without what a start would."""
    return {
        name: getattr(check, name) for name in ("asked", "found", "version", "released", "repository", "deprecated")
    }


def packages_of(servers: Sequence[Mapping[Any, Any]]) -> list[tuple[str, str]]:
    """Registry and identifier of every package of some servers."""
    return [(item["registry"], item["identifier"]) for row in servers for item in json.loads(row["packages"])]


def _file() -> Path:
    return store.folder() / "checks.json"
