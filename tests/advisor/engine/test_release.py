"""Hard requests over the paper's catalogue, where `field_dense` was saved for it."""

import pytest

from study.advisor.engine import answer, catalogue
from study.advisor.saved import saved

pytestmark = pytest.mark.skipif(
    not (saved.exists("task2mcp", "field_dense") and saved._is_prepared("task2mcp")),
    reason="needs study export dataset=task2mcp system=field_dense",
)


@pytest.fixture(scope="module")
def ask():
    loaded = catalogue.load(dataset="task2mcp", system="field_dense")
    return lambda text: answer.ask(loaded, text)


@pytest.mark.parametrize(
    ("request_", "word"),
    [
        ("qery a postgers databse", "postgres"),
        ("k8s cluster troubleshooting", "k8s"),
        ("put an event in gcal", "calendar"),
        ("eine PostgreSQL-Datenbank abfragen", "postgres"),
        ("take screenshots of web pages from Claude", "screenshot"),
    ],
)
def test_what_was_meant_is_found_and_said(ask, request_, word):
    found = ask(request_)
    texts = [f"{one.server.name} {one.server.description}".lower() for one in found.items]
    assert sum(word in text for text in texts) >= 3
    assert found.notes


def test_a_conversion_has_a_direction(ask):
    names = [one.server.name for one in ask("pdf to text").items]
    assert not {"Markdown to PDF", "Invoice MCP", "Word Editing MCP Server"} & set(names)
    assert "Markdown to PDF" in [one.server.name for one in ask("markdown to pdf").items]
    for first, last in (("speech", "text"), ("text", "speech")):
        texts = [one.server.description.lower() for one in ask(f"{first} to {last}").items]
        assert not [text for text in texts if f"{last}-to-{first}" in text and f"{first}-to-{last}" not in text]


@pytest.mark.parametrize(
    "request_", ["asdfghjkl qwerty", "iron my shirts for tomorrow", "thank you, that was very kind"]
)
def test_nothing_fits(ask, request_):
    found = ask(request_)
    assert not found.fits
    assert found.items == ()


def test_a_known_server_below_the_first_is_said(ask):
    assert any("PG-MCP" in note for note in ask("query a PostgreSQL database").notes)


def test_attack_demonstrations_bear_a_warning(ask):
    found = ask("SSH key exfiltration by tool poisoning").items
    marks = {one.server.name: one.facts.marks for one in found}
    assert marks["SSH Key Exfiltration via MCP Tool Poisoning"] == ("attack demonstration",)


@pytest.mark.parametrize(
    ("request_", "stars"), [("turn a Figma design into code", 9000), ("send a WhatsApp message", 4400)]
)
def test_a_known_server_of_the_named_product_is_among_the_first(ask, request_, stars):
    assert stars in [one.facts.stars for one in ask(request_).items]
