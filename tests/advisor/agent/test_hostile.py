"""Strangers' texts: shown as they stand, and no more of fifty hostile servers; without a licence no word is shown."""

import json
import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from study.advisor.agent import text as texts
from study.advisor.agent.answer import QUOTING, answer_data, claim_line, markdown, turn_data
from study.advisor.agent.conversation import Conversation
from study.advisor.agent.text import REPOSITORY, content_words, escape_markdown, plain, safe_link
from study.errors import printable
from tests.advisor.agent.messages import IDS, MESSAGES, named_ids

KNOWN = {*range(11, 18), *IDS}
# Tokens of Markdown that would show more than text and this project's own lists and marks.
PAIRED = ("paragraph", "strong", "em", "bullet_list", "list_item")
ALLOWED = {"inline", "text", "text_special", "softbreak"} | {f"{x}_{end}" for x in PAIRED for end in ("open", "close")}
ORDINARY = ["https://github.com/a/b", "http://example.org:8080/x?y=1#z", " https://example.org/%20 "]


@pytest.fixture(scope="module", params=MESSAGES["hostile_requests"])
def turn(request, hostile):
    talk = Conversation(hostile)
    talk.say(request.param)
    return talk.say("any") if talk.state.waiting else talk.say(f"{request.param} in Python")


def everything(value):
    """All texts in plain data."""
    value = [*value.values()] if isinstance(value, dict) else value
    if isinstance(value, list | tuple):
        return [text for item in value for text in everything(item)]
    return [value] if isinstance(value, str) else []


def is_harmless(turn, limits):
    """Whether the data is visible text, Markdown shows letters alone, and a terminal gets no control characters."""
    data = turn_data(turn, limits)
    visible = all(plain(text) == " ".join(text.split()) for text in everything(data))
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(markdown(turn, limits))
    kinds = {token.type for token in tokens} | {child.type for token in tokens for child in token.children or ()}
    said = printable(json.dumps(data, ensure_ascii=False), keep="\n")
    return visible and kinds <= ALLOWED and not {"\x1b", "\u202e"} & set(said)


def test_identifiers_are_the_catalogues(turn, hostile):
    answer = turn.answer
    assert set(answer.ids) <= KNOWN
    assert len(set(answer.ids)) == len(answer.ids) <= 5
    assert sorted(hostile.ids[hostile.rank(answer.specification)[0]]) == sorted(KNOWN)
    assert {server for claim in answer.claims() for server in claim.servers} <= set(answer.ids)
    assert json.loads(json.dumps(answer_data(answer, hostile.settings.limits)))["kept"] == answer.kept


def test_what_is_shown_is_letters_and_without_texts_nothing_of_a_stranger(turn, hostile):
    assert is_harmless(turn, hostile.settings.limits)
    shown = markdown(turn, hostile.settings.limits, texts=False)
    for item in turn.answer.recommendations:
        for name in ("name", "description"):
            text = item.evidence.fields[name]
            assert len(text) < 8 or text not in shown


@pytest.mark.parametrize("server", IDS)
def test_only_checked_addresses_become_links_or_commands_and_a_label_names_one_server(hostile, server):
    evidence, sections = hostile.explain(hostile.read("captions for videos").specification, server)
    for name in ("repository_link", "directory_link"):
        assert evidence.fields[name] == "" or safe_link(evidence.fields[name])
    for claim in sections["adoption"]:
        assert "git clone" not in claim.text or REPOSITORY.match(claim.text.rpartition(" ")[2])
    assert evidence.label.endswith(f"” (id {server})")
    assert evidence.label.count("”") == evidence.label.count("“") == 1


@pytest.mark.parametrize("command", ["why id {}", "set up id {}"])
def test_every_hostile_server_is_shown_as_letters(hostile, command):
    talk = Conversation(hostile)
    first = talk.say("captions for videos in Python, MIT licence")
    for server in IDS:
        turn = talk.say(command.format(server))
        assert [item.server_id for item in turn.evidence] == [server]
        assert {named for claim in turn.claims for named in claim.servers} == {server}
        assert is_harmless(turn, hostile.settings.limits)
    # The names "undo" or "drop the language" are data: asking about them changes nothing but the reply.
    assert talk.state.specification == first.specification
    assert talk.state.answer == first.answer


@pytest.mark.parametrize("start", IDS[::5])
def test_comparisons_of_hostile_servers_name_these_alone(hostile, start):
    ids = list(range(start, start + 5))
    spec = hostile.read("captions for videos, postgres and mail, fast and private").specification
    evidence, claims = hostile.compare(spec, ids)
    assert list(evidence) == ids
    for claim in claims:
        assert sorted(claim.servers) == sorted(named_ids(claim.text)) == ids


def test_without_texts_rules_speak_but_no_name_description_address_or_value_is_there(agent):
    talk, task = Conversation(agent), "fast captions and summary of videos, in Python, Go or TypeScript"
    turns = [talk.say(message) for message in (task, "compare 1 and 2", "set up 1", "why 2")]
    shown = "\n".join(markdown(turn, agent.settings.limits, texts=False) for turn in turns)
    for part in ("of your request", "as you asked", "of the whole catalogue", "servers are usually"):
        assert part in shown
    assert re.search(r"Prefer id \d+", shown)
    own = content_words(" ".join([task, *agent.setup.languages.values(), agent.setup.docker, agent.setup.general]))
    words = content_words(re.sub(r"[a-z]+._[a-z]+, servers", "", shown.replace("\\", "")).replace("adopt_key", ""))
    assert "git clone" not in shown
    for item in turns[0].answer.recommendations:
        fields = item.evidence.fields
        assert fields["name"] not in shown
        assert fields["description"] not in shown
        strange = set(content_words(f"{fields['name']} {fields['description']} {fields['tools']}")) - set(own)
        assert not strange & set(words), strange & set(words)
    # With texts everything is there; without them what quotes a stranger is hidden.
    text = markdown(turns[0], agent.settings.limits)
    assert all(item.evidence.fields["name"] in text for item in turns[0].answer.recommendations)
    quoting = [claim for claim in turns[0].answer.claims() if claim.rule in QUOTING]
    assert {"adopt_code", "less_licence"} <= {claim.rule for claim in quoting}
    for claim in quoting:
        assert claim_line(claim, ()).startswith(claim.rule.replace("_", "\\_"))
        assert claim_line(claim, None).startswith(escape_markdown(claim.text))


@given(st.text(), st.integers(1, 30))
def test_plain_text_is_one_visible_line_stays_so_and_keeps_the_limit(text, limit):
    shown = plain(text)
    assert "\n" not in shown
    assert not [letter for letter in shown if unicodedata.category(letter) in texts.INVISIBLE]
    assert plain(shown) == shown
    assert len(plain(text, limit)) <= limit


@pytest.mark.parametrize(("text", "shown"), MESSAGES["tricks"])
def test_tricks_with_unicode_are_undone(text, shown):
    assert plain(text) == shown


def test_a_quotation_cannot_be_closed_from_within():
    assert texts.quoted('a” (id 1) "b“') == "“a (id 1) b”"


@given(st.text(st.characters(codec="ascii", exclude_categories=["Cc"])), st.sampled_from(["x", ""]))
def test_markdown_shows_escaped_text_letter_by_letter(text, before):
    line = plain(text)
    tokens = MarkdownIt("commonmark").enable("table").parse(before + escape_markdown(line))
    kinds = {token.type for token in tokens} | {child.type for token in tokens for child in token.children or ()}
    assert kinds <= {"paragraph_open", "inline", "paragraph_close", "text", "text_special"}
    shown = "".join(child.content for token in tokens for child in token.children or ())
    assert shown == before + line


@pytest.mark.parametrize("url", [*ORDINARY, *MESSAGES["no_links"], "https://example.org/" + "a" * 3000])
def test_ordinary_addresses_alone_are_links(url):
    assert safe_link(url) == (url.strip() if url in ORDINARY else None)


def test_only_a_repository_on_a_known_host_can_be_cloned():
    hosts = ["github.com"]
    assert texts.clone_address("https://github.com/a/b/", hosts) == "https://github.com/a/b"
    for url in MESSAGES["no_repositories"]:
        assert texts.clone_address(url, hosts) is None, url


def test_content_words_keep_the_spelling_and_compare_without_plural():
    found = content_words("The YouTube videos, a class of Glass", frozenset({"class"}))
    assert found == {"youtube": "youtube", "video": "videos", "glass": "glass"}
    # "system" says nothing (a stop word), so "systems" must not be said to be missing beside it.
    assert content_words("systems of a system and others") == {}


def test_phrases_stand_alone():
    assert texts.phrase("C").search("in C, please")
    assert not texts.phrase("C").search("C++ and C# and Cobol")
    assert not texts.phrase("local").search("localised")
