"""Answers: servers, reasons and scores."""

import json

import pytest

from study.agent.answer import answer_data
from study.agent.specification import Specification
from study.errors import StudyError

SPEC = Specification("captions for videos", languages=("Go",), preferences=("latency", "privacy"))


def texts(claims):
    return [claim.text for claim in claims]


def test_the_answer_to_a_request(agent):
    answer = agent.recommend(SPEC)
    assert answer.ids[0] == 17
    best = answer.recommendations[0]
    assert "It is written in Go, as you asked." in texts(best.why)
    assert 'Its description mentions "captions" and "videos" of your request.' in texts(best.why)
    assert 'Its own words speak for what you prefer (latency: "fast").' in texts(best.why)
    assert "Its descriptive fields say nothing about privacy." in texts(best.tradeoffs)
    assert "The catalogue states no licence: ask before you use or change it." in texts(best.tradeoffs)
    assert "Get the code: git clone https://github.com/example/subtitle-fast" in texts(best.adoption)
    assert [(item.constraint, item.removed) for item in answer.removals] == [("language", 5)]
    assert (answer.kept, answer.checks.claims) == (2, 0)
    assert len(answer.claims()) > 10
    data = json.dumps(answer_data(answer, agent.settings.limits), allow_nan=False)
    assert [item["server_id"] for item in json.loads(data)["recommendations"]] == [17, 13]


def test_scores_are_made_of_their_parts(agent):
    best = agent.recommend(SPEC).recommendations[0].evidence.scores
    unit = agent.rank(SPEC)[1].parts["lexical"].std()  # one of two preferences is shown
    assert best["preferences"] == pytest.approx(agent.settings.preference_weight * unit / 2, abs=1e-4)
    assert best["total"] == pytest.approx(best["lexical"] + best["preferences"], abs=2e-4)


def test_nothing_left_says_what_to_drop(agent):
    answer = agent.recommend(Specification("captions", languages=("C",), official=True))
    assert answer.ids == []
    assert answer.relax == (("language", 1),)


@pytest.mark.parametrize("ids", [[11], [11, 11], [11, 999], list(range(11, 18))])
def test_a_comparison_needs_known_different_servers(agent, ids):
    with pytest.raises(StudyError):
        agent.compare(Specification("x"), ids)


@pytest.mark.parametrize(
    ("spec", "top", "reason"), [(SPEC, 0, "outside"), (SPEC, 51, "outside"), (Specification(" "), 5, "nothing")]
)
def test_an_answer_needs_a_task_and_a_size(agent, spec, top, reason):
    with pytest.raises(StudyError, match=reason):
        agent.recommend(spec, top=top)
