"""Reading text and tables, and writing files so that a reader never meets a half-written one."""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import os
import re
import secrets
import stat
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
from filelock import FileLock, Timeout

from study.base.errors import StudyError, explained, require_file

MADE = "take it from git, or make it again"  # what to do about a table of `results`
SALT = 32  # bytes
ABANDONED = 3600  # seconds after which a temporary file has no writer any more
PREFIX = 100  # letters of a file's name in that of its temporary file, since names have an end


def read_text(path: Path, *, fix: str) -> str:
    """A UTF-8 text, without its byte order mark; line ends stay. StudyError, with `fix`: no file, or not UTF-8."""
    content = require_file(path, fix).read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        where = f"line {line}, byte {error.start} of the file"
        raise StudyError(f"not UTF-8 text ({where})", file=path, fix=f"save it as UTF-8, or {fix}") from error


def read_csv(path: Path, *, fix: str = MADE, columns: Collection[str] = (), **how: Any) -> pd.DataFrame:
    """A table of a CSV file, packed or not. `how`: of `pandas.read_csv`. StudyError, with `fix`: no file, no readable
    table, a column that stands twice, or one of `columns` that is missing."""
    require_file(path, fix, "the table is missing")
    try:
        heading = pd.read_csv(path, header=None, nrows=1, dtype=str).iloc[0]
        table: pd.DataFrame = pd.read_csv(path, **how)
    except (ValueError, IndexError, EOFError, OSError, lzma.LZMAError) as error:  # pandas raises ValueErrors
        raise StudyError(f"not a readable table ({error})", file=path, fix=fix) from error
    if (twice := heading.duplicated()).any():
        raise StudyError("a column stands twice", file=path, column=str(heading[twice].iloc[0]), fix=fix)
    for column in columns:
        if column not in table:
            raise StudyError("a column is missing", file=path, column=column, fix=fix)
    return table


@contextmanager
def replacing(path: Path, *, foreign: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it over `path` only if the block ends well.

    What a killed process left of the same file is removed, once per process and file. `foreign`: another program's,
    beside which nothing is removed, and whose mode the block decides.
    Raises StudyError: a fault of the disk or of rights, with the place and what is free.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not foreign:
            _sweep(path)
        handle, name = tempfile.mkstemp(prefix=f".{path.name[:PREFIX]}.", dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        yield temporary
        if not foreign:  # mkstemp makes private files; results are meant to be read by everyone
            temporary.chmod(0o644)
        temporary.replace(path)
    except StudyError as error:
        if error.file == temporary:  # a file within a file: the user knows the outer one
            error.file = path
        raise
    except Exception as error:
        cause = error if isinstance(error, OSError) else _find_hidden(temporary)
        if cause is not None and (fault := explained(cause, path)):
            raise fault from error
        raise
    finally:
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink()


@contextmanager
def locking(path: Path, *, seconds: float = 30.0) -> Iterator[None]:
    """Let one process at a time change a file, by a lock beside it that the system releases when its holder ends.
    `seconds`: how long to wait. Raises StudyError: it is still held, or it cannot be made."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path.with_name(f".{path.name}.lock"), timeout=seconds)
        lock.acquire()
    except Timeout as error:
        raise StudyError("another command is changing it", file=path, fix="wait until it ends") from error
    except OSError as error:
        raise explained(error, path) or error from error
    try:
        yield
    finally:
        lock.release()


@cache
def _sweep(path: Path) -> None:
    """Remove temporary files of a target that are too old to belong to a process that still writes."""
    pattern = re.compile(rf"\.{re.escape(path.name[:PREFIX])}\.[a-z0-9_]{{8}}")  # as `tempfile.mkstemp` names them
    with suppress(OSError):
        for entry in os.scandir(path.parent):
            if pattern.fullmatch(entry.name) and entry.stat().st_mtime < time.time() - ABANDONED:
                os.unlink(entry.path)


def _find_hidden(temporary: Path | None) -> OSError | None:
    """The system's error behind one of a library that does not name it: on a full disk, one more write fails too."""
    try:
        if temporary is not None:
            with temporary.open("ab") as stream:
                stream.write(bytes(2**20))
                os.fsync(stream.fileno())
    except OSError as error:
        return error
    return None


def strangers_json(text: str | bytes, *, number: Callable[[str], float] = float) -> Any:
    """The value of JSON that somebody else wrote, who may mean harm; `number` reads decimals. Raises ValueError: not
    JSON or not UTF-8, a key given twice (JSON would silently keep the last), nested too deeply, or a number or letter
    that cannot be written again (NaN, 1e400, half of a surrogate pair)."""
    try:
        decoded = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        value = json.loads(decoded, object_pairs_hook=_unique, parse_float=number)
        require_plain(value)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return value


def require_plain(value: Any) -> None:
    """Raise ValueError unless a value of JSON can be written again: no infinite number, no half of a surrogate pair."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError("half of a surrogate pair, which is no letter") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"a key is given twice: {next(name for name in names if names.count(name) > 1)!r:.80}")
    return value


def replace_foreign(path: Path, content: bytes) -> None:
    """Replace another program's file in one step: a regular file, behind links, keeps its owner and mode; a new one is
    private, since it may hold secrets. StudyError: something else stands there, or it cannot be written."""
    require_regular(path)
    path = path.resolve()
    with replacing(path, foreign=True) as temporary:
        with temporary.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        if path.exists():
            before = path.stat()
            if hasattr(os, "chown") and (before.st_uid, before.st_gid) != (os.getuid(), os.getgid()):
                os.chown(temporary, before.st_uid, before.st_gid)
            temporary.chmod(stat.S_IMODE(before.st_mode))


def local_salt(path: Path) -> bytes:
    """Random bytes that a file keeps, for this user alone: what they are hashed with can be compared here and nowhere
    else. StudyError: a file of another length."""
    if not path.exists():
        with locking(path):
            if not path.exists():
                replace_foreign(path, secrets.token_bytes(SALT))
    if len(content := path.read_bytes()) != SALT:
        raise StudyError("is no salt", file=path, fix="remove it; what was hashed with it is then not known again")
    return content


def require_regular(path: Path) -> None:
    """Raise `StudyError` where something else than a regular file, or nothing, stands at a path or behind its links."""
    try:
        kind = path.stat().st_mode
    except FileNotFoundError:
        return
    except (OSError, RuntimeError, ValueError) as error:  # a link that leads back to itself, a name with a zero byte
        raise StudyError(f"cannot be read ({error})", file=path, fix="name another file") from error
    if not stat.S_ISREG(kind):
        raise StudyError("is no regular file", file=path, fix="name another file")


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text with Unix line ends."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: Path, value: Any, *, compact: bool = False) -> None:
    """Write JSON, indented or (`compact`) on one line, packed where the name ends in .gz; NaN is refused, because other
    programs cannot read it."""
    layout: dict[str, Any] = {"separators": (",", ":")} if compact else {"indent": 2}
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, **layout) + "\n"
    if path.suffix != ".gz":
        return write_text(path, text)
    with replacing(path) as temporary:
        temporary.write_bytes(gzip.compress(text.encode(), 6, mtime=0))


def write_csv(path: Path, frame: pd.DataFrame) -> None:
    """Write a table as CSV, six digits a number, packed where the name ends in .xz; equal tables are equal bytes."""
    text = frame.to_csv(index=False, float_format="%.6g", lineterminator="\n")
    if path.suffix != ".xz":
        return write_text(path, text)
    with suppress(OSError, EOFError, lzma.LZMAError):  # packing takes a hundred times as long as this comparison
        if lzma.decompress(path.read_bytes()) == text.encode():
            return None
    with replacing(path) as temporary:  # seeds repeat each other at distances that gzip cannot see
        temporary.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
    return None


def write_parquet(path: Path, frame: pd.DataFrame, *, packed: bool = False) -> None:
    """Write a table as zstd parquet. `packed`: whole numbers as differences where they rise, byte by byte elsewhere;
    lists of servers take a third less space (any Parquet reader reads them). Not for prepared data, whose bytes are
    fingerprints of runs."""
    settings: dict[str, Any] = {"compression_level": 12}
    if packed:
        wide = [name for name, kind in frame.dtypes.items() if kind in ("int32", "int64")]  # the encodings' types
        rising = {name: frame[name].is_monotonic_increasing for name in wide}
        settings = {
            "compression_level": 19,
            "use_dictionary": [name for name in frame.columns if name not in wide],
            "column_encoding": {k: "DELTA_BINARY_PACKED" if v else "BYTE_STREAM_SPLIT" for k, v in rising.items()},
        }
    with replacing(path) as temporary:
        frame.to_parquet(temporary, index=False, compression="zstd", **settings)


def sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hex."""
    with path.open("rb", buffering=0) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
