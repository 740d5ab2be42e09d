"""Requests become specifications: constraints in the words that developers use are found, ordinary words are not."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.advisor.agent.conversation import Conversation
from study.advisor.agent.extraction import Extractor
from study.advisor.agent.settings import Words, read_conf
from study.advisor.agent.specification import Specification, Vocabulary, build, merged, without
from study.errors import StudyError
from tests.advisor.agent.messages import MESSAGES, stated

LANGUAGES = MESSAGES["languages"]
NAME, EITHER = st.sampled_from(LANGUAGES), ["{} or {}", "in {} or {}", "read mail in {} or {}"]
EITHER += ["read mail, written in {}, {}"]
FORMS = ["{}+ stars", "at least {} stars", "stars > {}", "more than {} github stars", "{} stars or more", "stars: {}+"]
LONG = ["go or ", "not ", "100 stars ", "1,", "n't official ", "gpl v", "apache 2 ", "in c ", "not in C or ", "MIT "]


@pytest.fixture(scope="module")
def toy(agent):
    return Extractor(agent.vocabulary, read_conf(Words))


@pytest.fixture(scope="module")
def extractor():
    names = {"language": LANGUAGES, "platform": ["Windows", "Linux", "macOS"], "licence": MESSAGES["licences"]}
    names |= {"domain": ["Cloud", "Cloud Platforms", "Marketing", "Video Production"]}
    names |= {"preference": read_conf(Words).preferences, "constraint": ["language", "platform", "licence"]}
    folded = {kind: {name.casefold(): name for name in own} for kind, own in names.items()}
    return Extractor(Vocabulary(folded), read_conf(Words))


def rows(toy, general):
    """The rows of two tables of ``messages.yaml``, each with the name of the extractor that reads it."""
    tables = {"toy": MESSAGES[toy], "extractor": MESSAGES[general]}
    return [pytest.param(which, *row, id=row[0]) for which, table in tables.items() for row in table]


@pytest.mark.parametrize(("which", "text", "constraints"), rows("toy_constraints", "constraints"))
def test_stated_constraints(request, which, text, constraints):
    found = request.getfixturevalue(which).extract(text).specification
    assert found.constraints() == stated(constraints)
    assert found.intent == text


@pytest.mark.parametrize(("which", "text", "task"), rows("searched", "searched_in_general"))
def test_what_is_searched_for_holds_no_loose_ends(request, which, text, task):
    assert request.getfixturevalue(which).extract(text).task == task


@pytest.mark.parametrize(("text", "open_"), MESSAGES["left_open"])
def test_constraints_that_a_message_leaves_open(toy, text, open_):
    assert toy.extract(text).specification.open == tuple(open_)


@pytest.mark.parametrize(("text", "names"), [*MESSAGES["replies"], *((text, "") for text in MESSAGES["no_replies"])])
def test_replies_to_the_question_for_a_language(extractor, text, names):
    assert extractor.extract(text, "language").specification.languages == ((names,) if names else ())


def test_task_and_rest_leave_the_constraints_out(toy):
    found = toy.extract("Write captions for YouTube videos in TypeScript, MIT license, easy to adopt")
    assert found.rest == {"write": "write", "caption": "captions", "youtube": "youtube", "video": "videos"}
    assert "TypeScript" not in found.task
    assert found.task.startswith("Write captions for YouTube videos")


@given(
    st.sampled_from(["Python", "Go", "TypeScript", "JavaScript", "C++"]),
    st.sampled_from([("MIT licence", "mit"), ("GPL-3.0 license", "gpl-3.0"), ("Apache-2.0 licensed", "apache-2.0")]),
    st.integers(1, 99_999),
    st.permutations([0, 1, 2]),
)
def test_planted_constraints_are_recovered_in_any_order(toy, language, licence, stars, order):
    parts = [f"written in {language}", licence[0], f"more than {stars} stars"]
    found = toy.extract("draw maps, " + ", ".join(parts[place] for place in order)).specification
    assert found.constraints() == {"languages": (language,), "licences": (licence[1],), "stars": stars}


@given(NAME, NAME, st.sampled_from([str.lower, str.upper, str]), st.sampled_from(EITHER))
def test_either_of_two_languages_is_read_in_any_case(extractor, first, second, spelling, form):
    found = extractor.extract(form.format(spelling(first), spelling(second))).specification
    assert set(found.languages) == {first, second}
    assert found.unwanted_languages == ()


@given(NAME, NAME, st.sampled_from([str.lower, str]))
def test_neither_of_two_languages_is_wanted(extractor, first, second, spelling):
    found = extractor.extract(f"read mail, neither {spelling(first)} nor {spelling(second)}").specification
    assert (found.languages, set(found.unwanted_languages)) == ((), {first, second})


@given(st.integers(1, 999), st.sampled_from(["", "k", "K"]), st.sampled_from(FORMS))
def test_every_form_of_a_least_number_of_stars(extractor, number, times, form):
    found = extractor.extract(f"read mail, {form.format(f'{number}{times}')}").specification
    assert found.constraints() == {"stars": number * (1000 if times else 1)}


@given(st.text(max_size=300))
def test_any_text_is_read_and_gives_known_values_only(toy, text):
    found = toy.extract(text).specification
    assert build({"intent": found.intent, **found.constraints()}, toy.vocabulary) == found


def test_the_mark_can_be_given_up_again(agent):
    talk = Conversation(agent)
    first = talk.say("captions for videos in Python, only official servers")
    assert first.answer.ids == [12]
    turn = talk.say("I don't need it to be official")
    assert (turn.specification.official, turn.specification.intent) == (False, first.specification.intent)
    assert set(turn.answer.ids) > {12}
    assert talk.say("it should not be official").kind == "note"
    assert talk.state.answer == turn.answer


@pytest.mark.parametrize("text", LONG)
def test_a_long_message_of_cues_is_read_in_seconds(extractor, text):
    began = time.monotonic()
    extractor.extract((text * 20_000)[:20_000], "language")
    assert time.monotonic() - began < 10


def test_word_lists_hold_words():
    # YAML reads a bare on, no or true as a truth value.
    unread = [value for value in vars(read_conf(Words)).values() if isinstance(value, dict | list)]
    for value in unread:  # it grows by what is nested
        if isinstance(value, dict | list):
            unread += value.values() if isinstance(value, dict) else value
        else:
            assert isinstance(value, str)


@pytest.mark.parametrize(("values", "problem"), MESSAGES["wrong_values"])
def test_untrusted_values_are_refused_with_the_reason(agent, values, problem):
    with pytest.raises(StudyError, match=problem):
        build(values, agent.vocabulary)


def test_merging_replaces_or_adds_and_resolves_contradictions():
    old = Specification("x", languages=("Python",), unwanted_languages=("Go",), open=("licence",))
    assert merged(old, Specification(languages=("Go",))).languages == ("Go",)
    assert merged(old, Specification(languages=("Go",))).unwanted_languages == ()
    assert merged(old, Specification(languages=("C",)), add=True).languages == ("Python", "C")
    assert merged(old, Specification(unwanted_languages=("Python",))).languages == ()
    assert merged(old, Specification(licences=("mit",))).open == ()
    assert merged(old, Specification(open=("language",))) == Specification("x", open=("licence", "language"))
    assert without(old, "language") == Specification("x", open=("licence",))
