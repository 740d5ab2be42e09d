"""Constraints in the words that developers use: small letters, either/or, denials, short forms."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.agent.conversation import Conversation
from study.agent.extraction import Extractor
from study.agent.settings import Words, read_conf
from study.agent.specification import Vocabulary

LANGUAGES = (
    "Python",
    "Java",
    "JavaScript",
    "TypeScript",
    "Go",
    "Rust",
    "C",
    "C++",
    "C#",
    "R",
    "Ruby",
    "Swift",
    "Julia",
)
LICENCES = (
    "mit",
    "apache-2.0",
    "gpl-2.0",
    "gpl-3.0",
    "agpl-3.0",
    "lgpl-2.1",
    "mpl-2.0",
    "bsd-2-clause",
    "bsd-3-clause",
    "isc",
    "mit-0",
    "unlicense",
)
COPYLEFT = ("gpl-2.0", "gpl-3.0", "agpl-3.0", "lgpl-2.1", "mpl-2.0")


def folded(names):
    return {name.casefold(): name for name in names}


@pytest.fixture(scope="module")
def extractor():
    names = {
        "language": folded(LANGUAGES),
        "platform": folded(["Windows", "Linux", "macOS"]),
        "licence": folded(LICENCES),
        "domain": folded(["Cloud", "Cloud Platforms", "Marketing", "Video Production"]),
        "preference": folded(read_conf(Words).preferences),
        "constraint": folded(["language", "platform", "licence"]),
    }
    return Extractor(Vocabulary(names), read_conf(Words))


def langs(*names):
    return {"languages": names}


# What is stated where nothing was asked.
CASES = [
    ("query postgres databases in go", langs("Go")),
    ("a postgres server written in go", langs("Go")),
    ("scrape pages using ruby", langs("Ruby")),
    ("using rust", langs("Rust")),
    ("in go", langs("Go")),
    ("parse logs with rust, please", langs("Rust")),
    ("draw plots in r", langs("R")),
    ("use swift to sign apps", langs("Swift")),
    ("on windows, read files", {"platforms": ("Windows",)}),
    ("I use windows", {"platforms": ("Windows",)}),
    ("Go or Rust", langs("Go", "Rust")),
    ("go or rust", langs("Go", "Rust")),
    ("typescript or go", langs("TypeScript", "Go")),
    ("parse logs in typescript, go or rust", langs("TypeScript", "Go", "Rust")),
    ("parse logs in rust/c++", langs("Rust", "C++")),
    ("go", langs("Go")),
    ("rust please", langs("Rust")),
    ("I'd like Go", langs("Go")),
    ("either go or python", langs("Go", "Python")),
    ("parse logs; Rust, please", langs("Rust")),
    # These words are no names.
    ("vitamins A, B, C and D", {}),
    ("go to the page and click", {}),
    ("Python, go to the page", langs("Python")),
    ("Python and go to the page", langs("Python")),
    ("c section", {}),
    ("plan a c section in a hospital", {}),
    ("read r values from a file", {}),
    ("play a piece in c major", {}),
    ("remove rust from iron", {}),
    ("a swift reply to mail", {}),
    ("reply in swift succession", {}),
    ("open windows of a browser", {}),
    ("statistics in windows of time", {}),
    ("go back one page", {}),
    ("find a go-kart track", {}),
    ("let it go", {}),
    # Polarity.
    ("neither Java nor C#", {"unwanted_languages": ("Java", "C#")}),
    ("neither Java nor Go", {"unwanted_languages": ("Java", "Go")}),
    ("read mail, neither java nor go", {"unwanted_languages": ("Java", "Go")}),
    ("I don't want Java", {"unwanted_languages": ("Java",)}),
    ("not a fan of java", {"unwanted_languages": ("Java",)}),
    ("not in go", {"unwanted_languages": ("Go",)}),
    ("no go, no rust", {"unwanted_languages": ("Go", "Rust")}),
    ("in go, not in rust", langs("Go") | {"unwanted_languages": ("Rust",)}),
    ("it should not be official", {}),
    ("I don't need it to be official", {}),
    ("I don’t care whether it is official", {}),
    ("need not be official", {}),
    ("official or not", {}),
    ("official is not needed", {}),
    ("non-official servers", {}),
    ("not only official ones", {}),
    ("I want official servers", {"official": True}),
    ("an official one, not in Java", {"official": True, "unwanted_languages": ("Java",)}),
    ("not in Java but official", {"official": True, "unwanted_languages": ("Java",)}),
    # Licences.
    ("Apache 2.0", {"licences": ("apache-2.0",)}),
    ("apache 2.0", {"licences": ("apache-2.0",)}),
    ("Apache License 2.0", {"licences": ("apache-2.0",)}),
    ("Apache License, Version 2.0", {"licences": ("apache-2.0",)}),
    ("apache v2", {"licences": ("apache-2.0",)}),
    ("configure apache 2 hosts", {}),
    ("stream from apache kafka", {}),
    ("GPLv3", {"licences": ("gpl-3.0",)}),
    ("gpl v2", {"licences": ("gpl-2.0",)}),
    ("GPL 3", {"licences": ("gpl-3.0",)}),
    ("no GPLv3", {"unwanted_licences": ("gpl-3.0",)}),
    ("AGPL-3.0", {"licences": ("agpl-3.0",)}),
    ("LGPL 2.1", {"licences": ("lgpl-2.1",)}),
    ("BSD 3-Clause", {"licences": ("bsd-3-clause",)}),
    ("bsd-2", {"licences": ("bsd-2-clause",)}),
    ("MIT-0", {"licences": ("mit-0",)}),
    ("MIT", {"licences": ("mit",)}),
    ("no copyleft licence", {"unwanted_licences": COPYLEFT}),
    ("no copyleft", {"unwanted_licences": COPYLEFT}),
    ("a non-copyleft licence", {"unwanted_licences": COPYLEFT}),
    ("copyleft", {"licences": COPYLEFT}),
    # Stars.
    ("100+ stars", {"stars": 100}),
    ("at least 2k stars", {"stars": 2000}),
    ("2.5k+ GitHub stars", {"stars": 2500}),
    ("stars > 100", {"stars": 100}),
    ("stars >= 1,000", {"stars": 1000}),
    ("> 100 stars", {"stars": 100}),
    ("100 stars or more", {"stars": 100}),
    ("no less than 50 stars", {"stars": 50}),
    ("stars: 30+", {"stars": 30}),
    ("over 1k stars", {"stars": 1000}),
    ("stars < 100", {}),
    ("100 stars or fewer", {}),
    ("photos of 100 stars", {}),
    # Themes and preferences.
    ("self hosted, no cloud", {"preferences": ("privacy",)}),
    ("no cloud platforms", {}),
    ("move files to the cloud", {"domain": "Cloud"}),
    ("read mail without API key", {"preferences": ("adoption",)}),
]


@pytest.mark.parametrize(("text", "constraints"), CASES, ids=[text for text, _ in CASES])
def test_stated_constraints(extractor, text, constraints):
    assert extractor.extract(text).specification.constraints() == constraints


REPLIES = [
    ("go", "Go"),
    ("rust", "Rust"),
    ("c", "C"),
    ("in go", "Go"),
    ("go please", "Go"),
    ("written in rust", "Rust"),
    ("I'd like Go", "Go"),
    ("maybe rust", "Rust"),
    ("R", "R"),
    ("go, with an MIT licence", "Go"),
    ("Go is fine", "Go"),
    ("go!", "Go"),
    ("c++", "C++"),
]


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
