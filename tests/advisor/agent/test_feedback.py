"""What developers did with recommendations: noted without the words of a request, unless the user keeps them."""

from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from study.advisor.agent.conversation import Agent
from study.advisor.engine.intent import feedback as module
from study.base.errors import StudyError
from study.cli import agent as cli

UNUSABLE = [("loved", ""), ("accepted", "x" * 2_001), ("'); DROP TABLE events; --", "")]


def add(store, kind, server, *, conversation="a", detail="", words=True, request="captions"):
    """Note what became of a server, which the answer to a request named."""
    answer = SimpleNamespace(request=request, items=[SimpleNamespace(server=server)])
    agent = SimpleNamespace(name=lambda server: server, catalogue=SimpleNamespace(system="words"))
    about = {"talk": conversation, "detail": detail, "words": words}
    return Agent.note(agent, store, SimpleNamespace(answer=answer), kind, server, **about)


def test_words_are_kept_only_where_the_user_says_so(feedback):
    assert [add(feedback, "accepted", 11), add(feedback, "failed", "o/x", words=False)] == [1, 2]
    with_words, without = feedback.events()
    assert (with_words.words, without.words) == ("captions", "")
    assert (without.kind, without.success, without.selected) == ("failed", False, "o/x")
    assert with_words.query == without.query
    assert "a" not in (with_words.agent, without.agent)
    assert b"captions" not in feedback.path.with_name("salt").read_bytes()
    # What another process adds is read, and what was read is not read again.
    add(module.FeedbackStore(feedback.path), "worked", 3)
    assert [event.selected for event in feedback.events()] == ["11", "o/x", "3"]


@pytest.mark.parametrize(("kind", "detail"), UNUSABLE)
def test_unusable_events_are_refused(feedback, kind, detail):
    with pytest.raises(StudyError):
        add(feedback, kind, 1, detail=detail)
    assert not feedback.events()
    # A hostile text is only a text.
    hostile = "'); DROP TABLE events; -- \x00 \ud800"
    add(feedback, "accepted", 1, request=hostile, conversation="\ud800", detail="\ud800'")
    assert len(feedback.events()) == 1


def test_outcomes_are_noted_in_the_terminal(feedback, monkeypatch, agent):
    monkeypatch.setattr(module, "feedback_of", lambda name: feedback)
    monkeypatch.setattr(cli, "_agent", lambda *given: agent)
    run, request = CliRunner().invoke, "captions for videos, in Go"
    for kind, server, more in (("accepted", 17, []), ("worked", 17, ["--keep-words"]), ("rejected", 13, [])):
        done = run(cli.app, ["ask", request, "--outcome", f"{kind}={server}", "--detail", "on my machine", *more])
        assert done.exit_code == 0, done.output
    found = [
        (event.kind, event.selected, event.shown.index(event.selected), event.words) for event in feedback.events()
    ]
    assert found == [("accepted", "17", 0, ""), ("worked", "17", 0, request), ("rejected", "13", 1, "")]
    for outcome in ("loved=17", "worked=11", "worked=999", "worked", "17"):
        with pytest.raises(StudyError):
            run(cli.app, ["ask", request, "--outcome", outcome], catch_exceptions=False)
    assert len(feedback.events()) == 3
