"""Strangers' texts at the functions that clean them: one visible line, links are ordinary addresses alone."""

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.advisor.agent import text as texts
from study.advisor.agent.language import evidence
from study.advisor.agent.text import plain, safe_link
from study.base.errors import printable
from tests.advisor.agent.conftest import HOSTILE

ORDINARY = ["https://github.com/a/b", "http://example.org:8080/x?y=1#z", " https://example.org/%20 "]
NO_LINKS = ["javascript:alert(1)", "data:text/html,x", "https://user:pw@example.org/", "https://example.org/`id`", ""]
NO_LINKS += ["https://example.org/$(touch x)", "https://example.org/a b", "https://ex\u0430mple.org/x"]
NO_LINKS += ["https://localhost", "https://-x.org", "//example.org", "https://example.org/" + "a" * 3_000]


def everything(value):
    """All texts in plain data."""
    value = [*value.values()] if isinstance(value, dict) else value
    if isinstance(value, list | tuple):
        return [text for item in value for text in everything(item)]
    return [value] if isinstance(value, str) else []


def visible(*values):
    return all(plain(text) == " ".join(text.split()) for text in everything(values))


def test_answers_about_hostile_servers_name_servers_of_the_catalogue_in_visible_text(hostile):
    turn = hostile.answer("captions for videos", top=20)
    data = hostile.data(turn)
    ids = [row["server_id"] for row in data["recommendations"]]
    assert len(ids) == len(set(ids)) == 20
    assert set(ids) <= {*range(11, 18), *HOSTILE}
    assert {server for said in data["statements"] for server in said["servers"]} <= set(ids)
    assert visible(data["statements"], hostile.short(turn))
    assert not {"\x1b", "\u202e"} & set(printable(json.dumps(data, ensure_ascii=False), keep="\n"))
    for server in HOSTILE:  # each speaks of itself alone
        said = hostile.explain("captions for videos", server)
        assert {named for one in said["statements"] for named in one["servers"]} == {server}
        assert visible(said["statements"], said["evidence"])
        assert safe_link(said.get("url", "https://github.com/a/b"))
        assert len(evidence(hostile.find(server))["description"]) <= 260


@given(st.text(), st.integers(1, 30))
def test_plain_text_is_one_visible_line_stays_so_and_keeps_the_limit(text, limit):
    shown = plain(text)
    assert "\n" not in shown
    assert not [letter for letter in shown if unicodedata.category(letter) in texts.INVISIBLE]
    assert plain(shown) == shown
    assert len(plain(text, limit)) <= limit


@pytest.mark.parametrize("url", [*ORDINARY, *NO_LINKS])
def test_ordinary_addresses_alone_are_links(url):
    assert safe_link(url) == (url.strip() if url in ORDINARY else None)
