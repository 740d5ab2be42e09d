"""What is said after an answer is about the answer unless it is surely a new task; nothing destroys the task."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.agent.conversation import Conversation, NotThereError
from tests.agent.messages import MESSAGES, stated

TASK = "captions for videos in Python, Go or TypeScript"


@pytest.fixture
def talk(agent):
    made = Conversation(agent)
    made.say(TASK)
    return made


ABOUT = MESSAGES["follow_ups"]


@pytest.mark.parametrize(("message", "kind", "places"), ABOUT, ids=[message for message, _, _ in ABOUT])
def test_what_follows_an_answer_keeps_the_task(talk, message, kind, places):
    before = talk.state
    turn = talk.reply(message)
    assert turn.kind == (kind or "note")
    assert talk.state == before
    assert turn.specification == before.specification
    if places is not None:
        assert [item.server_id for item in turn.evidence] == [before.answer.ids[place - 1] for place in places]


@pytest.mark.parametrize(("message", "constraints"), MESSAGES["changes"])
def test_a_constraint_alone_refines(talk, message, constraints):
    turn = talk.say(message)
    assert (turn.kind, turn.specification.intent) == ("answer", TASK)
    assert turn.specification.constraints() == stated(constraints)


@pytest.mark.parametrize("message", MESSAGES["tasks_after_an_answer"])
def test_a_task_is_still_a_task(talk, message):
    turn = talk.say(message)
    assert turn.kind in ("question", "answer")
    assert turn.specification.intent == message


def test_several_constraints_are_dropped_at_once(agent):
    talk = Conversation(agent)
    first = talk.say("captions for videos in Python, MIT licence, at least 10 stars")
    turn = talk.say("drop the licence and the stars")
    assert turn.specification.constraints() == {"languages": ("Python",)}
    assert turn.specification.intent == first.specification.intent
    assert turn.message.startswith("I dropped: licence, stars.")
    assert talk.say("remove the language, licence and stars filters").specification.constraints() == {}


@pytest.mark.parametrize("message", MESSAGES["resets"])
def test_starting_over_is_meant(talk, message):
    before = talk.state
    turn = talk.say(message)
    assert (turn.kind, turn.message) == ("question", "What should the server help you do?")
    assert turn.specification.constraints() == {}
    assert turn.specification.intent == ""
    assert talk.say("undo").answer == before.answer
    assert talk.state == before


def test_it_is_the_server_that_was_spoken_of_last(talk):
    ids = talk.state.answer.ids
    assert talk.say("why 2").evidence[0].server_id == ids[1]
    assert talk.say("does it need an API key?").evidence[0].server_id == ids[1]
    assert talk.say("what about the licence of 3?").evidence[0].server_id == ids[2]
    assert talk.say("how do I run it?").evidence[0].server_id == ids[2]
    talk.say("at least 1 stars")
    assert talk.say("how do I run it?").evidence[0].server_id == talk.state.answer.ids[0]


def test_a_question_about_a_field_is_answered_with_the_field(agent):
    talk = Conversation(agent)
    talk.say("send mail in JavaScript")
    assert talk.state.answer.ids[0] == 15
    assert "The catalogue states no licence." in talk.say("what about the licence of 1?").message
    assert "languages: “JavaScript”" in talk.say("which language is 1 written in?").message
    assert "does not speak of an API key" not in talk.say("does it need an API key?").message
    talk.say("new task: plot charts in Python")
    assert talk.state.answer.ids[0] == 16
    assert "Its description does not speak of an API key." in talk.say("does it need an API key?").message


def test_a_place_that_is_not_there_is_a_note_in_a_reply_and_an_error_else(talk):
    for message, reason in (("compare 9 and 1", "no number 9"), ("why id 4233", "no server has the id 4233")):
        turn = talk.reply(message)
        assert turn.kind == "note"
        assert reason in turn.message.lower()
        with pytest.raises(NotThereError, match=reason):
            talk.say(message)


def test_undo_says_what_it_took_back(agent):
    talk = Conversation(agent)
    talk.say("captions for videos in Python")
    talk.say("MIT licence")
    talk.say("compare 1 and 2") if len(talk.state.answer.ids) > 1 else talk.say("why 1")
    assert talk.say("undo").message == "I took this back: “MIT licence”."
    talk.edit({"languages": ["Go"]})
    assert talk.say("undo").message == "I took this back: “the constraints as you set them”."
    assert "captions for videos in Python" in talk.say("undo").message


def test_a_respect_of_a_comparison_is_answered_from_the_data(agent):
    talk = Conversation(agent)
    answer = talk.say("fast subtitles and captions for videos in Go, TypeScript").answer
    assert set(answer.ids) == {11, 13, 17}
    places = [answer.ids.index(server) + 1 for server in (11, 17)]
    turn = talk.say(f"compare {places[0]} and {places[1]} for latency")
    assert "The own words of id 17 alone speak for latency." in turn.message
    assert any(claim.rule == "prefer_preference" for claim in turn.claims)
    turn = talk.say("compare 1, 2 and 3 for reliability")
    assert "The data says nothing about the reliability of any of them." in turn.message
    assert not any("reliability" in claim.text for claim in turn.claims)
    assert "latency" not in talk.say("compare 1 and 2").message
    assert turn.specification == talk.state.specification


SAYINGS = [message for message, _, _ in ABOUT]
SAYINGS += ["compare", "set up 2", "why", "no", "hello", "2 and 3?", "it", "???", "1 2 3"]


@given(st.lists(st.sampled_from(SAYINGS), max_size=6))
def test_no_chain_of_follow_ups_changes_the_answer(agent, messages):
    talk = Conversation(agent)
    talk.say(TASK)
    before = talk.state
    for message in messages:
        talk.reply(message)
        assert talk.state == before
