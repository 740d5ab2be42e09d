"""What this machine has found out about ways to start a server: whether the package is there, and whether it started.

npm and pip are asked with the user's own settings. A start is noted by ``study tools index``. Both have a date, and
stay until the same is found out again.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from configparser import ConfigParser
from configparser import Error as ConfigParserError
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from email import message_from_string
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import Version

from study.advisor.catalog import store
from study.advisor.catalog.merge import ways
from study.advisor.catalog.records import BAD, package_key, repository
from study.base.errors import StudyError
from study.base.files import locking, write_json

ASKED = ("npm", "pypi")
_LIBRARIES = ("mcp", "fastmcp")  # whose next major version breaks servers
_NPM = ("version", "deprecated", "repository.url", "time", "bin")
# What a start says; an answer leaves it as it is.
_OF_START = ("started", "tools", "seconds", "failed", "lacks")
# Questions at a time: each is a program of its own.
_AT_ONCE = 4
_WAIT = 60  # seconds for one of them
_ABOUT = 1_000_000  # bytes of a wheel's text that are read
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,99}", re.ASCII)  # of a program
# pip says that a package does not exist, too, where it reached no index.
_UNREACHED = re.compile(r"Retrying|Could not fetch|connection|timed out", re.IGNORECASE)


@dataclass(frozen=True)
class Check:
    """What is known of one package or address; days as ISO 8601, empty: never."""

    asked: str = ""  # the day on which npm or pip was asked
    found: bool = True  # whether there is such a package
    version: str = ""  # the latest
    released: str = ""  # the day of that version, where npm says it
    repository: str = ""  # what the package itself names, as `records.repository` writes it
    deprecated: str = ""  # what its authors say instead of using it
    binary: str = ""  # its program, where it is not the one that npx or uvx runs
    library: bool = False  # whether it has no program
    within: tuple[str, ...] = ()  # of PyPI: versions of the MCP libraries that it was written for, as ``mcp~=1.6``
    started: str = ""  # the day of a start on this machine
    tools: int = 0  # listed then
    seconds: float = 0.0  # to that list
    failed: str = ""  # the day on which it did not start on this machine, if it has not started since
    lacks: str = ""  # variables and options that it then spoke of, and that it had not been given


def today() -> str:
    """This day, UTC, as ISO 8601."""
    return datetime.now(UTC).date().isoformat()


def read_checks() -> Mapping[str, Check]:
    """Every check by the key of its package (`package_key`) or address; StudyError for a file that cannot be read."""
    file = _file()
    return _read(file, file.stat().st_mtime_ns) if file.is_file() else {}


@lru_cache(maxsize=1)
def _read(file: Path, _changed: int) -> Mapping[str, Check]:
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))
        return {key: Check(**row | {"within": tuple(row["within"])}) for key, row in rows.items()}
    except (OSError, *BAD) as error:
        fix = "remove it; what it says is asked again"
        raise StudyError(f"cannot be read ({error})", file=file, fix=fix) from error


def note(facts_by_key: Mapping[str, Mapping[str, Any]]) -> None:
    """Keep facts (fields of `Check`) by key; other facts of the same key stay."""
    with locking(_file()):
        _read.cache_clear()  # another process may have written within one tick of the file's time
        before = read_checks()
        rows = {key: asdict(check) for key, check in before.items()}
        rows |= {key: asdict(replace(before.get(key, Check()), **facts)) for key, facts in facts_by_key.items()}
        write_json(_file(), rows)


def of(server: Mapping[Any, Any]) -> dict[str, Check]:
    """The checks of a server's packages and addresses (a row of `merge.COLUMNS`), in their order."""
    known = read_checks()
    return {key: known[key] for key in map(key_of, ways(server)) if key in known}


def key_of(way: Mapping[str, Any]) -> str:
    """What names a way to start a server (of `merge.ways`): `package_key`, or the address."""
    return str(way["url"]) if "url" in way else package_key(way["registry"], way["identifier"])


def in_words(key: str, check: Check, address: str) -> str:
    """A check on one line; `address`: of the repository of the server."""
    index = key.partition(":")[0]
    of_day = f" of {check.released}" if check.released else ""
    there = f"{index} has {check.version}{of_day}" if check.found else f"NOT ON {index.upper()}"
    lacks = f"; it names {check.lacks}" if check.lacks else ""
    parts = {
        f"{there} ({check.asked})": check.asked,
        f"THE PACKAGE NAMES {check.repository}": address and check.repository not in ("", address),
        "NO PROGRAM TO START": check.library,
        "deprecated by its authors": check.deprecated,
        f"started here, {check.tools} tools in {check.seconds:.1f} s ({check.started})": check.started,
        f"did not start here ({check.failed}{lacks})": check.failed,
    }
    return ", ".join(words for words, known in parts.items() if known)


def ask(kind: str, identifier: str) -> Check:
    """Ask npm or pip for a package. StudyError: they cannot be asked; that says nothing of the package."""
    pip = [sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "--retries", "1"]
    # uvx chooses its own Python, so this one's version does not matter.
    any_python = "--ignore-requires-python"
    with tempfile.TemporaryDirectory() as folder:
        # A wheel is read and never run; a source archive would have to be run.
        wheel = ["download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", folder, any_python]
        questions: dict[str, list[tuple[list[str], Callable[[str, str], Check | None]]]] = {
            "npm": [(["npm", "view", identifier, *_NPM, "--json"], partial(_of_npm, identifier))],
            "pypi": [
                ([*pip, *wheel, identifier], lambda *_: _of_wheel(identifier, Path(folder))),
                ([*pip, "index", "versions", any_python, identifier], _of_pip),
            ],
        }
        for words, read in questions[kind]:
            try:
                # The name was checked when it was read: it cannot be an option, and no shell sees it. npm would take
                # another registry from an .npmrc of the present folder.
                done = subprocess.run(  # noqa: S603
                    words, cwd=folder, capture_output=True, text=True, timeout=_WAIT, check=False
                )
            except subprocess.TimeoutExpired:  # a wheel may be large
                done = subprocess.CompletedProcess(words, 1, "", f"error: no answer within {_WAIT} s")
            except OSError as error:
                reason = f"{kind} cannot be asked for {identifier} ({error})"
                raise StudyError(reason, fix="install it, or try again") from error
            if (check := read(done.stdout, done.stderr)) is not None:
                return check
    lines = (done.stderr or done.stdout).splitlines() or [""]
    message = next((line for line in lines if "error" in line.lower()), lines[0])
    raise StudyError(f"{kind} does not say what it has of {identifier}: {message:.160}", fix="try again")


def _of_npm(identifier: str, text: str, _errors: str) -> Check | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    # Of a package that has one of the fields alone, npm prints the bare value.
    about = value if isinstance(value, dict) else {"version": value}
    if "error" in about:
        missing = isinstance(about["error"], dict) and about["error"].get("code") == "E404"
        return Check(today(), found=False) if missing else None
    address, _ = repository(about.get("repository.url"))
    version, times = str(about.get("version") or ""), about.get("time")
    released = str(times.get(version, ""))[:10] if isinstance(times, dict) else ""
    released = released if re.fullmatch(r"\d{4}-\d\d-\d\d", released) else ""
    names, program = about.get("bin"), {}
    if isinstance(value, dict):
        program = _program(names if isinstance(names, dict) else {}, identifier.rpartition("/")[2], lone=True)
    return Check(today(), True, version, released, address, str(about.get("deprecated") or ""), **program)


def _of_wheel(identifier: str, folder: Path) -> Check | None:
    """What the wheel in a folder says of itself; None where there is none, which says nothing of the package."""
    texts = {"METADATA": "", "entry_points.txt": ""}
    try:
        for file in folder.glob("*.whl"):
            with zipfile.ZipFile(file) as packed:
                for member in packed.infolist():
                    top, _, name = member.filename.partition("/")
                    if top.endswith(".dist-info") and name in texts and member.file_size <= _ABOUT:
                        texts[name] = packed.read(member).decode("utf-8", "replace")
        scripts = ConfigParser(strict=False, interpolation=None, delimiters="=")
        scripts.optionxform = str  # type: ignore[assignment,method-assign]  # names of programs keep their capitals
        scripts.read_string(texts["entry_points.txt"])
    except (OSError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error, EOFError, ConfigParserError):
        return None
    about = message_from_string(texts["METADATA"])
    if not (version := str(about["Version"] or "")):
        return None
    links = [*map(str, about.get_all("Project-URL", [])), str(about["Home-page"] or "")]
    # "Source, https://...": any of them may be the repository, but a link named so is before others.
    links.sort(key=lambda link: re.match(r"(?:source|repo|code|git)", link, re.IGNORECASE) is None)
    address = next(filter(None, (repository(link.rpartition(", ")[2])[0] for link in links)), "")
    names = list(scripts["console_scripts"]) if scripts.has_section("console_scripts") else []
    within = _within(about.get_all("Requires-Dist", []))
    return Check(today(), True, version, repository=address, within=within, **_program(names, identifier))


def _within(needs: Iterable[object]) -> tuple[str, ...]:
    """A bound for each MCP library that a package needs from a version on, without an end.

    Their next major version breaks servers that were written for an earlier one, and would be installed today.
    """
    bounds_of_libraries = []
    for text in needs:
        try:
            need = Requirement(str(text))
        except InvalidRequirement:
            continue
        bounds = [bound for bound in need.specifier if bound.operator != "!="]
        if need.name in _LIBRARIES and [bound.operator for bound in bounds] == [">="]:
            least = Version(bounds[0].version)
            bounds_of_libraries.append(f"{need.name}~={least.major}.{least.minor}")
    return tuple(dict.fromkeys(bounds_of_libraries))


def _program(names: Iterable[object], usual: str, *, lone: bool = False) -> dict[str, Any]:
    """`Check.binary` and `Check.library` of a package with these programs. `usual`: the one that is run by itself;
    `lone`: whether the only one is, too."""
    programs = [name for name in map(str, names) if _NAME.fullmatch(name)]
    if usual in programs or (lone and len(programs) == 1):
        return {}
    candidates = [name for name in programs if "mcp" in name.lower()] or programs
    return {"binary": candidates[0]} if candidates else {"library": True}


def _of_pip(text: str, errors: str) -> Check | None:
    if match := re.search(r"\(([^)]+)\)", text):
        return Check(today(), True, match[1])
    missing = "No matching distribution" in errors and not _UNREACHED.search(errors)
    return Check(today(), found=False) if missing else None


def ask_all(packages: Iterable[tuple[str, str]]) -> list[StudyError]:
    """Ask for packages (registry, identifier) and `note` what is found; returns what could not be asked."""
    questions = [item for item in dict.fromkeys(packages) if item[0] in ASKED]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = list(pool.map(_ask, questions))
    facts = {}
    for item, answer in zip(questions, answers, strict=True):
        if isinstance(answer, Check):
            facts[package_key(*item)] = {key: value for key, value in vars(answer).items() if key not in _OF_START}
    note(facts)
    return [answer for answer in answers if isinstance(answer, StudyError)]


def _ask(item: tuple[str, str]) -> Check | StudyError:
    try:
        return ask(*item)
    except StudyError as error:
        return error


def packages_of(servers: Sequence[Mapping[Any, Any]]) -> list[tuple[str, str]]:
    """Registry and identifier of every package of some servers."""
    return [(item["registry"], item["identifier"]) for row in servers for item in json.loads(row["packages"])]


def _file() -> Path:
    return store.folder() / "checks.json"
