"""How a server is started: a command with a pinned version, or an address. Made from checked fields alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from study.advisor.catalog import checks, merge
from study.advisor.catalog.records import VERSIONS, package_key
from study.base.errors import StudyError

METHODS = ("npm", "pypi", "oci", "remote")


@dataclass(frozen=True)
class Start:
    """How a server is started: by a program, or (with `url` and `transport` in its place) elsewhere."""

    id: str  # of the server
    method: str  # one of `METHODS`
    command: str
    args: tuple[str, ...]
    url: str
    transport: str
    values: Mapping[str, str]  # variables of the environment or headers, with what is written for them
    fill: tuple[str, ...]  # names of values that the user must fill in; they stand as <NAME>
    optional: tuple[str, ...]  # variables that may be set, too
    vouched: tuple[str, ...]  # the sources that vouch for it; none: not verified


def start(
    server: Mapping[str, Any], *, method: str | None = None, version: str | None = None, unverified: bool = False
) -> Start:
    """How to start a server of the catalogue (a row of `merge.COLUMNS`).

    `method`: one of `METHODS` instead of the first that a source vouches for; `version`: instead of the registry's; if
    it names none, npm or pip is asked for the latest. `unverified`: also what nobody vouches for, after npm or pip was
    asked which repository it names. Raises StudyError: gone, nothing to start, not verified, no version, or a package
    of another repository (unless its `method` is named).
    """
    name, repository = server["id"], server["repository"]
    if server["status"] == merge.GONE:
        fix = f"see {server['moved_to']}" if server["moved_to"] else "choose another server"
        raise StudyError(f"{name} is gone from its sources", fix=fix)
    ways = _ways(server, method)
    if ways and unverified and not ways[0]["vouched"]:
        # One that cannot be asked stays what it is: not verified.
        checks.ask_all((item["registry"], item["identifier"]) for item in ways if "registry" in item)
        ways = _ways(server, method)
    documented = f"see {repository or 'its documentation'}"
    if not ways:
        raise StudyError(f"no source says how to start {name}" + (f" with {method}" if method else ""), fix=documented)
    item = ways[0]
    kind, what = _method(item), item.get("identifier") or item["url"]
    if not item["vouched"] and not unverified:
        notes = json.loads(server["notes"])
        reason = f"not verified: no source vouches that {what} belongs to {name}"
        reason += f" ({'; '.join(notes)})" if notes else ""
        raise StudyError(reason, fix="check it yourself, then give --unverified")
    if method is None and not item["vouched"] and _foreign(server, item):
        reason = f"{what} on {kind} is of {_check(item).repository}, not of {repository}"
        raise StudyError(reason, fix=f"see {repository}; --with {kind} takes it all the same")
    if kind == "remote":
        return _start(name, item)
    pinned = version or item["version"] or latest_version(kind, what)
    if _useless(item) and _check(item).found:
        raise StudyError(f"{what} on {kind} has no program to start", fix=documented)
    if not VERSIONS[kind].fullmatch(pinned):
        raise StudyError(f"not an exact version of {what}: {pinned!r:.80}", fix="give --version with an exact one")
    return _start(name, item, pinned)


def known_start(server: Mapping[str, Any], *, claimed: bool = False) -> Start | None:
    """How to start a server by what is known here, None where no source vouches for a way, or its package is missing.

    `claimed`: also a way that nobody vouches for, if its package is there and names the server's repository. Nobody is
    asked for a version: where no source and no check names one, the command has none.
    """
    ways = [] if server["status"] == merge.GONE else _ways(server, None)
    if not ways:
        return None
    item, check = ways[0], _check(ways[0])
    same = claimed and check.found and check.repository and check.repository == server["repository"]
    if _useless(item) or not (item["vouched"] or same):
        return None
    return _start(server["id"], item, item.get("version") or check.version)


def _method(item: Mapping[str, Any]) -> str:
    """Which of `METHODS` a way to start is."""
    return str(item.get("registry", "remote"))


def _check(item: Mapping[str, Any]) -> checks.Check:
    return checks.read_checks().get(checks.key_of(item), checks.Check())


def _useless(item: Mapping[str, Any]) -> bool:
    """Whether a package is known to be missing, or to have no program."""
    check = _check(item)
    return bool(check.asked) and (not check.found or (check.library and not item["binary"]))


def _foreign(server: Mapping[str, Any], item: Mapping[str, Any]) -> bool:
    """Whether a package is known to name another repository than the server's."""
    named = _check(item).repository
    return bool(named and server["repository"]) and named != server["repository"]


def _ways(server: Mapping[str, Any], method: str | None) -> list[dict[str, Any]]:
    """The ways to start a server: first what a source vouches for, then what is not known to be missing or another's,
    then whose version is named or can be asked for."""

    def order(item: Mapping[str, Any]) -> tuple[bool, bool, bool]:
        missing = _useless(item) or (not item["vouched"] and _foreign(server, item))
        return not item["vouched"], missing, _method(item) == "oci" and not item["version"]

    return sorted((item for item in merge.ways(server) if method in (None, _method(item))), key=order)


def _start(name: str, item: Mapping[str, Any], version: str = "") -> Start:
    """A way as a start; `version`: of its package, an exact one, or empty for none."""
    variables, words = item["headers"] if "url" in item else item["variables"], item.get("arguments", ())
    # Where the user must fill in, a placeholder is written.
    values = {
        each["name"]: each["value"] or f"<{each['name']}>" for each in variables if each["value"] or each["required"]
    }
    optional = tuple(each["name"] for each in variables if each["name"] not in values)
    url, transport = item.get("url", ""), item.get("transport", "")
    fill = dict.fromkeys(
        found for text in (*words, url, *values.values()) for found in re.findall(r"<([\w.-]+)>", text)
    )
    command, front = ("", []) if url else _command(item, version, values)
    args = (*front, *words)
    return Start(
        name, _method(item), command, args, url, transport, values, tuple(fill), optional, tuple(item["vouched"])
    )


def _command(item: Mapping[str, Any], version: str, variables: Iterable[str]) -> tuple[str, list[str]]:
    """The program that starts a package, and the words before the package's own."""
    identifier, check = item["identifier"], _check(item)
    binary = item["binary"] or check.binary
    if item["registry"] == "npm":
        pinned = f"{identifier}@{version}" if version else identifier
        return "npx", ["-y", "-p", pinned, binary] if binary else ["-y", pinned]
    if item["registry"] == "pypi":
        pinned = f"{identifier}{'==' if binary else '@'}{version}" if version else identifier
        bounds = [word for bound in check.within for word in ("--with", bound)]
        return "uvx", [*bounds, *(["--from", pinned, binary] if binary else [pinned])]
    mark = "@" if version.startswith("sha256:") else ":"
    image = f"{identifier}{mark}{version}" if version else identifier
    return "docker", ["run", "-i", "--rm", *(word for each in variables for word in ("-e", each)), image]


def latest_version(kind: str, identifier: str) -> str:
    """The latest version of a package, from npm or pip with the user's own settings; StudyError if they do not say."""
    fix = "give --version with an exact one"
    if kind not in checks.ASKED:
        raise StudyError(f"no source names a version of {identifier}", fix=f"{fix}, or a digest sha256:...")
    if problems := checks.ask_all([(kind, identifier)]):
        raise StudyError(f"no source names a version of {identifier}, and {problems[0].reason}", fix=fix)
    check = checks.read_checks()[package_key(kind, identifier)]
    if not check.found:
        fix = "see its repository, or choose another way (--with) or server"
        raise StudyError(f"{kind} has no package {identifier} ({check.asked})", fix=fix)
    return check.version
