"""Answers: servers, reasons and scores."""

import json

import pytest

from study.agent.answer import answer_data
from study.agent.specification import Specification
from study.errors import StudyError

SPEC = Specification("captions for videos", languages=("Go",), preferences=("latency", "privacy"))


def test_the_answer_to_a_request(agent):
    answer = agent.recommend(SPEC)
    assert answer.ids[0] == 17
    best = answer.recommendations[0]
    why, tradeoffs, adoption = ([claim.text for claim in own] for own in (best.why, best.tradeoffs, best.adoption))
    assert "It is written in Go, as you asked." in why
    assert 'Its description mentions "captions" and "videos" of your request.' in why
    assert 'Its own words speak for what you prefer (latency: "fast").' in why
    assert "Its descriptive fields say nothing about privacy." in tradeoffs
    assert "The catalogue states no licence: ask before you use or change it." in tradeoffs
    assert "Get the code: git clone https://github.com/example/subtitle-fast" in adoption
    assert [(item.constraint, item.removed) for item in answer.removals] == [("language", 5)]
    assert (answer.kept, answer.checks.claims) == (2, 0)
    assert len(answer.claims()) > 10
    data = json.dumps(answer_data(answer, agent.settings.limits), allow_nan=False)
    assert [item["server_id"] for item in json.loads(data)["recommendations"]] == [17, 13]
    # Scores are made of their parts; one of two preferences is shown.
    scores, unit = best.evidence.scores, agent.rank(SPEC)[1].parts["lexical"].std()
    assert scores["preferences"] == pytest.approx(agent.settings.preference_weight * unit / 2, abs=1e-4)
    assert scores["total"] == pytest.approx(scores["lexical"] + scores["preferences"], abs=2e-4)


def test_nothing_left_says_what_to_drop(agent):
    answer = agent.recommend(Specification("captions", languages=("C",), official=True))
    assert answer.ids == []
    assert answer.relax == (("language", 1),)


@pytest.mark.parametrize("ids", [[11], [11, 11], [11, 999], list(range(11, 18))])
def test_a_comparison_needs_known_different_servers(agent, ids):
    with pytest.raises(StudyError):
        agent.compare(Specification("x"), ids)


@pytest.mark.parametrize(("task", "top", "reason"), [("x", 0, "outside"), ("x", 51, "outside"), (" ", 5, "nothing")])
def test_an_answer_needs_a_task_and_a_size(agent, task, top, reason):
    with pytest.raises(StudyError, match=reason):
        agent.recommend(Specification(task), top=top)
