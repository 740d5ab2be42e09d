"""One configuration, three sizes: what a model is at the sizes of the profiles; and values that hang on another one."""

from __future__ import annotations

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
