"""Settings: values that depend on another setting, and the check of a choice."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeVar

from study.errors import StudyError

Size = TypeVar("Size")


def of_choice(value: Size | Mapping[str, Size], choice: str) -> Size:
    """A setting's value, where it may state one for each choice of another setting, so that a search can have a range
    for each.

    Raises:
        StudyError: no value is stated for the choice.
    """
    if not isinstance(value, Mapping):
        return value
    if choice not in value:
        raise StudyError(f"no value is stated for {choice!r}", fix=f"one of: {', '.join(value)}")
    return value[choice]


def require_choices(system: object, choices: Mapping[str, Collection[str]]) -> None:
    """Raise `StudyError` unless each named setting of `system` is one of its choices."""
    for name, allowed in choices.items():
        require_choice(name, getattr(system, name), allowed)


def require_choice(key: str, value: str, allowed: Collection[str]) -> None:
    """Raise `StudyError` unless `value`, the setting `key` of a system's model, is one of `allowed`."""
    if value not in allowed:
        raise StudyError(f"unknown {key} {value!r}", column=f"system.model.{key}", fix=f"one of: {', '.join(allowed)}")
