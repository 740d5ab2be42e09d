"""Settings: values that depend on the profile or on another setting, and the check of a choice."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeVar

from study.errors import StudyError

Size = TypeVar("Size")


def of_profile(profile: str, smoke: Size, laptop: Size, full: Size) -> Size:
    """The value for a profile.

    Raises:
        StudyError: a profile of another name.
    """
    sizes = {"smoke": smoke, "laptop": laptop, "full": full}
    if profile not in sizes:
        raise StudyError(f"no size is stated for the profile {profile!r}", fix=f"one of: {', '.join(sizes)}")
    return sizes[profile]


def of_choice(choice: str, **values: Size) -> Size:
    """The value for a choice that another setting makes, so that a search can have a range for each choice.

    Raises:
        StudyError: no value is stated for it.
    """
    if choice not in values:
        raise StudyError(f"no value is stated for {choice!r}", fix=f"one of: {', '.join(values)}")
    return values[choice]


def require_choices(system: object, choices: Mapping[str, Collection[str]]) -> None:
    """Raise `StudyError` unless each named setting of `system` is one of its choices."""
    for name, allowed in choices.items():
        require_choice(name, getattr(system, name), allowed)


def require_choice(key: str, value: str, allowed: Collection[str]) -> None:
    """Raise `StudyError` unless `value`, the setting `key` of a system's model, is one of `allowed`."""
    if value not in allowed:
        raise StudyError(f"unknown {key} {value!r}", column=f"system.model.{key}", fix=f"one of: {', '.join(allowed)}")
