"""``conf/tools``: read strictly, so that a misspelt key is an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from study import paths
from study.config.reader import read_keys
from study.errors import StudyError


def read(name: str, keys: tuple[str, ...]) -> dict[str, Any]:
    """``conf/tools/<name>.yaml``, which must have exactly these keys at its top."""
    return read_keys(paths.conf() / "tools" / f"{name}.yaml", keys)


def build(kind: type, values: Any, file: str | Path) -> Any:
    """A settings object from a mapping; an unknown or missing key is a `StudyError`."""
    try:
        return kind(**values)
    except TypeError as error:
        raise StudyError(f"not the settings of {kind.__name__}: {error}", file=file, fix="correct the keys") from error
