"""Reading a file of ``conf/`` that Hydra does not compose, strictly, so that a misspelt key is an error."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from study.errors import StudyError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Kind = TypeVar("Kind", bound="DataclassInstance")


def read_keys(path: Path, keys: Collection[str], *, fix: str = "correct the file") -> dict[str, Any]:
    """The values of a YAML file, which must have exactly `keys` at its top.

    Args:
        fix: what to do about a file that cannot be read.

    Raises:
        StudyError: no file, one that is not UTF-8 or not YAML, or other keys; names the file and the keys.
    """
    try:
        value: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise StudyError(f"cannot be read ({error})", file=path, fix=fix) from error
    expected = f"its keys are: {', '.join(keys)}"
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise StudyError(f"holds other keys than expected: {kind} instead of a mapping", file=path, fix=expected)
    wrong = [f"unknown key {key!r}" for key in value if key not in keys]
    wrong += [f"missing key {key!r}" for key in keys if key not in value]
    if wrong:
        raise StudyError(f"holds other keys than expected: {', '.join(wrong)}", file=path, fix=expected)
    return value


def read_settings(kind: type[Kind], path: Path) -> Kind:
    """The settings of a YAML file as the dataclass `kind`, whose fields are the keys.

    Raises:
        StudyError: as `read_keys`, or what `kind` finds wrong with the values.
    """
    return kind(**read_keys(path, [field.name for field in fields(kind)]))
