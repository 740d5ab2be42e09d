"""Requests become specifications: planted constraints are found, ordinary words are not."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.agent.extraction import Extractor
from study.agent.settings import Words, read_conf
from study.agent.specification import Specification, build, merged, without
from study.errors import StudyError
from tests.agent.messages import MESSAGES, stated

CASES = MESSAGES["toy_constraints"]


@pytest.fixture(scope="module")
def extractor(agent):
    return Extractor(agent.vocabulary, read_conf(Words))


@pytest.mark.parametrize(("text", "constraints"), CASES, ids=[text for text, _ in CASES])
def test_stated_constraints(extractor, text, constraints):
    found = extractor.extract(text)
    assert found.specification.constraints() == stated(constraints)
    assert found.specification.intent == text


SEARCHED = MESSAGES["searched"]


@pytest.mark.parametrize(("text", "task"), SEARCHED, ids=[text for text, _ in SEARCHED])
def test_what_is_searched_for_holds_no_loose_ends(extractor, text, task):
    found = extractor.extract(text)
    assert found.task == task
    assert found.specification.intent == text


OPEN = MESSAGES["left_open"]


@pytest.mark.parametrize(("text", "open_"), OPEN, ids=[text for text, _ in OPEN])
def test_constraints_that_a_message_leaves_open(extractor, text, open_):
    assert extractor.extract(text).specification.open == tuple(open_)


def test_any_language_but_one_is_an_exclusion(extractor):
    found = extractor.extract("captions in any language but Python").specification
    assert (found.unwanted_languages, found.languages, found.open) == (("Python",), (), ("language",))


def test_task_and_rest_leave_the_constraints_out(extractor):
    found = extractor.extract("Write captions for YouTube videos in TypeScript, MIT license, easy to adopt")
    assert found.rest == {"write": "write", "caption": "captions", "youtube": "youtube", "video": "videos"}
    assert "TypeScript" not in found.task
    assert found.task.startswith("Write captions for YouTube videos")


@given(
    st.sampled_from(["Python", "Go", "TypeScript", "JavaScript", "C++"]),
    st.sampled_from([("MIT licence", "mit"), ("GPL-3.0 license", "gpl-3.0"), ("Apache-2.0 licensed", "apache-2.0")]),
    st.integers(1, 99_999),
    st.permutations([0, 1, 2]),
)
def test_planted_constraints_are_recovered_in_any_order(extractor, language, licence, stars, order):
    parts = [f"written in {language}", licence[0], f"more than {stars} stars"]
    text = "draw maps, " + ", ".join(parts[place] for place in order)
    found = extractor.extract(text).specification
    assert found.constraints() == {"languages": (language,), "licences": (licence[1],), "stars": stars}


@given(st.text(max_size=300))
def test_any_text_is_read_and_gives_known_values_only(extractor, text):
    found = extractor.extract(text).specification
    rebuilt = build({"intent": found.intent, **found.constraints()}, extractor.vocabulary, longest=10_000)
    assert rebuilt == found


def test_a_long_hostile_message_is_read_in_seconds(extractor):
    began = time.monotonic()
    extractor.extract(("not in C or " * 1_700)[:20_000])
    extractor.extract("MIT " * 5_000)
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"languages": ["Klingon"]}, "unknown language"),
        ({"languages": "Python"}, "list"),
        ({"stars": -1}, "whole number"),
        ({"stars": True}, "whole number"),
        ({"official": 1}, "true or false"),
        ({"intent": 5}, "text"),
        ({"bogus": 1}, "unknown field"),
        ({"intent": "x" * 101}, "101 characters"),
        ({"licences": [None]}, "unknown licence"),
        ({"languages": ["Python", "Go"], "unwanted_languages": ["go"]}, "Go: wanted and unwanted"),
    ],
)
def test_untrusted_values_are_refused_with_the_reason(agent, values, problem):
    with pytest.raises(StudyError, match=problem):
        build(values, agent.vocabulary, longest=100)


def test_merging_replaces_or_adds_and_resolves_contradictions():
    old = Specification("x", languages=("Python",), unwanted_languages=("Go",), open=("licence",))
    assert merged(old, Specification(languages=("Go",))).languages == ("Go",)
    assert merged(old, Specification(languages=("Go",))).unwanted_languages == ()
    assert merged(old, Specification(languages=("C",)), add=True).languages == ("Python", "C")
    assert merged(old, Specification(unwanted_languages=("Python",))).languages == ()
    assert merged(old, Specification(licences=("mit",))).open == ()
    assert merged(old, Specification(open=("language",))) == Specification("x", open=("licence", "language"))
    assert without(old, "language") == Specification("x", open=("licence",))
