"""How a server is started: a command with a pinned version, or an address. Made from checked fields alone."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from study.advisor.catalog import checks
from study.advisor.catalog.merge import GONE
from study.advisor.catalog.records import VERSIONS, package_key
from study.base.errors import StudyError

METHODS = ("npm", "pypi", "oci", "remote")


@dataclass(frozen=True)
class Start:
    """How a server is started.

    Attributes:
        id, method: the server, and one of `METHODS`.
        command, args: a program and its words; empty for a remote server.
        url, transport: of a remote server; otherwise empty.
        values: variables of the environment or headers, with what is written for them.
        fill: names of values that the user must fill in; they stand as <NAME>.
        optional: variables that may be set, too.
        vouched: the sources that vouch for it; none: not verified.
    """

    id: str
    method: str
    command: str
    args: tuple[str, ...]
    url: str
    transport: str
    values: Mapping[str, str]
    fill: tuple[str, ...]
    optional: tuple[str, ...]
    vouched: tuple[str, ...]


def start(
    server: Mapping[str, Any], *, method: str | None = None, version: str | None = None, unverified: bool = False
) -> Start:
    """How to start a server of the catalogue (a row of `merge.COLUMNS`).

    `method`: one of `METHODS` instead of the first that a source vouches for; `version`: instead of the registry's; if
    it names none, npm or pip is asked for the latest. `unverified`: also what nobody vouches for, after npm or pip was
    asked which repository it names. Raises StudyError: gone, nothing to start, not verified, no version, or a package
    of another repository (unless its `method` is named).
    """
    name = server["id"]
    if server["status"] == GONE:
        fix = f"see {server['moved_to']}" if server["moved_to"] else "choose another server"
        raise StudyError(f"{name} is gone from its sources", fix=fix)
    ways = _ways(server, method)
    if ways and unverified and not ways[0][1]["vouched"]:
        # One that cannot be asked stays what it is: not verified.
        checks.ask_all([(kind, item["identifier"]) for kind, item in ways if kind != "remote"])
        ways = _ways(server, method)
    if not ways:
        repository = server["repository"] or "its documentation"
        reason = f"no source says how to start {name}" + (f" with {method}" if method else "")
        raise StudyError(reason, fix=f"see {repository}")
    kind, item = ways[0]
    if not item["vouched"] and not unverified:
        what = item.get("identifier") or item["url"]
        reason = f"not verified: no source vouches that {what} belongs to {name}"
        notes = json.loads(server["notes"])
        reason += f" ({'; '.join(notes)})" if notes else ""
        raise StudyError(reason, fix="check it yourself, then give --unverified")
    if method is None and not item["vouched"] and _foreign(server, item):
        reason = f"{item['identifier']} on {kind} is of {_check(item).repository}, not of {server['repository']}"
        raise StudyError(reason, fix=f"see {server['repository']}; --with {kind} takes it all the same")
    if kind == "remote":
        return _remote(name, item)
    pinned = version or item["version"] or latest_version(kind, item["identifier"])
    if _useless(item) and _check(item).found:
        reason = f"{item['identifier']} on {kind} has no program to start"
        raise StudyError(reason, fix=f"see {server['repository'] or 'its documentation'}")
    if not VERSIONS[kind].fullmatch(pinned):
        raise StudyError(
            f"not an exact version of {item['identifier']}: {pinned!r:.80}", fix="give --version with an exact one"
        )
    return _program(name, kind, item, pinned)


def known_start(server: Mapping[str, Any], *, claimed: bool = False) -> Start | None:
    """How to start a server by what is known here, None where no source vouches for a way, or its package is missing.

    `claimed`: also a way that nobody vouches for, if its package is there and names the server's repository. Nobody is
    asked for a version: where no source and no check names one, the command has none.
    """
    ways = [] if server["status"] == GONE else _ways(server, None)
    if not ways:
        return None
    kind, item = ways[0]
    if kind == "remote":
        return _remote(server["id"], item) if item["vouched"] else None
    check = _check(item)
    same = claimed and check.found and check.repository and check.repository == server["repository"]
    if _useless(item) or not (item["vouched"] or same):
        return None
    return _program(server["id"], kind, item, item["version"] or check.version)


def _check(item: Mapping[str, Any]) -> checks.Check:
    if "registry" not in item:  # an address
        return checks.Check()
    return checks.read_checks().get(package_key(item["registry"], item["identifier"]), checks.Check())


def _useless(item: Mapping[str, Any]) -> bool:
    """Whether a package is known to be missing, or to have no program."""
    check = _check(item)
    return bool(check.asked) and (not check.found or (check.library and not item["binary"]))


def _foreign(server: Mapping[str, Any], item: Mapping[str, Any]) -> bool:
    """Whether a package is known to name another repository than the server's."""
    named = _check(item).repository
    return bool(named and server["repository"]) and named != server["repository"]


def _ways(server: Mapping[str, Any], method: str | None) -> list[tuple[str, dict[str, Any]]]:
    """The ways to start a server: first what a source vouches for, then what is not known to be missing or another's,
    then whose version is named or can be asked for."""
    ways = [(item["registry"], item) for item in json.loads(server["packages"])]
    ways += [("remote", item) for item in json.loads(server["remotes"])]
    ways = [way for way in ways if method in (None, way[0])]

    def order(way: tuple[str, dict[str, Any]]) -> tuple[bool, bool, bool]:
        kind, item = way
        missing = _useless(item) or (not item["vouched"] and _foreign(server, item))
        return not item["vouched"], missing, kind == "oci" and not item["version"]

    return sorted(ways, key=order)


def _remote(name: str, item: Mapping[str, Any]) -> Start:
    values, optional = _values(item["headers"])
    fill = _fill([item["url"], *values.values()])
    return Start(name, "remote", "", (), item["url"], item["transport"], values, fill, optional, tuple(item["vouched"]))


def _program(name: str, kind: str, item: Mapping[str, Any], version: str) -> Start:
    """`version`: an exact one, or empty for none."""
    identifier, binary, words = item["identifier"], item["binary"] or _check(item).binary, item["arguments"]
    values, optional = _values(item["variables"])
    if kind == "npm":
        pinned = f"{identifier}@{version}" if version else identifier
        command, front = "npx", ["-y", *(["-p"] if binary else []), pinned, *([binary] if binary else [])]
    elif kind == "pypi":
        pinned = f"{identifier}{'==' if binary else '@'}{version}" if version else identifier
        command, front = "uvx", ["--from", pinned, binary] if binary else [pinned]
        front = [*(word for bound in _check(item).within for word in ("--with", bound)), *front]
    else:
        mark = "@" if version.startswith("sha256:") else ":"
        image = f"{identifier}{mark}{version}" if version else identifier
        command, front = "docker", ["run", "-i", "--rm", *(word for each in values for word in ("-e", each)), image]
    args = (*front, *words)
    fill = _fill([*words, *values.values()])
    return Start(name, kind, command, args, "", "", values, fill, optional, tuple(item["vouched"]))


def _values(variables: Sequence[Mapping[str, Any]]) -> tuple[dict[str, str], tuple[str, ...]]:
    """What is written for each variable (a placeholder where the user must fill in), and the optional names."""
    written = {
        item["name"]: item["value"] or f"<{item['name']}>" for item in variables if item["value"] or item["required"]
    }
    return written, tuple(item["name"] for item in variables if item["name"] not in written)


def _fill(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for text in texts for name in re.findall(r"<([\w.-]+)>", text)))


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
