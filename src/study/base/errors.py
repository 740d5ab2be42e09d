"""The error that a user sees, with problem, place and fix; faults of the disk as such an error; safe printing."""

from __future__ import annotations

import errno
import os
import re
import shutil
import sqlite3
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any


class StudyError(Exception):
    """A problem with input, configuration or state that the user can mend (exit code 2): what is wrong (`reason`, one
    sentence), where (`file`, its `row`, the record's number from 0 or words such as ``line 3``, and its `column` or
    key), and what the user can do about it (`fix`)."""

    def __init__(
        self,
        reason: str,
        *,
        file: str | Path | None = None,
        row: int | str | None = None,
        column: str | None = None,
        fix: str | None = None,
    ) -> None:
        self.reason, self.file, self.row, self.column, self.fix = reason, file, row, column, fix
        super().__init__(str(self))

    def __str__(self) -> str:
        names_itself = isinstance(self.row, str) and self.row.startswith(("line ", "cell ", "entry "))
        kind = "option" if str(self.column).startswith("--") else "column"
        row = [] if self.row is None else [str(self.row) if names_itself else f"row {self.row}"]
        where = ", ".join(row + ([] if self.column is None else [f"{kind} {self.column}"]))
        location = where if self.file is None else f"{self.file} ({where})" if where else f"{self.file}"
        text = f"{location}: {self.reason}" if location else self.reason
        return f"{text}\n  fix: {self.fix}" if self.fix else text


class UnavailableError(StudyError):
    """An input that this machine lacks and cannot make: weights, an endpoint, a model's replies."""


def require_one_of(name: object, kind: str, options: Iterable[object], **where: Any) -> None:
    """Raise `StudyError`, which lists the known names, unless `name` is one; `kind`: what it names."""
    if name not in (names := list(options)):
        raise StudyError(f"unknown {kind} {name!r:.80}", fix=f"one of: {', '.join(map(str, names)) or 'none'}", **where)


def require_file(path: Path, fix: str, reason: str = "the file is missing") -> Path:
    """`path`, if there is a file; else `StudyError`."""
    if not path.is_file():
        raise StudyError(reason, file=path, fix=fix)
    return path


def printable(text: str, *, keep: str = "") -> str:
    """`text` without control characters, which could drive the terminal, other than those to `keep`."""
    return "".join(letter if letter.isprintable() or letter in keep else " " for letter in text)


def without_secrets(address: str) -> str:
    """An address without its user, password, query and fragment, which may be secret; a path stays as it is."""
    if "://" not in address:
        return address
    scheme, _, rest = re.split(r"[?#]", address, maxsplit=1)[0].partition("://")
    authority, slash, path = rest.partition("/")
    return f"{scheme}://{authority.rpartition('@')[2]}{slash}{path}"


_FREE = "free some space there; the same command then goes on"
_MOVE = "give yourself the right to write there, or name another folder of the study with T2M_ROOT"
# What the system calls it -> what is wrong, and what to do.
FAULTS = {
    errno.ENOSPC: ("the disk is full", _FREE),
    errno.EDQUOT: ("the quota of the disk is used up", _FREE),
    errno.EFBIG: ("the file grows beyond the largest size that is allowed", "raise the limit (ulimit -f)"),
    errno.EIO: ("the disk reports an error", "check the disk; the same command then goes on"),
    errno.EROFS: ("the file system is read-only", _MOVE),
    errno.EACCES: ("no permission", _MOVE),
    errno.EPERM: ("no permission", _MOVE),
    errno.EBUSY: ("another program uses the file", "end that program; the same command then goes on"),
    errno.ENOENT: ("there is no such file or folder", "make it, or correct the name"),
    errno.ENOTDIR: ("a file stands in the place of a folder", "move the file away"),
    errno.EEXIST: ("something else stands in its place", "move it away"),
    errno.EISDIR: ("a folder stands in the place of a file", "move the folder away, or name a file"),
    errno.ENOTEMPTY: ("the folder is not empty", "move its files away"),
    errno.ELOOP: ("a link leads back to itself", "remove the link"),
    errno.ENAMETOOLONG: ("the name is too long", "give a shorter name"),
    errno.EMFILE: ("too many files are open", "raise the limit (ulimit -n)"),
}
_SPACE = (errno.ENOSPC, errno.EDQUOT)
_PLACES = (errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ELOOP)
# Codes of SQLite, which keeps the system's to itself.
_SQLITE = {13: errno.ENOSPC, 8: errno.EROFS, 3: errno.EACCES, 10: errno.EIO, 14: errno.EACCES}


def explained(error: BaseException, path: Path | None = None) -> StudyError | None:
    """What the user can do about an error: itself if it is a `StudyError`, a fault of disk or rights, or a package that
    is not installed, as one, else None. `path`: the file that was being written, where the error does not name one."""
    if isinstance(error, StudyError):
        return error
    if isinstance(error, ModuleNotFoundError):
        fix = "install the whole study: pip install '.[study]' in a clone of its repository"
        return StudyError(f"this needs the package {error.name}, which is not installed", fix=fix)
    while not isinstance(error, OSError):
        if isinstance(error, sqlite3.Error):
            error = OSError(_SQLITE.get(getattr(error, "sqlite_errorcode", 0) & 0xFF, 0), str(error))
        elif error.__cause__ is None:
            return None
        else:
            error = error.__cause__
    if error.errno not in FAULTS:
        return None
    reason, fix = FAULTS[error.errno]
    location = path or (Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else None)
    if error.errno in _SPACE:
        reason += f"; {free_space(location or Path.cwd())}"
    if error.errno in _PLACES and location is not None:
        location, reason, fix = _obstacle(location, error.errno) or (location, reason, fix)
    if path is not None and location != path:
        reason += f", so {path} cannot be written"
    return StudyError(reason, file=location, fix=fix)


def free_space(path: Path) -> str:
    """How much space is free on the disk of a file or folder, which need not exist."""
    size, unit = 0.0, "bytes"
    for folder in (path, *path.absolute().parents):
        with suppress(OSError):
            size = shutil.disk_usage(folder).free
            break
    for larger in ("KiB", "MiB", "GiB"):
        if size >= 1024:
            size, unit = size / 1024, larger
    return f"{size:.0f} {unit} are free"


def _obstacle(path: Path, code: int) -> tuple[Path, str, str] | None:
    """What stands in the way of `path`: a link that ends nowhere or in a circle, a file where a folder must be."""
    for part in (*reversed(path.parents), path):
        if part.is_symlink():
            try:
                part.resolve(strict=True)
            except (RuntimeError, OSError) as error:
                missing = isinstance(error, FileNotFoundError)
                return part, f"is a link {'to nowhere' if missing else 'that leads back to itself'}", "remove the link"
        if part.is_file() and (part != path or code in (errno.EEXIST, errno.ENOTDIR)):
            return part, FAULTS[errno.ENOTDIR][0], f"move it away: mv {part} {part}.old"
    return None
