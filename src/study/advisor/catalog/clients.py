"""Entries in the configuration files of MCP clients: written with a backup, twice the same, and undone."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from study.advisor.catalog import store
from study.advisor.catalog.start import Start
from study.base import paths
from study.base.errors import StudyError, require_one_of
from study.base.files import locking, replace_foreign, require_regular, sha256, strangers_json, write_json
from study.base.settings import read_settings

# Folders of a repository whose names say nothing about a server.
_FOLDERS = ("src", "server", "mcp", "mcp-server", "packages", "dist")


@dataclass(frozen=True)
class Client:
    """One client; ``conf/catalog/clients.yaml`` explains the keys."""

    paths: Mapping[str, str]
    format: str
    key: str
    stdio: Mapping[str, Any]
    remote: Mapping[str, Any]
    url: str
    headers: str

    def path(self, chosen: Path | None) -> Path:
        """The configuration file on this system, behind links; StudyError if it has no usual place."""
        path = chosen or self.paths.get("linux" if sys.platform.startswith("linux") else sys.platform)
        if path is None:
            raise StudyError("there is no usual place of the configuration on this system", fix="give --config FILE")
        try:
            return Path(path).expanduser().resolve()
        except RuntimeError as error:  # a link that leads back to itself; a user without a home
            raise StudyError(f"has no place ({error})", file=path, fix="name another file with --config") from error

    def entry(self, way: Start) -> dict[str, Any]:
        """A server as this client writes it; StudyError for a remote one that its file cannot hold."""
        if not way.url:
            return dict(self.stdio) | {"command": way.command, "args": list(way.args), "env": dict(way.values)}
        if way.transport not in self.remote:
            fix = "add it in the client's own settings, or choose another way with --with npm, pypi or oci"
            raise StudyError(f"this client's file takes no remote server over {way.transport}", fix=fix)
        headers = {self.headers: dict(way.values)} if way.values else {}
        return dict(self.remote[way.transport]) | {self.url: way.url} | headers


@dataclass(frozen=True)
class _Clients:
    clients: Mapping[str, Client]


def known_clients() -> Mapping[str, Client]:
    """Every client by name."""
    return read_settings(_Clients, paths.conf() / "catalog" / "clients.yaml").clients


def client(name: str) -> Client:
    """A client by name; StudyError for an unknown one."""
    by_name = known_clients()
    require_one_of(name, "client", by_name)
    return by_name[name]


def entry_name(identifier: str) -> str:
    """A name for the entry of a server: the end of its id that says something, in letters, digits and hyphens."""
    parts = re.split(r"[/:]", identifier.removesuffix(".json").lower())
    while len(parts) > 1 and parts[-1] in _FOLDERS:
        parts.pop()
    return re.sub(r"[^a-z0-9]+", "-", parts[-1]).strip("-") or "server"


def entries(text: str, kind: Client, file: Path) -> dict[str, Any]:
    """The servers in the text of a configuration file.

    Raises StudyError: broken, or not to be rewritten without loss (comments in JSON, a key given twice).
    """
    section = _parsed(text, kind, file).get(kind.key, {})
    if not isinstance(section, dict):
        raise StudyError(
            "holds something else than servers by name", file=file, column=kind.key, fix="correct the file"
        )
    return dict(section)


def _parsed(text: str, kind: Client, file: Path) -> Any:
    fix = f"add the entry under {kind.key!r} by hand"
    try:
        if kind.format == "toml":
            document = tomlkit.parse(text)
            if tomlkit.dumps(document) != text:
                raise StudyError("cannot be rewritten without loss", file=file, fix=fix)
            return document
        value = strangers_json(text, number=_exact) if text.strip() else {}
    except (ValueError, RecursionError, TOMLKitError) as error:
        reason = f"cannot be rewritten without loss: comments, trailing commas or an error ({error})"
        raise StudyError(reason, file=file, fix=fix) from error
    if not isinstance(value, dict):
        raise StudyError(f"holds no object but {type(value).__name__}", file=file, fix=fix)
    return value


def _exact(text: str) -> float:
    """A decimal number; ValueError where it would be written back as another one."""
    if Decimal(repr(number := float(text))) != Decimal(text):
        raise ValueError(f"the number {text:.40} would be rounded")
    return number


def changed(text: str, kind: Client, file: Path, name: str, entry: Mapping[str, Any] | None) -> str:
    """The text of a configuration file with an entry set, or (None) taken out; everything else stays."""
    entries(text, kind, file)
    value = _parsed(text, kind, file)
    if entry is None:
        value[kind.key].pop(name, None)
    elif kind.format == "toml":
        if kind.key not in value:
            value[kind.key] = tomlkit.table(is_super_table=True)
        value[kind.key][name] = {key: part for key, part in entry.items() if part != {}}
    else:
        value.setdefault(kind.key, {})[name] = entry
    if kind.format == "toml":
        return tomlkit.dumps(value)
    indent = re.search(r"\n([ \t]+)\"", text)
    result = json.dumps(value, indent=indent[1] if indent else 2, ensure_ascii=False)
    result += "" if text and text[-1] != "\n" else "\n"
    return result.replace("\n", "\r\n") if "\r\n" in text else result


def _same(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether an entry starts the same; values that the user filled in count as the same."""

    def same(part: Any, past: Any) -> bool:
        if isinstance(part, dict):
            return isinstance(past, dict) and part.keys() <= past.keys()
        if isinstance(part, list) and isinstance(past, list) and len(part) == len(past):
            return all(a == b or "<" in str(a) for a, b in zip(part, past, strict=True))
        return bool(part == past)

    return all(same(part, old.get(key, {} if isinstance(part, dict) else None)) for key, part in new.items())


def install(way: Start, kind_name: str, *, config: Path | None, name: str | None, write: bool) -> dict[str, Any]:
    """What an installation does, done if `write`.

    Returns: file, name, entry, and what happens: ``unchanged``, ``add`` or ``replace``, with the `backup` made.
    Raises StudyError: a file that cannot be rewritten without loss, or another entry of that name.
    """
    kind = client(kind_name)
    entry, chosen = kind.entry(way), name or entry_name(way.id)
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", chosen):
        raise StudyError(f"not a name of an entry: {chosen!r:.80}", fix="use letters, digits, - and _")
    if kind_name == "json" and config is None:
        if write:
            raise StudyError("there is no file to write to", fix="give --config FILE")
        return {"file": "", "key": kind.key, "name": chosen, "entry": entry, "does": "print"}
    file = kind.path(config)
    # Whoever writes waits for the other who does: both change one file and one journal.
    with locking(_journal_file()) if write else nullcontext():
        text = _text(file)
        old = entries(text, kind, file).get(chosen)
        rows = _journal()
        ours = any((row["file"], row["name"], row["id"]) == (str(file), chosen, way.id) for row in rows)
        answer = {"file": str(file), "key": kind.key, "name": chosen, "entry": entry, "does": "add"}
        if old is not None and _same(old, entry):
            return answer | {"does": "unchanged"}
        if old is not None:
            if not ours:
                raise StudyError(f"there is another entry {chosen!r}", file=file, fix="give another name: --name NAME")
            answer |= {"does": "replace"}
            for key in ("env", kind.headers):  # what the user filled in stays
                if isinstance(entry.get(key), dict) and isinstance(old.get(key), dict):
                    entry[key] |= {each: str(value) for each, value in old[key].items() if each in entry[key]}
        after = changed(text, kind, file, chosen, entry).encode()
        if write:
            backup = _backup(file)
            row = {"client": kind_name, "file": str(file), "name": chosen, "id": way.id, "backup": backup}
            # First the journal: a killed process leaves nothing that cannot be undone.
            write_json(_journal_file(), [*rows, row | {"after": hashlib.sha256(after).hexdigest()}])
            replace_foreign(file, after)
            answer |= {"backup": backup}
    return answer


def uninstall(identifier: str, kind_name: str, *, config: Path | None, write: bool) -> dict[str, Any]:
    """Undo the last installation of a server into a client.

    If nothing else changed the file since, it becomes byte by byte what it was; otherwise only the entry is taken out.
    Raises StudyError: there was no installation.
    """
    kind = client(kind_name)
    file = str(kind.path(config)) if config or kind.paths else None
    with locking(_journal_file()) if write else nullcontext():
        rows = _journal()
        wanted = kind_name, identifier
        mine = [row for row in rows if (row["client"], row["id"]) == wanted and file in (None, row["file"])]
        if not mine:
            where = f" into {file}" if file else ""
            raise StudyError(f"{identifier} was not installed{where}", fix="see: study install --help")
        row = mine[-1]
        path, backup = Path(row["file"]), Path(row["backup"])
        untouched = path.is_file() and sha256(path) == row["after"] and (not row["backup"] or backup.is_file())
        answer = {"file": row["file"], "name": row["name"], "does": "restore" if untouched else "take out the entry"}
        if untouched and write:
            if row["backup"]:
                replace_foreign(path, backup.read_bytes())
                backup.unlink()
            else:
                path.unlink()
        elif not untouched:
            text = _text(path)
            after = changed(text, kind, path, row["name"], None) if row["name"] in entries(text, kind, path) else text
            if write and after != text:
                answer |= {"backup": _backup(path)}
                replace_foreign(path, after.encode())
        if write:
            # Earlier installations of the same entry are undone with it, unless the file is as they left it.
            gone = [row] if untouched else mine
            write_json(_journal_file(), [item for item in rows if item not in gone])
    return answer


def _text(file: Path) -> str:
    require_regular(file)
    try:
        return file.read_bytes().decode() if file.exists() else ""
    except (OSError, ValueError) as error:
        raise StudyError(f"cannot be read ({error})", file=file, fix="correct the file") from error


def _backup(file: Path) -> str:
    """Copy a file beside itself, with its mode; empty if there is none."""
    if not file.exists():
        return ""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
    return str(shutil.copy2(file, file.with_name(f"{file.name}.{stamp}.bak")))


def _journal_file() -> Path:
    return store.folder() / "installed.json"


def _journal() -> list[dict[str, str]]:
    """What was installed, oldest first: client, file, name, id, backup, after (SHA-256 of the file then)."""
    file = _journal_file()
    try:
        rows = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
        return [{key: row[key] for key in ("client", "file", "name", "id", "backup", "after")} for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StudyError(f"cannot be read ({error})", file=file, fix="remove it; nothing can then be undone") from error
