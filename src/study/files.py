"""Reading text and tables, and writing files so that a reader never meets a half-written one."""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import re
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from study.errors import StudyError, explained, require_file

PIECE = 1 << 24  # bytes hashed at a time; after each, a thread waits for its turn
MADE = "take it from git, or make it again"  # what to do about a table of `results`
ABANDONED = 3600  # seconds after which a temporary file has no writer any more


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
    """A table of a CSV file, packed or not.

    Args:
        fix: what to do about a file that is missing, damaged, or without one of `columns`.
        how: of `pandas.read_csv`.

    Raises:
        StudyError: no file, no readable table, a column that is missing or stands twice.
    """
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
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it over `path` only if the block ends well.

    What a killed process left of the same file is removed, once per process and file.
    Raises StudyError: a fault of the disk or of rights, with the place and what is free.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        yield temporary
        # mkstemp makes private files; results are meant to be read by everyone.
        temporary.chmod(0o644)
        temporary.replace(path)
    except StudyError as error:
        if error.file == temporary:  # a file within a file: the user knows the outer one
            error.file = path
        raise
    except Exception as error:
        cause = error if isinstance(error, OSError) else _hidden(temporary)
        if cause is not None and (fault := explained(cause, path)):
            raise fault from error
        raise
    finally:
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink()


@cache
def _sweep(path: Path) -> None:
    """Remove temporary files of a target that are too old to belong to a process that still writes."""
    pattern = re.compile(rf"\.{re.escape(path.name)}\.[a-z0-9_]{{8}}")  # as `tempfile.mkstemp` names them
    with suppress(OSError), os.scandir(path.parent) as entries:
        for entry in entries:
            if pattern.fullmatch(entry.name) and entry.stat().st_mtime < time.time() - ABANDONED:
                os.unlink(entry.path)


def _hidden(temporary: Path | None) -> OSError | None:
    """The system's error behind one of a library that does not name it: on a full disk, one more write fails too."""
    try:
        if temporary is not None:
            with temporary.open("ab") as stream:
                stream.write(bytes(2**20))
                os.fsync(stream.fileno())
    except OSError as error:
        return error
    return None


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text with Unix line ends."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: Path, value: Any, *, compact: bool = False) -> None:
    """Write JSON, indented or (`compact`) on one line; NaN is refused, because other programs cannot read it."""
    layout: dict[str, Any] = {"separators": (",", ":")} if compact else {"indent": 2}
    write_text(path, json.dumps(value, ensure_ascii=False, allow_nan=False, **layout) + "\n")


def write_csv(path: Path, frame: pd.DataFrame, *, decimals: int = 6) -> None:
    """Write a table as CSV, packed where the name ends in .xz, whose bytes depend on its contents alone."""
    text = frame.to_csv(index=False, float_format=f"%.{decimals}g", lineterminator="\n")
    if path.suffix != ".xz":
        return write_text(path, text)
    with replacing(path) as temporary:  # seeds repeat each other at distances that gzip cannot see
        temporary.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def write_parquet(path: Path, frame: pd.DataFrame, *, packed: bool = False, level: int = 12) -> None:
    """Write a table as zstd parquet.

    Args:
        packed: whole numbers as differences where they rise, byte by byte elsewhere; lists of servers take a third
            less space (any Parquet reader reads them). Not for prepared data, whose bytes are fingerprints of runs.
        level: of the compression; 3 takes a tenth of the time and a tenth more space. `packed` has its own.
    """
    settings: dict[str, Any] = {"compression_level": level}
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
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as stream:
        while piece := stream.read(PIECE):
            digest.update(piece)
    return digest.hexdigest()
