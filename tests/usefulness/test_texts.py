"""The readings of tasks and servers, and product names, on hand-written texts."""

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.errors import StudyError
from study.usefulness import field_dense as priors
from study.usefulness import texts
from study.usefulness.products import ProductNames, Spelling, key

THEMES = [("Detect leaks for Gaming, fast", "Gaming", "Detect leaks, fast"), ("Gaming", "Gaming", "Gaming")]
THEMES += [("Interpret maps in VR/AR archives with care", "vr/ar", "Interpret maps with care")]
THEMES += [("Gamingly slow", "Gaming", "Gamingly slow"), ("No theme here", "", "No theme here")]
THEMES += [("Cost (C++) of a+b", "a+b", "Cost (C++)")]
CLAUSES = {"Rank videos by novelty": "Rank videos", "Plan, then act": "Plan", "with care": "with care", "": ""}
CAPABLE = {"A Model Context Protocol server that allows you to search packages": "search packages"}
CAPABLE |= {"An MCP server for weather data": "weather data"}
CAPABLE |= {text: text for text in ("MCP server", "Finds trains.")}
READINGS = [(texts.first_clause, *case) for case in CLAUSES.items()]
READINGS += [(texts.capability, *case) for case in CAPABLE.items()]


@pytest.mark.parametrize(("text", "theme", "expected"), THEMES)
def test_the_theme_is_taken_out_with_what_ties_it(text, theme, expected):
    assert texts.without_theme(text, theme) == expected


@pytest.mark.parametrize(("reading", "text", "expected"), READINGS)
def test_first_clause_and_capability(reading, text, expected):
    assert reading(text) == expected


@given(st.text(max_size=60), st.text(max_size=10))
def test_no_reading_of_a_text_is_emptied(text, theme):
    for found in (texts.without_theme(text, theme), texts.first_clause(text), texts.capability(text)):
        assert any(map(str.isalnum, found)) >= any(letter.isalnum() and letter.isascii() for letter in text)


DESCRIPTIONS = {
    "Slack MCP Server": "Posts to Slack. It reads Slack channels, as Slack users see them, in Slack or near Slack.",
    "Memory Server": "Keeps memory. It stores a memory of what was said, and the memory stays.",
    "Slack Search": "Searches Slack.",
    "Google Maps": "Routes by Google Maps.",
    "Google": "Asks Google.",
    "IoT Hub": "Connects IoT devices, and IoT only.",
}
SERVERS = pd.DataFrame(DESCRIPTIONS.items(), columns=["name", "description"])


def test_names_of_products_are_told_from_words():
    names = ProductNames.of(SERVERS)
    assert ("slack",) in names.bearers
    assert ("memory",) not in names.bearers
    assert names.mentioned("post it to slack") == {("slack",)}  # written as a name often enough to be sure
    assert names.mentioned("keep a Memory of it") == set()
    assert names.mentioned("route it with Google Maps please") == {("google", "maps")}
    assert names.mentioned("something for the IoT") == set()
    assert names.mentioned("Ask Google Things") == set()  # a title: capitals say nothing


def test_a_named_product_counts_fully_for_its_server_and_half_for_others():
    found = ProductNames.of(SERVERS).named(["post it to slack", "nothing"])
    assert found.tolist() == [[1.0, 0, 0.5, 0, 0, 0], [0.0] * 6]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("mcp-server-wechat", ("wechat",)), ("GitHub MCP Server", ("github",)), ("MCP Server", ()), ("", ())],
)
def test_the_key_of_a_name(name, expected):
    assert key(name) == expected


def test_spelling_ignores_the_first_word_of_a_sentence():
    spelling = Spelling.of(["Memory is cheap. Memory lasts", "a memory of Ada"])
    assert spelling.share("memory") == 0.0
    assert spelling.share("ada") == 1.0
    assert spelling.share("never-met") == 1.0
    assert not spelling.sure("ada")  # met too rarely


def test_priors_by_hand_and_an_unknown_view():
    servers = pd.DataFrame({"name": ["A template", "B"], "description": ["", "a thing"], "stars_count": ["9", None]})
    assert priors.template(servers).tolist() == [1.0, 0.0]
    assert priors.stars(servers).tolist() == pytest.approx([1.0, -1.0])
    assert priors.combined_priors(servers, {"template": -2.0}).tolist() == [-2.0, 0.0]
    assert priors.stars(servers.drop(columns="stars_count")).tolist() == [0.0, 0.0]
    with pytest.raises(StudyError, match="no text 'titel'"):
        texts.texts(servers, texts.VIEWS, "titel")
