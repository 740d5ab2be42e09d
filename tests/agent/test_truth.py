"""A language model's sentence stands only if every word of it is in the fields that it cites."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.agent import checks
from study.agent.claims import Claim
from study.agent.specification import Specification
from study.agent.text import WORD, root
from tests.agent.messages import MESSAGES

REQUEST = "generate captions for marketing videos and email them to customers"
# A server that only retrieves what others have written.
FIELDS = {
    "name": "YouTube Captions",
    "description": "Retrieve captions of YouTube videos, without an API key",
    "tools": "get_captions, list_languages",
    "languages": "C++, Python",
    "platforms": "",
    "licence": "mit",
    "category": "communication",
    "subcategory": "Video Tools",
    "author": "bogdan01m",
    "stars": "12",
    "official": "non-official",
}


@pytest.fixture(scope="module")
def context(agent):
    spec = Specification(REQUEST)
    ranked, scores = agent.rank(spec)
    found = agent.context(spec, [11], ranked, scores)
    evidence = found.evidence[11]
    return replace(found, evidence={11: replace(evidence, fields={**evidence.fields, **FIELDS})})


@pytest.fixture(scope="module")
def stands(agent, context):
    share = float(agent.settings.llm["support"])

    def judge(text, *fields):
        return checks.truthful(Claim("why", "llm", text, (11,), fields), context, agent.vocabulary, share)

    return judge


INVENTED = MESSAGES["invented"]


@pytest.mark.parametrize(("text", "field"), INVENTED)
def test_what_the_cited_field_does_not_say_is_refused(stands, text, field):
    assert not stands(text, field)


SAID = MESSAGES["supported"]


@pytest.mark.parametrize(("text", "fields"), SAID)
def test_what_the_cited_fields_say_stands(stands, text, fields):
    assert stands(text, *fields)


def test_an_empty_field_and_one_that_no_statement_rests_on_are_no_source(stands):
    assert not stands("It runs on platforms.", "platforms")
    for field in ("author", "directory", "repository_link"):
        assert not stands("It retrieves YouTube captions.", "description", field)


WORDS = sorted({word for text in FIELDS.values() for word in WORD.findall(text.lower())})
FOREIGN = ["postgres", "deletes", "private", "twitter", "always", "marketing", "customers", "secure", "never", "hardly"]


@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=6), st.sampled_from(FOREIGN), st.integers(0, 6))
def test_one_foreign_word_anywhere_is_enough_to_refuse(stands, words, foreign, place):
    text = " ".join([*words[:place], foreign, *words[place:]])
    assert not stands(text, "name", "description", "tools", "languages", "category", "subcategory")


@pytest.mark.parametrize(
    "words",
    [
        ("retrieve", "retrieves", "retrieved", "retrieving"),
        ("caption", "captions", "captioned", "captioning"),
        ("query", "queries", "queried", "querying"),
        ("match", "matches", "matched", "matching"),
        ("plan", "plans", "planned", "planning"),
        ("cache", "caches", "cached", "caching"),
        ("image", "images"),
        ("process", "processes", "processing"),
        ("delete", "deleting", "deletes"),
        ("call", "calls", "calling"),
    ],
)
def test_inflections_are_alike(words):
    assert len({root(word) for word in words}) == 1


@pytest.mark.parametrize(
    "words",
    [
        ("retrieve", "retrieval"),
        ("string", "str"),
        ("need", "ne"),
        ("post", "postgres"),
        ("test", "tea"),
        ("bed", "b"),
        ("caption", "captain"),
        ("private", "privacy"),
        ("us", "use"),
        ("king", "k"),
    ],
)
def test_other_words_are_not(words):
    assert root(words[0]) != root(words[1])


@given(st.from_regex(r"[a-zA-Z]{1,20}", fullmatch=True))
def test_a_root_is_the_beginning_of_its_word(word):
    found = root(word)
    assert found
    # "queries" becomes "query": the last letter alone may be another one.
    assert word.lower().startswith(found[:-1])
    assert found == root(word.upper())


@pytest.mark.parametrize(
    ("said", "held", "other"),
    [
        ("It requires an API key.", "works without an API key", True),
        ("An API key is needed.", "an API key is not needed", True),
        ("It does not need a key.", "needs a key", True),
        ("It needs no key.", "no key needed, works offline", False),
        ("Works offline.", "no key needed, works offline", False),
        ("It doesn't store data.", "stores data; never sends mail", True),
        ("It sends mail.", "stores data; never sends mail", True),
        ("It sends mail.", "never sends spam; sends mail", False),
    ],
)
def test_a_denied_word_is_not_stated_and_a_stated_one_not_denied(said, held, other):
    assert checks.turned(said, held) == other
