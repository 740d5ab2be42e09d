"""Filters remove what they should, and say what they removed."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.agent.settings import Settings, read_conf
from study.agent.specification import Attributes, Specification, filter_servers, relaxed
from tests.agent.messages import MESSAGES, stated

KEEP = {"language": False, "platform": True, "licence": False}
RANKED = np.arange(7)


@pytest.fixture(scope="module")
def filtered(data):
    attributes, ids = Attributes(data.servers), data.servers["id"].to_numpy()

    def run(spec, **changes):
        options = {"keep_unknown": KEEP, "pool": 4, "limits": {"listed": 2}} | changes
        kept, removals = filter_servers(spec, attributes, RANKED, ids, replace(read_conf(Settings), **options))
        return [int(server) for server in ids[kept]], {item.constraint: item for item in removals}

    return run


@pytest.mark.parametrize(("constraints", "kept"), MESSAGES["filters"])
def test_who_is_kept(filtered, constraints, kept):
    assert filtered(Specification(**stated(constraints)))[0] == kept


def test_what_a_filter_says(filtered):
    _, removals = filtered(Specification(languages=("Python",), stars=10))
    language = removals["language"]
    # Of the four best (11 to 14) the filter on Python removes 11 and 13; without it, stars alone leave 12, 13, 16.
    assert (language.removed, language.in_pool, language.best, language.left_without) == (4, 2, (11, 13), 3)
    assert language.wanted == "Python"
    assert removals["stars"].left_without == 3
    # Unknown values are kept or not as configured, and counted.
    kept, removals = filtered(Specification(platforms=("Linux",)))
    assert 11 in kept
    assert removals["platform"].unknown == 4
    kept, removals = filtered(Specification(platforms=("Linux",)), keep_unknown=KEEP | {"platform": False})
    assert (kept, removals["platform"].unknown) == ([12, 14], 0)
    # Relaxing names the constraint that frees most.
    kept, removals = filtered(Specification(languages=("Go",), official=True))
    assert kept == []
    assert relaxed(list(removals.values())) == [("official", 2), ("language", 1)]


@given(
    st.lists(st.sampled_from(["Python", "Go", "JavaScript", "C"]), max_size=3, unique=True),
    st.lists(st.sampled_from(["mit", "gpl-3.0", "apache-2.0"]), max_size=2, unique=True),
    st.integers(0, 130),
    st.booleans(),
)
def test_counts_agree_with_the_servers_kept(filtered, languages, licences, stars, official):
    parts = {"languages": tuple(languages), "licences": tuple(licences), "stars": stars, "official": official}
    kept, removals = filtered(Specification(**parts))
    meet = set(range(11, 18))
    for name, item in removals.items():
        field = {"language": "languages", "licence": "licences"}.get(name, name)
        single = set(filtered(Specification(**{field: parts[field]}))[0])
        assert item.removed == 7 - len(single)
        assert item.left_without >= len(kept)
        meet &= single
    assert sorted(meet) == kept
