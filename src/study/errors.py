"""The error that a user sees, with problem, place and fix; and safe printing of text from outside."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any


class StudyError(Exception):
    """A problem with input, configuration or state that the user can mend (exit code 2).

    Args:
        reason: what is wrong, one sentence.
        file: the file at fault.
        row: its row, where there is one: the record's number from 0, or words such as ``line 3``.
        column: its column or key, where there is one.
        fix: what the user can do about it.
    """

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

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process borders (seeds run in a pool), so they must survive pickling with their parts.
        return partial(StudyError, self.reason, file=self.file, row=self.row, column=self.column, fix=self.fix), ()

    def __str__(self) -> str:
        names_itself = isinstance(self.row, str) and self.row.startswith(("line ", "cell ", "entry "))
        where = [] if self.row is None else [str(self.row) if names_itself else f"row {self.row}"]
        where += [] if self.column is None else [f"column {self.column}"]
        place = f"{self.file}" if self.file is not None else ""
        if where:
            place = f"{place} ({', '.join(where)})" if place else ", ".join(where)
        text = f"{place}: {self.reason}" if place else self.reason
        return f"{text}\n  fix: {self.fix}" if self.fix else text


def require_one_of(name: object, kind: str, known: Iterable[object], **place: Any) -> None:
    """Raise `StudyError`, which lists the known names, unless `name` is one; `kind`: what it names."""
    if name not in (names := list(known)):
        raise StudyError(f"unknown {kind} {name!r:.80}", fix=f"one of: {', '.join(map(str, names))}", **place)


def require_file(path: Path, fix: str, reason: str = "the file is missing") -> Path:
    """`path`, if there is a file; else `StudyError`."""
    if not path.is_file():
        raise StudyError(reason, file=path, fix=fix)
    return path


def printable(text: str, *, keep: str = "") -> str:
    """`text` without control characters, which could drive the terminal, other than those to `keep`."""
    return "".join(letter if letter.isprintable() or letter in keep else " " for letter in text)
