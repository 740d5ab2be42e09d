"""The terminal or file behind the output: letters that its encoding lacks, and an end of the output that fails."""

from __future__ import annotations

import io
import os
import sys


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
