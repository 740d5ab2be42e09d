"""The terminal: letters that its encoding lacks, words that are no UTF-8, and an end of the output that fails."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

from study.base.errors import StudyError, printable


def show_anything() -> None:
    """Let letters that the output's encoding lacks be written as escapes, such as ``\\u2192`` for an arrow."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def drop_unwritten_output() -> None:
    """Give up output that cannot be written, which Python would try once more at its end, with another exit code."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def require_utf8(words: Sequence[str]) -> None:
    """Raise `StudyError` for the first argument whose bytes are no UTF-8; Python passes them on as lone surrogates."""
    for place, word in enumerate(words, start=1):
        try:
            word.encode()
        except UnicodeEncodeError as error:
            readable = word.encode(errors="surrogateescape").decode(errors="replace")
            raise StudyError(
                f"argument {place} is not UTF-8: {printable(readable)!r}",
                fix="set the terminal to UTF-8 and write it again",
            ) from error
