"""Answers: who is kept by the filters, how servers are scored, and what is said of them."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.advisor.agent import retrieval
from study.advisor.agent.agent import Agent
from study.advisor.agent.answer import answer_data
from study.advisor.agent.retrieval import RETRIEVERS, build_retriever
from study.advisor.agent.settings import Settings, read_conf
from study.advisor.agent.specification import Attributes, Specification, filter_servers, relaxed
from study.advisor.retrieval import field_dense
from study.config.compose import build_system, load
from study.data.dataset import TASK_FIELDS
from study.errors import StudyError
from tests.advisor.agent.messages import MESSAGES, stated

KEEP = {"language": False, "platform": True, "licence": False}
RANKED = np.arange(7)


@pytest.fixture(scope="module")
def filtered(data):
    attributes, ids = Attributes(data.servers), data.servers["id"].to_numpy()

    def run(spec, **changes):
        options = {"keep_unknown": KEEP, "pool": 4, "limits": {"listed": 2}} | changes
        kept, removals = filter_servers(spec, attributes, RANKED, ids, replace(read_conf(Settings), **options))
        return [int(server) for server in ids[kept]], {item.constraint: item for item in removals}

    return run


@pytest.mark.parametrize(("constraints", "kept"), MESSAGES["filters"])
def test_who_is_kept(filtered, constraints, kept):
    assert filtered(Specification(**stated(constraints)))[0] == kept


def test_what_a_filter_says(filtered):
    _, removals = filtered(Specification(languages=("Python",), stars=10))
    language = removals["language"]
    # Of the four best (11 to 14) the filter on Python removes 11 and 13; without it, stars alone leave 12, 13, 16.
    assert (language.removed, language.in_pool, language.best, language.left_without) == (4, 2, (11, 13), 3)
    assert language.wanted == "Python"
    assert removals["stars"].left_without == 3
    # Unknown values are kept or not as configured, and counted.
    kept, removals = filtered(Specification(platforms=("Linux",)))
    assert 11 in kept
    assert removals["platform"].unknown == 4
    kept, removals = filtered(Specification(platforms=("Linux",)), keep_unknown=KEEP | {"platform": False})
    assert (kept, removals["platform"].unknown) == ([12, 14], 0)
    # Relaxing names the constraint that frees most.
    kept, removals = filtered(Specification(languages=("Go",), official=True))
    assert kept == []
    assert relaxed(list(removals.values())) == [("official", 2), ("language", 1)]


@given(
    st.lists(st.sampled_from(["Python", "Go", "JavaScript", "C"]), max_size=3, unique=True),
    st.lists(st.sampled_from(["mit", "gpl-3.0", "apache-2.0"]), max_size=2, unique=True),
    st.integers(0, 130),
    st.booleans(),
)
def test_counts_agree_with_the_servers_kept(filtered, languages, licences, stars, official):
    parts = {"languages": tuple(languages), "licences": tuple(licences), "stars": stars, "official": official}
    kept, removals = filtered(Specification(**parts))
    meet = set(range(11, 18))
    for name, item in removals.items():
        field = {"language": "languages", "licence": "licences"}.get(name, name)
        single = set(filtered(Specification(**{field: parts[field]}))[0])
        assert item.removed == 7 - len(single)
        assert item.left_without >= len(kept)
        meet &= single
    assert sorted(meet) == kept


@pytest.fixture
def retriever(data, private_cache):
    return build_retriever("field_dense", data)


def test_best_scores_a_request_like_the_description_of_a_task(retriever, data):
    found = retriever.score(Specification("put captions under videos for Marketing", domain="Marketing"))
    system = build_system(load(["system=field_dense"]).system)
    system.index(data.servers)
    words = {"description": "put captions under videos for Marketing", "theme": "Marketing"}
    request = pd.DataFrame([dict.fromkeys(TASK_FIELDS, "") | words])
    assert np.allclose(found.total, system.score_requests(request)[0], atol=1e-4)  # without torch
    other = retriever.score(Specification("read a database"))
    assert not np.array_equal(found.total, other.total)


def test_the_parts_of_best_add_up_and_need_one_call_of_the_encoder(retriever, data, monkeypatch):
    calls = []
    encode = field_dense.encode
    monkeypatch.setattr(field_dense, "encode", lambda texts, **more: calls.append(len(texts)) or encode(texts, **more))
    found = retriever.score(Specification("summarise the transcripts of long videos", domain="Marketing"))
    assert len(calls) == 1
    assert list(found.parts) == ["semantic (all)", "semantic (description)", "template", "product"]
    assert np.allclose(sum(found.parts.values()), found.total, atol=1e-5)
    assert all(values.shape == (data.n_servers,) for values in found.parts.values())
    assert found.parts["semantic (all)"].std() > 0.1
    # The answer shows the same parts, and they add up there too.
    best = Agent(data, retriever=retriever).recommend(Specification("summarise videos", preferences=("privacy",)))
    for item in best.recommendations:
        scores = {name: value for name, value in item.evidence.scores.items() if name not in ("rank", "total")}
        assert {*found.parts, "preferences"} <= set(scores) <= {*found.parts, "preferences", "stars", "official"}
        assert sum(scores.values()) == pytest.approx(item.evidence.scores["total"], abs=5e-4)


def test_an_unknown_retriever_is_refused(data):
    with pytest.raises(StudyError, match="unknown retriever 'google'"):
        build_retriever("google", data)
    assert set(RETRIEVERS) == {"useful", "field_dense", "minilm", "tfidf", "t2mrec"}


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


@pytest.mark.parametrize(
    ("saved", "answers"),
    [(("field_dense", "field_dense_mpnet"), "field_dense_mpnet"), (("field_dense",), "field_dense")],
)
def test_the_saved_system_with_two_encoders_answers_before_the_smaller_one(data, monkeypatch, saved, answers):
    monkeypatch.setattr(retrieval, "_saved", lambda data, name: name if name in saved else None)
    monkeypatch.setattr(retrieval, "explain", lambda system, request: (system, {}))
    found = build_retriever("useful", data)
    assert (found.name, found.score(Specification(intent="read mail")).total) == (answers, answers)
    assert build_retriever("field_dense", data).name == "field_dense"  # what was asked for, whatever was saved
