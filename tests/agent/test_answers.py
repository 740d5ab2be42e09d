"""Answers: servers, reasons and scores; a language model's sentences without support are removed and counted."""

import json
from dataclasses import replace

import pytest

from study.agent import checks
from study.agent.claims import Claim
from study.agent.presentation import answer_data
from study.agent.specification import Specification
from study.errors import StudyError

SPEC = Specification("captions for videos", languages=("Go",), preferences=("latency", "privacy"))
SHARE = 0.6


def texts(claims):
    return [claim.text for claim in claims]


@pytest.fixture
def answer(agent):
    return agent.recommend(replace(SPEC, languages=()))


@pytest.fixture
def context(agent, answer):
    ranked, scores = agent.rank(answer.specification)
    return agent.context(answer.specification, answer.ids, ranked, scores)


def test_the_answer_to_a_request(agent):
    answer = agent.recommend(SPEC)
    assert answer.ids[0] == 17
    best = answer.recommendations[0]
    assert "It is written in Go, as you asked." in texts(best.why)
    assert 'Its name and description mention "captions" and "videos" of your request.' not in texts(best.why)
    assert 'Its description mentions "captions" and "videos" of your request.' in texts(best.why)
    assert 'Its own words speak for what you prefer (latency: "fast").' in texts(best.why)
    assert "Its descriptive fields say nothing about privacy." in texts(best.tradeoffs)
    assert "The catalogue states no licence: ask before you use or change it." in texts(best.tradeoffs)
    assert "Get the code: git clone https://github.com/example/subtitle-fast" in texts(best.adoption)
    assert [(item.constraint, item.removed) for item in answer.removals] == [("language", 5)]
    assert answer.kept == 2
    assert answer.checks.claims == 0
    assert len(answer.claims()) > 10


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


@pytest.mark.parametrize("change", [{"top": 0}, {"top": 51}])
def test_the_size_of_an_answer_has_bounds(agent, change):
    with pytest.raises(StudyError, match="outside"):
        agent.recommend(SPEC, **change)


def of_model(answer, *sentences):
    """The answer with these sentences of a language model as the reasons for each server: (text, fields)."""
    items = [
        replace(item, why=tuple(Claim("why", "llm", text, (item.server_id,), fields) for text, fields in sentences))
        for item in answer.recommendations
    ]
    return replace(answer, recommendations=tuple(items))


def checked(agent, worded, rules, context):
    return checks.checked(worded, rules, context, agent.vocabulary, top=5, share=SHARE)


def test_untrue_sentences_are_removed_and_a_server_without_reasons_gets_those_of_the_rules(agent, answer, context):
    worded = of_model(answer, ("Captions for videos.", ("description",)), ("Trusted by 9000 teams.", ("name",)))
    result = checked(agent, worded, answer, context)
    assert not result.checks.fallback
    assert result.checks.claims == sum(len(item.why) + len(item.tradeoffs) for item in worded.recommendations)
    for item, by_rules in zip(result.recommendations, answer.recommendations, strict=True):
        kept = [claim.text for claim in item.why if claim.rule == "llm"]
        assert kept == (["Captions for videos."] if item.server_id in (11, 17) else [])
        assert kept or item.why == by_rules.why
        assert item.adoption == by_rules.adoption


@pytest.mark.parametrize("spoil", ["order", "stranger", "missing", "evidence", "reasonless"])
def test_a_wrong_answer_falls_back_to_the_rules(agent, answer, context, spoil):
    items = answer.recommendations
    wrong = {
        "order": (items[1], items[0], *items[2:]),
        "stranger": (replace(items[0], server_id=999), *items[1:]),
        "missing": items[1:],
        "evidence": (replace(items[0], evidence=items[1].evidence), *items[1:]),
        "reasonless": (replace(items[0], adoption=()), *items[1:]),
    }[spoil]
    result = checked(agent, replace(answer, recommendations=wrong), answer, context)
    assert result.checks.fallback
    assert result.checks.problems
    assert result.recommendations == items


TRUE = [
    ("Captions for videos without an API key.", ["description"]),
    ("A caption writer, captions for videos.", ["name", "description"]),
]
UNTRUE = [
    ("Captions for videos, 500 users.", ["description"]),
    ("Captions for videos in Python.", ["description"]),
    ("The best captions for videos.", ["description"]),
    ("Captions for videos, see https://evil.example.", ["description"]),
    ("Captions for <b>videos</b>.", ["description"]),
    ("Translates podcasts into forty tongues.", ["description"]),
    ("Captions for videos.", ["tools"]),  # an empty field
    ("Captions for videos.", ["no_such_field"]),
    ("Captions for videos.", []),
    ("Captions for videos, never loses data.", ["description"]),
    ("", ["description"]),
    ("It requires an API key.", ["description"]),
    ("Captions for videos, with an API key.", ["description"]),
    ("Captions without videos or an API key.", ["description"]),
]


@pytest.mark.parametrize(("text", "fields"), TRUE + UNTRUE)
def test_a_model_may_say_only_what_the_cited_fields_hold(agent, context, text, fields):
    claim = Claim("why", "llm", text, (11,), tuple(fields))
    assert checks.truthful(claim, context, agent.vocabulary, SHARE) == ((text, fields) in TRUE)


def test_an_answer_is_json_without_nan(agent):
    data = answer_data(agent.recommend(SPEC), agent.settings.limits)
    text = json.dumps(data, allow_nan=False)
    assert [item["server_id"] for item in json.loads(text)["recommendations"]] == [17, 13]
