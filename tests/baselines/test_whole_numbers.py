"""A setting that is a number with a fraction may be written as a whole number: 1 means 1.0."""

from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest

from study.base.errors import StudyError
from study.data.splits import make
from tests.baselines.toys import ask, block_dataset, build, ranked_systems, settings

NUMBERS = ("float", "float | None")
UNTRAINED = [name for name in ranked_systems() if not settings(name).trains and not name.endswith("_tuned")]


def whole(system: object, kind: type) -> list[object]:
    """The system with each of its numbers in turn as 2 of a kind."""
    if not is_dataclass(system):
        return []
    names = [each.name for each in fields(system) if each.type in NUMBERS]
    return [replace(system, **{name: kind(2)}) for name in names]


@pytest.mark.parametrize("name", UNTRAINED)
def test_a_whole_number_is_the_same_number(name, tmp_path):
    system = build(name)
    data = block_dataset()
    split = make(data, settings(name).protocols[0], negatives=15)
    for integer, number in zip(whole(system, int), whole(system, float), strict=True):
        assert_same(integer, number, data, split, tmp_path)


def assert_same(integer, number, data, split, folder):
    """Both give the same scores, or refuse the value alike."""
    found = []
    for system in (integer, number):
        try:
            system.fit(data, split, seed=1, workdir=folder)
            found.append(ask(system, split, "test"))
        except (StudyError, ValueError) as error:
            found.append(np.array(type(error).__name__))
    np.testing.assert_array_equal(*found)
