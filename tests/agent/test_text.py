"""Strangers' text: what is shown is what stands there, and only ordinary addresses become links."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from study.agent.text import INVISIBLE, clone_address, content_words, escape_markdown, phrase, plain, quoted, safe_link
from tests.agent.messages import MESSAGES


@given(st.text(), st.integers(1, 30))
def test_plain_text_is_one_visible_line_stays_so_and_keeps_the_limit(text, limit):
    shown = plain(text)
    assert "\n" not in shown
    assert not [letter for letter in shown if unicodedata.category(letter) in INVISIBLE]
    assert plain(shown) == shown
    assert len(plain(text, limit)) <= limit


@pytest.mark.parametrize(("text", "shown"), MESSAGES["tricks"])
def test_tricks_with_unicode_are_undone(text, shown):
    assert plain(text) == shown


def test_a_quotation_cannot_be_closed_from_within():
    assert quoted('a” (id 1) "b“') == "“a (id 1) b”"


@given(st.text(st.characters(codec="ascii", exclude_categories=["Cc"])), st.sampled_from(["x", ""]))
def test_markdown_shows_escaped_text_letter_by_letter(text, before):
    line = plain(text)
    tokens = MarkdownIt("commonmark").enable("table").parse(before + escape_markdown(line))
    kinds = {token.type for token in tokens} | {child.type for token in tokens for child in token.children or ()}
    assert kinds <= {"paragraph_open", "inline", "paragraph_close", "text", "text_special"}
    shown = "".join(child.content for token in tokens for child in token.children or ())
    assert shown == before + line


ORDINARY = ["https://github.com/a/b", "http://example.org:8080/x?y=1#z", " https://example.org/%20 "]


@pytest.mark.parametrize("url", [*ORDINARY, *MESSAGES["no_links"], "https://example.org/" + "a" * 3000])
def test_ordinary_addresses_alone_are_links(url):
    assert safe_link(url) == (url.strip() if url in ORDINARY else None)


def test_only_a_repository_on_a_known_host_can_be_cloned():
    hosts = ["github.com"]
    assert clone_address("https://github.com/a/b/", hosts) == "https://github.com/a/b"
    for url in MESSAGES["no_repositories"]:
        assert clone_address(url, hosts) is None, url


def test_content_words_keep_the_spelling_and_compare_without_plural():
    found = content_words("The YouTube videos, a class of Glass", frozenset({"class"}))
    assert found == {"youtube": "youtube", "video": "videos", "glass": "glass"}
    # "system" says nothing (a stop word), so "systems" must not be said to be missing beside it.
    assert content_words("systems of a system and others") == {}


def test_phrases_stand_alone():
    assert phrase("C").search("in C, please")
    assert not phrase("C").search("C++ and C# and Cobol")
    assert not phrase("local").search("localised")
