"""Conversations: what is said after an answer is about it unless it is surely a new task; nothing destroys the task."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from study.advisor.agent.commands import mentioned
from study.advisor.agent.conversation import Conversation, NotThereError
from study.errors import StudyError
from tests.advisor.agent.messages import MESSAGES, stated

TASK = "captions for videos in Python, Go or TypeScript"
ABOUT = MESSAGES["follow_ups"]
SAYINGS = ["compare", "set up 2", "why", "no", "hello", "2 and 3?", "it", "???", "1 2 3", *(row[0] for row in ABOUT)]
ABSENT = {"compare 9 and 1": "no number 9", "why id 4233": "id 4233", "compare id 11 and 999": "id 999"}


@pytest.fixture
def talk(agent):
    return Conversation(agent)


@pytest.fixture
def answered(talk):
    """A conversation with an answer."""
    talk.say(TASK)
    return talk


def holds(turn):
    """What the talks of ``messages.yaml`` may expect of a turn."""
    answer, spec = turn.answer, turn.specification
    found = {"kind": turn.kind, "number": turn.number, "options": list(turn.options), "ids": answer and answer.ids}
    found |= {"shown": [item.server_id for item in turn.evidence], "open": list(spec.open), "intent": spec.intent}
    relax = answer and [list(entry) for entry in answer.relax]
    return found | {"constraints": spec.constraints(), "relax": relax}


@pytest.mark.parametrize("steps", MESSAGES["talks"].values(), ids=MESSAGES["talks"])
def test_a_talk(talk, steps):
    for message, expected in steps:
        turn = talk.reply(message)
        found = holds(turn)
        assert expected.keys() <= {"says", "silent", "rule", *found}
        assert expected.get("says", "") in turn.message
        assert expected.get("silent", "nothing of the kind") not in turn.message
        assert expected.get("rule") in {None, *(claim.rule for claim in turn.claims)}
        for name in expected.keys() & found.keys():
            wanted = stated(expected[name]) if name == "constraints" else expected[name]
            assert found[name] == wanted, (message, name)


@pytest.mark.parametrize("reply", MESSAGES["any_language"])
def test_the_question_can_be_left_open(talk, reply):
    talk.say("captions for videos")
    answer = talk.say(reply)
    assert answer.kind == "answer"
    assert answer.specification.open == ("language",)
    assert answer.message.startswith("Any language will do.")
    assert answer.answer.ids[0] in (11, 17)


@pytest.mark.parametrize("message", [*MESSAGES["new_tasks"], *MESSAGES["tasks_after_an_answer"]])
@pytest.mark.parametrize("earlier", [f"{TASK}, at least 1 stars", None])
def test_a_new_task_is_no_command(talk, message, earlier):
    if earlier:
        talk.say(earlier)
    turn = talk.say(message)
    assert turn.kind in ("question", "answer")
    assert turn.specification.intent == message
    assert "dropped" not in turn.message


@pytest.mark.parametrize(("message", "kind"), MESSAGES["commands"])
def test_commands_about_the_last_answer(talk, message, kind):
    first = talk.say("captions for videos in Python, at least 1 stars")
    turn = talk.say(message)
    assert turn.kind == kind
    if kind not in ("note", "answer"):
        assert turn.specification == first.specification
    if "language" in message:
        assert turn.specification.languages == ()
        assert turn.specification.intent == first.specification.intent


@pytest.mark.parametrize(("message", "kind", "places"), ABOUT, ids=[message for message, _, _ in ABOUT])
def test_what_follows_an_answer_keeps_the_task(answered, message, kind, places):
    before = answered.state
    turn = answered.reply(message)
    assert turn.kind == (kind or "note")
    assert answered.state == before
    assert turn.specification == before.specification
    if places is not None:
        assert holds(turn)["shown"] == [before.answer.ids[place - 1] for place in places]


@pytest.mark.parametrize(("message", "constraints"), MESSAGES["changes"])
def test_a_constraint_alone_refines(answered, message, constraints):
    turn = answered.say(message)
    assert (turn.kind, turn.specification.intent) == ("answer", TASK)
    assert turn.specification.constraints() == stated(constraints)


@pytest.mark.parametrize("message", MESSAGES["resets"])
def test_starting_over_is_meant(answered, message):
    before = answered.state
    turn = answered.say(message)
    assert (turn.kind, turn.message) == ("question", "What should the server help you do?")
    assert turn.specification.constraints() == {}
    assert turn.specification.intent == ""
    assert answered.say("undo").answer == before.answer
    assert answered.state == before


@pytest.mark.parametrize("message", ["popular and maintained", "more popular ones please"])
def test_a_wish_alone_is_about_the_same_task(answered, message):
    before = answered.state.specification
    turn = answered.say(message)
    assert turn.kind == "answer"
    assert turn.specification.intent == f"{before.intent}, " + (
        "popular, maintained" if "maint" in message else "popular"
    )
    assert turn.specification.constraints() == before.constraints()


@pytest.mark.parametrize(("message", "reason"), ABSENT.items())
def test_a_place_that_is_not_there_is_a_note_in_a_reply_and_an_error_else(answered, message, reason):
    turn = answered.reply(message)
    assert turn.kind == "note"
    assert reason in turn.message
    with pytest.raises(NotThereError, match=reason):
        answered.say(message)


@pytest.mark.parametrize("message", ["", "   ", "x" * 20_001])
def test_impossible_messages_change_nothing(answered, message):
    before = answered.state
    with pytest.raises(StudyError):
        answered.say(message)
    assert answered.state == before


def test_chips_set_every_constraint_and_keep_the_task(talk):
    talk.say("captions for videos in Go")
    turn = talk.edit({"languages": ["python"], "official": True})
    assert turn.specification.intent == "captions for videos in Go"
    assert turn.answer.ids == [12]
    with pytest.raises(StudyError, match="unknown language"):
        talk.edit({"languages": ["Klingon"]})
    back = talk.say("undo")
    assert back.message == "I took this back: “the constraints as you set them”."
    assert back.answer.ids == [17, 13]


def test_answers_are_kept_for_those_who_still_see_them(talk):
    first, second = talk.say("captions for videos in Go"), talk.say("MIT licence, Python")
    talk.say("undo")
    assert talk.say("or TypeScript").number == 3
    assert talk.answered(2, second.answer.ids[0]) == second.answer
    assert talk.answered(1, 17) == first.answer
    with pytest.raises(StudyError, match="not in answer 2"):
        talk.answered(2, 17)
    with pytest.raises(StudyError, match="answer 4 is not kept"):
        talk.answered(4, 17)
    most = talk.agent.settings.limits["history"]
    for stars in range(1, most):
        talk.say(f"at least {stars} stars")
    assert len(talk.answers) == most
    with pytest.raises(StudyError, match="not kept"):
        talk.answered(1, 17)


@settings(max_examples=60)
@given(st.lists(st.sampled_from([*MESSAGES["steps"], "undo"]), max_size=12))
def test_undo_takes_every_step_back(agent, steps):
    talk, states = Conversation(agent), []
    for message in steps:
        before = talk.state
        try:
            turn = talk.say(message)
        except StudyError:
            assert talk.state == before
            continue
        if turn.answer is not None:
            assert len(set(turn.answer.ids)) == len(turn.answer.ids)
            assert turn.answer.checks.removed == 0
        if message == "undo":
            assert talk.state == (states.pop() if states else before)
        elif talk.state is not before:
            states.append(before)
    while states:
        talk.say("undo")
        assert talk.state == states.pop()


@given(st.lists(st.sampled_from(SAYINGS), max_size=6))
def test_no_chain_of_follow_ups_changes_the_answer(agent, messages):
    talk = Conversation(agent)
    talk.say(TASK)
    before = talk.state
    for message in messages:
        talk.reply(message)
        assert talk.state == before


@pytest.mark.parametrize(("text", "places", "ids"), MESSAGES["places"])
def test_places_and_ids_in_words(text, places, ids):
    assert mentioned(text) == (tuple(places), tuple(ids))


@pytest.mark.parametrize("message", ["thanks", "Thank you very much!", "great, thanks", "cheers"])
def test_thanks_are_no_task_and_no_error(agent, message):
    talk = Conversation(agent)
    answer = talk.say("captions for videos in Go").answer
    turn = talk.say(message)
    assert (turn.kind, turn.number) == ("note", 1)
    assert talk.state.answer is answer
    assert talk.say("send thank you cards to all customers").kind == "answer"


def test_a_configuration_is_asked_for_in_words(agent):
    talk = Conversation(agent)
    talk.say("captions for videos in Go")
    turn = talk.say("give me the config for 1")
    assert (turn.kind, turn.config) == ("setup", "")
    assert "study catalog sync" in turn.message  # nothing was synced that could say how
