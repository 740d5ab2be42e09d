"""``conf/tools``: read strictly, so that a misspelt key is an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from study import paths
from study.errors import StudyError


def read(name: str, keys: tuple[str, ...]) -> dict[str, Any]:
    """``conf/tools/<name>.yaml``, which must have exactly these keys at its top."""
    path = paths.conf() / "tools" / f"{name}.yaml"
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise StudyError(f"cannot be read ({error})", file=path, fix="correct the file") from error
    if not isinstance(value, dict) or set(value) != set(keys):
        found = ", ".join(map(str, value)) if isinstance(value, dict) else type(value).__name__
        raise StudyError(f"holds {found}", file=path, fix=f"its keys are: {', '.join(keys)}")
    return value


def build(kind: type, values: Any, file: str | Path) -> Any:
    """A settings object from a mapping; an unknown or missing key is a `StudyError`."""
    try:
        return kind(**values)
    except TypeError as error:
        raise StudyError(f"not the settings of {kind.__name__}: {error}", file=file, fix="correct the keys") from error
