"""Spelling variants come together, and nothing else does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.data import normalise

SAME = [("developer-tools", "Developer Tools"), ("cloud_platforms", "Cloud Platforms"), ("database", "databases")]
SAME += [("Art & Culture", "art-and-culture"), ("E-commerce", "E‑commerce")]
DIFFERENT = [("cloud-service", "cloud-storage"), ("access", "acces"), ("os", "o")]
LICENCES = {"mit": ["MIT license", "MIT License", "MIT", "MIT\nLICENSE", "MIT 许可证"], "mit-0": ["MIT-0 license"]}
LICENCES |= {"apache-2.0": ["APACHE 2.0", "Apache-2.0\nLICENSE-APACHE"], "apache-2.1": ["Apache-2.1 license"]}
LICENCES |= {"gpl-3.0": ["GNU General Public License v3.0"], "unlicense": ["Unlicense license"]}
LICENCES |= {"other": ["View license", "LICENSE"], "": ["", " \n "]}


@pytest.mark.parametrize(("one", "other"), SAME + DIFFERENT)
def test_spelling_key(one, other):
    assert (normalise.spelling_key(one) == normalise.spelling_key(other)) is ((one, other) in SAME)


def test_plural_is_kept_on_request():
    one, other, same = (
        normalise.spelling_key(text, plural=False) for text in ("Smart cities", "smart citie", "SMART CITIES")
    )
    assert (one == other, one == same) == (False, True)


@pytest.mark.parametrize("key", LICENCES)
def test_licence_key(key):
    assert {normalise.licence_key(text) for text in LICENCES[key]} == {key}


def test_unify_by_hand():
    values = ["b-C", "B c", "B c", "", "x", "X"]  # the most frequent spelling, of equals the first
    assert normalise.unify(values, normalise.spelling_key) == ["B c", "B c", "B c", "", "X", "X"]
    values = ["Python, HTML", "python,Python ,", "", "html, Python"]
    assert normalise.unify_tokens(values) == ["Python, HTML", "Python", "", "HTML, Python"]
    assert normalise.distinct(["a, b", "b, c", ""], listed=True) == 3
    assert normalise.distinct(["a, b", "b, c", ""]) == 2


@given(st.lists(st.text(max_size=12), max_size=30))
def test_unify_is_stable_and_merges_exactly_equal_keys(values):
    once = normalise.unify(values, normalise.case_key)
    assert normalise.unify(once, normalise.case_key) == once
    for one, new in zip(values, once, strict=True):
        assert normalise.case_key(one) == normalise.case_key(new)
        assert bool(new) == bool(one.strip())
