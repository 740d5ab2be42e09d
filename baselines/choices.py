"""The check of a setting that has a few possible values."""

from __future__ import annotations

from collections.abc import Collection

from study.errors import StudyError


def require_choice(key: str, value: str, allowed: Collection[str]) -> None:
    """Raise `StudyError` unless `value`, the setting `key` of a system's model, is one of `allowed`."""
    if value not in allowed:
        raise StudyError(f"unknown {key} {value!r}", column=f"system.model.{key}", fix=f"one of: {', '.join(allowed)}")
