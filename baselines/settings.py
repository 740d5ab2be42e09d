"""The check of a setting that is a choice."""

from __future__ import annotations

from collections.abc import Collection

from study.base.errors import require_one_of


def require_choice(key: str, value: str, allowed: Collection[str]) -> None:
    """Raise `StudyError` unless `value`, the setting `key` of a system's model, is one of `allowed`."""
    require_one_of(value, key, allowed, column=f"system.model.{key}")
