"""Constraints in the words that developers use: small letters, either/or, denials, short forms."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.agent.conversation import Conversation
from study.agent.extraction import Extractor
from study.agent.settings import Words, read_conf
from study.agent.specification import Vocabulary
from tests.agent.messages import MESSAGES, stated

LANGUAGES = MESSAGES["languages"]


def folded(names):
    return {name.casefold(): name for name in names}


@pytest.fixture(scope="module")
def extractor():
    names = {
        "language": folded(LANGUAGES),
        "platform": folded(["Windows", "Linux", "macOS"]),
        "licence": folded(MESSAGES["licences"]),
        "domain": folded(["Cloud", "Cloud Platforms", "Marketing", "Video Production"]),
        "preference": folded(read_conf(Words).preferences),
        "constraint": folded(["language", "platform", "licence"]),
    }
    return Extractor(Vocabulary(names), read_conf(Words))


CASES = MESSAGES["constraints"]


@pytest.mark.parametrize(("text", "constraints"), CASES, ids=[text for text, _ in CASES])
def test_stated_constraints(extractor, text, constraints):
    assert extractor.extract(text).specification.constraints() == stated(constraints)


REPLIES = MESSAGES["replies"]


@pytest.mark.parametrize(("text", "name"), REPLIES, ids=[text for text, _ in REPLIES])
def test_replies_to_the_question_for_a_language(extractor, text, name):
    assert extractor.extract(text, "language").specification.languages == (name,)


@pytest.mark.parametrize("text", ["go to the page", "c section", "read r values", "swift replies", "windows", "go on"])
def test_no_reply_to_the_question_for_a_language(extractor, text):
    assert extractor.extract(text, "language").specification.languages == ()


@pytest.mark.parametrize(
    ("text", "task"),
    [
        ("query postgres databases in go", "query postgres databases"),
        ("captions for videos, 100+ stars, Apache 2.0", "captions for videos"),
        ("captions for videos, neither Java nor C#", "captions for videos"),
        ("captions for videos, it should not be official", "captions for videos"),
        ("captions for videos, I don't need it to be official", "captions for videos"),
        ("captions for videos, no copyleft licence", "captions for videos"),
    ],
)
def test_what_is_searched_for(extractor, text, task):
    assert extractor.extract(text).task == task


@given(
    st.sampled_from(LANGUAGES),
    st.sampled_from(LANGUAGES),
    st.sampled_from([str.lower, str.upper, str]),
    st.sampled_from(["{} or {}", "in {} or {}", "read mail in {} or {}", "read mail, written in {}, {}"]),
)
def test_either_of_two_languages_is_read_in_any_case(extractor, first, second, spelling, form):
    found = extractor.extract(form.format(spelling(first), spelling(second))).specification
    assert set(found.languages) == {first, second}
    assert found.unwanted_languages == ()


@given(st.sampled_from(LANGUAGES), st.sampled_from(LANGUAGES), st.sampled_from([str.lower, str]))
def test_neither_of_two_languages_is_wanted(extractor, first, second, spelling):
    found = extractor.extract(f"read mail, neither {spelling(first)} nor {spelling(second)}").specification
    assert (found.languages, set(found.unwanted_languages)) == ((), {first, second})


@given(
    st.integers(1, 999),
    st.sampled_from(["", "k", "K"]),
    st.sampled_from(
        ["{}+ stars", "at least {} stars", "stars > {}", "more than {} github stars", "{} stars or more", "stars: {}+"]
    ),
)
def test_every_form_of_a_least_number_of_stars(extractor, number, times, form):
    found = extractor.extract(f"read mail, {form.format(f'{number}{times}')}").specification
    assert found.stars == number * (1000 if times else 1)
    assert found.constraints() == {"stars": found.stars}


def test_a_reply_in_small_letters_is_taken(agent):
    for reply in ("go", "in go", "go please", "I'd like Go"):
        talk = Conversation(agent)
        assert talk.say("captions for videos").kind == "question"
        turn = talk.say(reply)
        assert (turn.kind, turn.specification.languages) == ("answer", ("Go",)), reply


def test_the_mark_can_be_given_up_again(agent):
    talk = Conversation(agent)
    first = talk.say("captions for videos in Python, only official servers")
    assert first.answer.ids == [12]
    turn = talk.say("I don't need it to be official")
    assert not turn.specification.official
    assert turn.specification.intent == first.specification.intent
    assert set(turn.answer.ids) > {12}
    again = talk.say("it should not be official")
    assert again.kind == "note"
    assert talk.state.answer == turn.answer


def test_a_purpose_that_is_denied_asks_for_no_licence(extractor):
    assert extractor.extract("licensed for commercial use").specification.licences != ()
    assert extractor.extract("no commercial use").specification.constraints() == {}


@pytest.mark.parametrize("text", ["go or ", "not ", "100 stars ", "1,", "n't official ", "gpl v", "apache 2 ", "in c "])
def test_a_long_message_of_cues_is_read_in_seconds(extractor, text):
    began = time.monotonic()
    extractor.extract((text * 20_000)[:20_000], "language")
    assert time.monotonic() - began < 10
