"""What developers did with recommendations: noted without the words of a request, unless the user keeps them."""

from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from study.advisor.agent.conversation import Agent
from study.advisor.engine.intent import feedback as module
from study.base.errors import StudyError
from study.cli import agent as cli


def add(store, kind, server, *, words=True, request="captions"):
    """Note what became of a server, which the answer to a request named."""
    answer = SimpleNamespace(request=request, items=[SimpleNamespace(server=server)])
    agent = SimpleNamespace(name=lambda server: server, catalogue=SimpleNamespace(system="words"))
    about = {"talk": "a conversation \ud800", "detail": "\ud800'", "words": words}
    return Agent.note(agent, store, SimpleNamespace(answer=answer), kind, server, **about)


def test_words_are_kept_only_where_the_user_says_so(feedback):
    assert [add(feedback, "accepted", 11), add(feedback, "failed", "o/x", words=False)] == [1, 2]
    with_words, without = feedback.events()
    assert (with_words.words, without.words) == ("captions", "")
    assert (without.kind, without.success, without.selected) == ("failed", False, "o/x")
    assert with_words.query == without.query
    assert not any("conversation" in event.agent for event in (with_words, without))
    assert b"captions" not in feedback.path.with_name("salt").read_bytes()
    # What another process adds is read, and what was read is not read again.
    add(module.FeedbackStore(feedback.path), "worked", 3)
    assert [event.selected for event in feedback.events()] == ["11", "o/x", "3"]
    add(feedback, "accepted", 1, request="a hostile text is only a text \x00 \ud800")
    with pytest.raises(StudyError):
        add(feedback, "'); DROP TABLE events; --", 1)
    assert len(feedback.events()) == 4


def test_outcomes_are_noted_in_the_terminal(feedback, monkeypatch, agent):
    monkeypatch.setattr(module, "feedback_of", lambda name: feedback)
    monkeypatch.setattr(cli, "_agent", lambda *given: agent)
    run, request = CliRunner().invoke, "captions for videos, in Go"
    for kind, server, more in (("accepted", 17, []), ("worked", 17, ["--keep-words"]), ("rejected", 13, [])):
        done = run(cli.app, ["ask", request, "--outcome", f"{kind}={server}", "--detail", "on my machine", *more])
        assert done.exit_code == 0, done.output
    noted = [
        (event.kind, event.selected, event.shown.index(event.selected), event.words) for event in feedback.events()
    ]
    assert noted == [("accepted", "17", 0, ""), ("worked", "17", 0, request), ("rejected", "13", 1, "")]
    for outcome in ("loved=17", "worked=11", "worked=999", "worked", "17"):
        with pytest.raises(StudyError):
            run(cli.app, ["ask", request, "--outcome", outcome], catch_exceptions=False)
    assert len(feedback.events()) == 3
