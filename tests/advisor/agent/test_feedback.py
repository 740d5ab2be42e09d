"""What developers did with recommendations: noted without the words of a request, and made into training pairs."""

from types import SimpleNamespace

import pandas as pd
import pytest
from typer.testing import CliRunner

from study.advisor.agent.feedback import note, training_pairs
from study.advisor.agent.specification import Specification
from study.advisor.engine.intent import feedback as module
from study.cli import agent as cli
from study.errors import StudyError

PAIR = ["intent", "positive_id", "negative_id"]
UNUSABLE = [("loved", ""), ("accepted", "x" * 2_001), ("'); DROP TABLE events; --", "")]


def add(store, kind, server, *, conversation="a", detail="", words=True, intent="captions", languages=("Go",)):
    answer = SimpleNamespace(ids=[server], system="tfidf", specification=Specification(intent, languages=languages))
    return note(store, answer, kind, server, conversation=conversation, detail=detail, words=words)


def test_words_are_kept_only_where_the_user_says_so(feedback):
    assert [add(feedback, "accepted", 11), add(feedback, "failed", 12, words=False)] == [1, 2]
    with_words, without = feedback.events()
    assert '"languages": ["Go"]' in with_words.words
    assert (without.words, without.kind, without.success, without.selected) == ("", "failed", False, "12")
    assert with_words.query == without.query
    assert "a" not in (with_words.agent, without.agent)
    assert b"captions" not in feedback.path.with_name("salt").read_bytes()


@pytest.mark.parametrize(("kind", "detail"), UNUSABLE)
def test_unusable_events_are_refused(feedback, kind, detail):
    with pytest.raises(StudyError):
        add(feedback, kind, 1, detail=detail)
    assert not feedback.events()
    # A hostile text is only a text.
    add(
        feedback, "accepted", 1, intent="'); DROP TABLE events; -- \x00 \ud800", conversation="\ud800", detail="\ud800'"
    )
    assert len(feedback.events()) == 1


def test_training_pairs_by_hand(feedback):
    for kind, server in [("accepted", 11), ("rejected", 12), ("rejected", 13), ("accepted", 13), ("rejected", 14)]:
        add(feedback, kind, server)
    add(feedback, "worked", 16, intent="charts", languages=())
    add(feedback, "rejected", 17, conversation="b")
    add(feedback, "accepted", 18, intent="secret", words=False)
    pairs = training_pairs(feedback.events())
    expected = [["captions", good, bad] for good in (11, 13) for bad in (12, 14)]
    assert pairs[PAIR].to_numpy().tolist() == [*expected, ["charts", 16, -1], ["", 18, -1]]
    assert set(pairs["language"]) == {"Go", ""}
    assert pairs["request"].nunique() == 3
    assert training_pairs([]).empty


def test_export(tmp_path, feedback, monkeypatch):
    add(feedback, "accepted", 11)
    monkeypatch.setattr(module, "feedback_of", lambda dataset: feedback)

    def export(target, *words):
        words = ["export", str(target), "--dataset", "synthetic", *words]
        CliRunner().invoke(cli.app, words, catch_exceptions=False)
        return target

    assert list(pd.read_parquet(export(tmp_path / "pairs.parquet"))["positive_id"]) == [11]
    assert list(pd.read_json(export(tmp_path / "pairs.jsonl"), lines=True)["positive_id"]) == [11]
    assert list(pd.read_json(export(tmp_path / "events.jsonl", "--events"), lines=True)["selected"]) == [11]
    with pytest.raises(StudyError, match="unknown kind of file"):
        export(tmp_path / "pairs.csv")


def test_outcomes_are_noted_in_the_terminal(feedback, monkeypatch, agent):
    monkeypatch.setattr(module, "feedback_of", lambda dataset: feedback)
    monkeypatch.setattr(cli, "_agent", lambda dataset, retriever: agent)
    run = CliRunner().invoke
    request = "captions for videos in Go"
    for kind, server, more in (("accepted", 17, []), ("worked", 17, ["--keep-words"]), ("rejected", 13, [])):
        done = run(cli.app, ["ask", request, "--outcome", f"{kind}={server}", "--detail", "on my machine", *more])
        assert done.exit_code == 0, done.output
    events = feedback.events()
    found = [(event.kind, event.selected, event.shown.index(event.selected)) for event in events]
    assert found == [("accepted", "17", 0), ("worked", "17", 0), ("rejected", "13", 1)]
    assert [bool(event.words) for event in events] == [False, True, False]
    assert {event.detail for event in events} == {"on my machine"}
    assert training_pairs(events)[PAIR].to_numpy().tolist() == [[request, 17, 13]]
    for outcome in ("loved=17", "worked=11", "worked=999", "worked", "17"):
        with pytest.raises(StudyError):
            run(cli.app, ["ask", request, "--outcome", outcome], catch_exceptions=False)
    assert len(feedback.events()) == 3
