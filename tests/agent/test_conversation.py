"""Conversations: one question, refinement, comparison, set-up, undo."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from study.agent.commands import mentioned
from study.agent.conversation import Conversation
from study.errors import StudyError
from tests.agent.messages import MESSAGES


@pytest.fixture
def talk(agent):
    return Conversation(agent)


def test_an_essential_constraint_is_asked_for_once(talk):
    question = talk.say("captions for videos")
    assert question.kind == "question"
    assert "language" in question.message
    assert question.options == ("Python", "Go", "JavaScript", "TypeScript")
    assert talk.say("Go").answer.ids == [17, 13]
    # Another task in the same conversation is answered without a second question.
    assert talk.say("drop the language").kind == "answer"
    assert talk.say("query a postgres database with transactions").kind == "answer"


@pytest.mark.parametrize("reply", MESSAGES["any_language"])
def test_the_question_can_be_left_open(talk, reply):
    talk.say("captions for videos")
    answer = talk.say(reply)
    assert answer.kind == "answer"
    assert answer.specification.open == ("language",)
    assert answer.message.startswith("Any language will do.")
    assert answer.answer.ids[0] in (11, 17)


@pytest.mark.parametrize("message", MESSAGES["new_tasks"])
@pytest.mark.parametrize("earlier", ["captions for videos in Python, at least 1 stars", None])
def test_a_new_task_is_no_command(agent, message, earlier):
    talk = Conversation(agent)
    if earlier:
        talk.say(earlier)
    turn = talk.say(message)
    assert turn.kind in ("question", "answer")
    assert turn.specification.intent == message
    assert "dropped" not in turn.message


@pytest.mark.parametrize(("message", "kind"), MESSAGES["commands"])
def test_commands_about_the_last_answer(agent, message, kind):
    talk = Conversation(agent)
    first = talk.say("captions for videos in Python, at least 1 stars")
    turn = talk.say(message)
    assert turn.kind == kind
    if kind not in ("note", "answer"):
        assert turn.specification == first.specification
    if "language" in message:
        assert turn.specification.languages == ()
        assert turn.specification.intent == first.specification.intent


def test_the_servers_of_a_command_are_those_that_are_named(talk):
    ids = talk.say("captions for videos in Python, Go or TypeScript").answer.ids
    compared = [item.server_id for item in talk.say("compare the top 3").evidence]
    assert compared == ids[:3]
    assert [item.server_id for item in talk.say("1 vs 3").evidence] == [ids[0], ids[2]]
    assert talk.say("how can I use the second with Claude Desktop?").evidence[0].server_id == ids[1]


def test_a_largest_number_of_stars_is_refused_and_changes_nothing(talk):
    first = talk.say("captions for videos in Python, at least 10 stars")
    for message in ("fewer than 100 stars", "no more than 100 stars", "at most 100 stars"):
        turn = talk.say(message)
        assert turn.kind == "note"
        assert "only a least number" in turn.message
        assert talk.state.answer == first.answer
    turn = talk.say("plot charts from tables, less than 5 stars")
    assert '"less than 5 stars"' in turn.message
    assert turn.specification.stars == 10


def test_a_language_left_open_in_the_request_is_not_asked_for(talk):
    turn = talk.say("captions for videos, in any language")
    assert turn.kind == "answer"
    assert turn.specification.open == ("language",)
    narrowed = talk.say("in Go")
    assert (narrowed.specification.languages, narrowed.specification.open) == (("Go",), ())
    again = talk.say("in any programming language")
    assert (again.specification.languages, again.specification.open) == ((), ("language",))
    assert again.specification.intent == turn.specification.intent


def test_answers_are_numbered_and_kept_for_those_who_still_see_them(talk):
    first = talk.say("captions for videos in Go")
    second = talk.say("MIT licence, Python")
    assert (first.number, second.number) == (1, 2)
    assert talk.say("set up 1").number == 2
    assert talk.say("undo").number == 1
    third = talk.say("or TypeScript")
    assert third.number == 3
    assert talk.answered(2, second.answer.ids[0]) == second.answer
    assert talk.answered(1, 17) == first.answer
    with pytest.raises(StudyError, match="not in answer 2"):
        talk.answered(2, 17)
    with pytest.raises(StudyError, match="answer 4 is not kept"):
        talk.answered(4, 17)


def test_kept_answers_are_bounded(talk):
    most = talk.agent.settings.limits["history"]
    talk.say("captions for videos in Go")
    for stars in range(1, most + 3):
        talk.say(f"at least {stars} stars")
    assert len(talk.answers) == most
    with pytest.raises(StudyError, match="not kept"):
        talk.answered(1, 17)


def test_a_reply_that_names_nothing_known_is_said_so(talk):
    talk.say("captions for videos")
    answer = talk.say("Klingon")
    assert "known are" in answer.message
    assert answer.answer.ids[0] in (11, 17)


def test_a_new_task_may_take_the_questions_place(talk):
    talk.say("captions for videos")
    assert talk.say("query postgres database plan").answer.ids[:2] == [13, 14]


def test_a_greeting_is_no_task(talk):
    turn = talk.say("Hello!")
    assert (turn.kind, turn.message) == ("question", "What should the server help you do?")
    assert talk.say("captions for videos in Go").answer.ids == [17, 13]


def test_constraints_before_a_task_are_kept(talk):
    assert talk.say("Python please").kind == "question"
    answer = talk.say("plot charts from tables")
    assert answer.specification.languages == ("Python",)
    assert answer.answer.ids[0] == 16


def test_refinement_comparison_setup_and_undo(talk):
    first = talk.say("captions for videos in Go")
    second = talk.say("or TypeScript")
    assert second.specification.languages == ("Go", "TypeScript")
    assert set(second.answer.ids) == {11, 13, 17}
    third = talk.say("MIT licence")
    assert third.answer.ids == [11]
    assert third.answer.relax == (("licence", 3), ("language", 2))
    assert talk.say("drop the licence").answer.ids == second.answer.ids
    compared = talk.say("compare 1 and 2")
    assert [item.server_id for item in compared.evidence] == second.answer.ids[:2]
    assert talk.say("compare id 12 and 16").evidence[0].server_id == 12
    steps = talk.say("how do I set up the second?")
    assert steps.kind == "setup"
    assert {claim.section for claim in steps.claims} == {"adoption"}
    assert steps.evidence[0].server_id == second.answer.ids[1]
    assert talk.say("why 1").evidence[0].server_id == second.answer.ids[0]
    assert talk.say("undo").answer == third.answer
    assert talk.say("undo").answer == second.answer
    assert talk.say("undo").answer == first.answer
    assert talk.say("undo").kind == "note"
    assert talk.say("undo").message == "There is nothing to take back."


def test_an_addition_widens_the_task(talk):
    talk.say("captions for videos in Python")
    turn = talk.say("also summarise transcripts in short sentences")
    assert turn.specification.intent == "captions for videos in Python; also summarise transcripts in short sentences"
    assert turn.answer.ids[0] == 12


def test_starting_over_forgets_the_constraints(talk):
    talk.say("captions for videos in Go, MIT licence")
    turn = talk.say("new task: query a postgres database")
    assert turn.specification.intent == "query a postgres database"
    assert turn.specification.constraints() == {}


def test_chips_set_every_constraint_and_keep_the_task(talk):
    talk.say("captions for videos in Go")
    turn = talk.edit({"languages": ["python"], "official": True})
    assert turn.specification.intent == "captions for videos in Go"
    assert turn.answer.ids == [12]
    with pytest.raises(StudyError, match="unknown language"):
        talk.edit({"languages": ["Klingon"]})
    assert talk.say("undo").answer.ids == [17, 13]


@pytest.mark.parametrize("message", ["", "   ", "x" * 20_001])
def test_impossible_messages_change_nothing(talk, message):
    talk.say("captions for videos in Go")
    before = talk.state
    with pytest.raises(StudyError):
        talk.say(message)
    assert talk.state == before


def test_places_outside_the_answer_are_refused(talk):
    talk.say("captions for videos in Go")
    with pytest.raises(StudyError, match="no number 9"):
        talk.say("compare 1 and 9")
    with pytest.raises(StudyError, match="no server has the id 999"):
        talk.say("compare id 11 and 999")


@pytest.mark.parametrize(("text", "places", "ids"), MESSAGES["places"])
def test_places_and_ids_in_words(text, places, ids):
    assert mentioned(text) == (tuple(places), tuple(ids))


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
