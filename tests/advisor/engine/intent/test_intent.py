"""Intent-based ranking: analysis, signals, factors, filters, rate limits, cache, sessions."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from study.advisor.engine.intent import feedback, settings
from study.advisor.engine.intent import recommender as answers
from study.advisor.engine.intent.feedback import Event, FeedbackStore, statistics
from study.advisor.engine.intent.recommender import PAIRS, Chains, Context, Requirements, SignalIndex, assign
from study.advisor.engine.intent.settings import FACTORS, Limit, Sessions
from study.base.errors import StudyError

SET = settings.intent_settings()
CONTROL = SET.variants["control"]
READ = [("I want to find where a Python function is defined", {"python"}, False, "find", "code", "python")]
READ += [("I need to test login functionality in a web app", {"login"}, False, "test", "web test", "login")]
READ += [("find find a CSV", (), False, "find", "data", ""), ("", (), False, "", "", "")]
# Defects of the design.
READ += [("the latest capital", (), False, "", "", "")]
READ += [("the latest capital", (), True, "", "documentation test", "")]
READ += [("Verify, then (check)!", (), False, "verify check", "test", "")]
READ += [("Verify, then (check)!", (), True, "", "test", ""), ("verify it", (), True, "verify", "test", "")]


@pytest.mark.parametrize(("query", "vocabulary", "designed", "verbs", "domains", "terms"), READ)
def test_examples_and_defects_of_the_analysis(query, vocabulary, designed, verbs, domains, terms):
    read = {name: " ".join(words) for name, words in answers.analyse(query, SET, vocabulary, designed).items()}
    assert read == {"domain": domains, "verb": verbs, "term": terms}


@given(st.text(max_size=200), st.sampled_from([False, True]))
def test_analysis_is_total_and_without_repeats(query, designed):
    assert all(len(set(words)) == len(words) for words in answers.analyse(query, SET, {"a"}, designed).values())


def test_signals_of_the_catalogue(catalog):
    index = SignalIndex(catalog, replace(SET, ranking=replace(SET.ranking, common_term=0.5)))
    # "file" names three of five tools, "path" two: more and less than the allowed half.
    assert index.vocabulary == {"read", "write", "path", "text", "send", "route"}
    intent, relevance = index.read("read the path of a file"), np.array([0.1, 0.2, 0.9, 0.3, 0.4], np.float32)
    expected = {"domain": [0, 1, 3], "verb": [0], "term": [0, 1], "semantic": [2, 4]}
    assert index.named(intent, relevance, 2) == expected
    # With meaning naming all five, tool 0 is named four times, 1 three times, 3 twice; of the rest 2 is more relevant.
    assert index.candidates(intent, relevance).tolist() == [0, 1, 3, 2, 4]
    # Equal counts go by relevance, or by the first signal.
    named, order = [3, 1, 2, 2], np.arange(4)
    for designed, ranked in ((False, [2, 1, 3]), (True, [2, 3, 1])):
        assert answers.most_named(named, np.array([0, 0.9, 0.1, 0.5]), order, 9, designed).tolist() == ranked


def past(**columns):
    return replace(feedback.empty(3), **{name: np.array(values, float) for name, values in columns.items()})


USED, RATE = past(calls=[10, 2, 0], successes=[5, 2, 0]), 7 / 12
RATED = past(latency_ms=[200, 9000, 0], timed=[4, 3, 0], rating=[10, 0, 0], rated=[2, 1, 0])
AGENT = {"a": (np.array([2.0, 0, 0]), np.array([2.0, 0, 0]))}
KNOWN = replace(past(calls=[8, 4, 0], last_used=[0, 0, np.nan]), agents=AGENT)
DESIGNED = {"designed": True}
BY_HAND = [("success_rate", USED, {}, [(5 + 2 * RATE) / 12, (2 + 2 * RATE) / 4, RATE])]
BY_HAND += [("success_rate", USED, DESIGNED, [0.5, 1, 0]), ("success_rate", past(), {}, [0.5] * 3)]
# Tool 0: the most used, half decayed, bias 0.5 + (2 + 1) / 4 = 1.25; tool 1: half as much, bias 1.
BY_HAND += [("popularity", KNOWN, {"now": 30 * answers.DAY, "agent": "a"}, [0.625, 0.25, 0])]
BY_HAND += [("popularity", KNOWN, {"agent": "a"}, [1, 0.5, 0])]
BY_HAND += [("popularity", past(calls=[2000, 500, 0]), DESIGNED, [1, 0.5, 0])]
# What is not known is neutral.
BY_HAND += [("performance", RATED, {}, [0.95, 0, 0.5]), ("performance", RATED, DESIGNED, [0.95, 0, 1])]
BY_HAND += [("user_rating", RATED, {}, [(2 + 4 / 3) / 4, (0 + 4 / 3) / 3, 2 / 3])]
BY_HAND += [("user_rating", RATED, DESIGNED, [1, 0, 0])]


@pytest.mark.parametrize(("factor", "known", "more", "expected"), BY_HAND)
def test_factors_by_hand(factor, known, more, expected):
    table = answers.factors(np.zeros(3, np.float32), known, SET.ranking, **more)
    np.testing.assert_allclose(table[:, FACTORS.index(factor)], expected)


def test_half_life():
    days = np.array([0, 30, 60, np.nan, -5.0])
    np.testing.assert_allclose(answers.recency(days, 30), [1, 0.5, 0.25, 1, 1])
    # exp(-d / 30) is at one half after 20.8 days, not after 30.
    designed = answers.recency(np.array([0, 30, 30 * math.log(2)]), 30, True)
    np.testing.assert_allclose(designed, [1, math.exp(-1), 0.5])


counts = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=6)


@given(counts, st.floats(-1, 1), st.floats(0, 1e9), st.integers(0, 5000))
def test_factors_stay_between_0_and_1(pairs, relevance, now, latency):
    calls = np.array([a + b for a, b in pairs], float)
    successes, ratings = np.array(pairs, float).T
    used = {"calls": calls, "successes": successes, "latency_ms": calls * latency, "timed": calls}
    rated = {"rating": 5 * ratings, "rated": calls, "last_used": np.full(len(pairs), 10.0)}
    history = replace(feedback.empty(len(pairs)), **used, **rated)
    table = answers.factors(np.full(len(pairs), relevance, np.float32), history, SET.ranking, now=now)
    assert table.shape == (len(pairs), len(FACTORS))
    assert ((table >= 0) & (table <= 1)).all()


def test_obstacles():
    needs = Requirements(frozenset({"write"}), frozenset({"db"}), frozenset({"Python"}), frozenset({"linux"}))
    allowed = Context(permissions=frozenset({"write", "read"}), services=frozenset({"db"}))
    assert "permission missing: write" in answers.obstacle(needs, Context(permissions=frozenset()))
    assert "service missing: db" in answers.obstacle(needs, replace(allowed, services=frozenset({"mail"})))
    assert "another language" in answers.obstacle(needs, replace(allowed, languages=frozenset({"go"})))
    assert "another system" in answers.obstacle(needs, replace(allowed, systems=frozenset({"windows"})))
    # Nothing stated about the project: nothing is filtered; a tool that states nothing serves all.
    for context in (Context(), allowed, *(replace(allowed, languages=own) for own in ({"python ", "go"}, frozenset()))):
        assert answers.obstacle(needs, context) is None
    other = Context(permissions=frozenset(), languages=frozenset({"go"}))
    assert answers.obstacle(Requirements(), other) is None


BAD_NEEDS = ["{", "[]", '{"needs": {"t": []}}', '{"colour": ["red"]}', '{"needs": {"t": {"permissions": "all"}}}']


@pytest.mark.parametrize("text", [*BAD_NEEDS, '{"services": [1]}'])
def test_bad_contexts(tmp_path, text):
    path = tmp_path / "needs.json"
    path.write_text(text)
    with pytest.raises(StudyError, match="fix:"):
        answers.read_context(path)


def test_rate_limit_is_a_sliding_window_and_remembers_a_bounded_number_of_agents():
    limiter = answers.RateLimiter(Limit(2, 10.0))
    for moment in (0.0, 6.0):
        assert not limiter.limited("a", "t", moment)
        limiter.record("a", "t", moment)
    assert [limiter.limited(*use, 9.9) for use in (("a", "t"), ("b", "t"), ("a", "u"))] == [True, False, False]
    assert not limiter.limited("a", "t", 10.0)
    for row in range(3 * PAIRS):
        limiter.record(f"agent {row}", "tool", 20.0 + row)
    assert len(limiter.calls) == PAIRS
    for _ in range(9):
        limiter.record("a", "tool", 1e6)
    assert [limiter.limited("a", "tool", moment) for moment in (1e6, 1e6 + 10)] == [True, False]


def test_sessions_and_chains_by_hand():
    moments = [(0, "x", True), (10, "y", True), (12, "z", False), (200, "x", True), (201, "x", True), (250, "y", True)]
    events = [Event("a", "q", (), key, fine, float(at), float(at)) for at, key, fine in moments]
    events += [Event("b", "q", (), "y", True, 5.0), Event("a", "q", ("x",), None, asked=6.0)]
    sessions = {
        agent: [[key for key, _ in own] for own in runs] for agent, runs in answers.sessions_of(events, 100.0).items()
    }
    assert sessions == {"a": [["x", "y"], ["x", "x", "y"]], "b": [["y"]]}
    chains = Chains([[0, 1], [0, 0, 1], [1], [2, 0]], 3, Sessions(100.0, 0.1, 2.0, 2))
    # Tool 1 came after tool 0 in two of three sessions; tool 0 after tool 2 in one of one.
    np.testing.assert_allclose(chains.following([0]), [0, 2 / 5, 0])
    np.testing.assert_allclose(chains.following([0, 2]), [1 / 3, 2 / 5, 0])
    assert (chains.next_of(0, 3), chains.next_of(2, 3), chains.next_of(1, 3)) == ([1], [], [])


def test_statistics_by_hand():
    events = [Event("a", "q", (), "x", True, 1.0, 2.0, 100.0, 4.0), Event("b", "q", (), "x", False, 5.0, rating=0.0)]
    events += [Event("a", "q", (), "gone", True), Event("a", "q", ("x",), None)]
    history = statistics(events, ["x", "y"])
    assert (history.calls.tolist(), history.successes.tolist()) == ([2, 0], [1, 0])
    assert (history.latency_ms.tolist(), history.timed.tolist()) == ([100, 0], [1, 0])
    assert (history.rating.tolist(), history.rated.tolist()) == ([4, 0], [2, 0])
    np.testing.assert_equal(history.last_used, [5.0, np.nan])
    assert history.agents["b"][0].tolist() == [1, 0]


@pytest.fixture
def recommender(catalog, embedder):
    fixed = {"embedder": embedder, "clock": lambda: 0.0, "monotonic": lambda: 0.0}
    return lambda **options: answers.IntentRecommender(catalog, **fixed | options)


def test_recommendations_explain_themselves(recommender):
    items = recommender().recommend("read a file", count=3)
    assert (items[0].key, items[0].why[:13]) == ("fs/read_file", "relevance 0.3")
    assert items[0].score == pytest.approx(sum(w * items[0].factors[n] for n, w in zip(FACTORS, CONTROL, strict=True)))
    assert [item.score for item in items] == sorted((item.score for item in items), reverse=True)
    with pytest.raises(StudyError, match="empty"):
        recommender().recommend(" ")


def test_filters_come_before_the_cut(recommender):
    needs = {"fs/read_file": Requirements(permissions=frozenset({"read"}))}
    nobody = Context("a", permissions=frozenset())
    filtering = recommender(requirements=needs)
    assert len(filtering.recommend("read a file", nobody, 3)) == 3
    assert "fs/read_file" not in {item.key for item in filtering.recommend("read a file", nobody, 5)}
    # One candidate only, and that one forbidden: another tool takes its place.
    single = recommender(requirements=needs, intentions=replace(SET, ranking=replace(SET.ranking, candidates=1)))
    assert len(single.recommend("read a file", nobody)) == 1


def test_the_cache_answers_the_same_question_alone(recommender):
    caching, among = recommender(), np.array([False, False, True, False, True])
    for hits in (0, 2):
        assert caching.recommend("read a file", count=2)[0].row == 0
        assert sorted(item.row for item in caching.recommend("read a file", count=3, among=among)) == [2, 4]
        assert caching.hits == hits
    may = frozenset({"x", "y"})
    asked, others = (
        Context("a", may),
        [Context("b", may), Context("a"), Context("a", frozenset()), Context("a", may, may)],
    )
    caching.recommend("read the file", asked)
    for context in (asked, *others):
        caching.recommend("read a file", context)
    assert caching.hits == 2
    caching.recommend("read a file", replace(asked, permissions=frozenset(["y", "x"])))
    assert caching.hits == 3
    caching.intentions = replace(SET, variants={"control": SET.variants["variant_a"]})
    caching.recommend("read a file", asked)
    assert caching.hits == 3


def test_what_changes_is_not_answered_from_the_cache(recommender, tmp_path):
    now, store = [0.0], FeedbackStore(tmp_path / "f.sqlite")
    caching = recommender(intentions=replace(SET, rate_limit=Limit(1, 10.0)), monotonic=lambda: now[0])
    assert caching.recommend("read a file")[0].key == "fs/read_file"
    caching.used("", "fs/read_file")
    assert caching.recommend("read a file")[0].key != "fs/read_file"
    now[0] = 10.0
    assert caching.recommend("read a file")[0].key == "fs/read_file"
    assert caching.hits == 2
    # Both tools that write a file match "write a file" equally well as far as words go.
    caching = recommender(store=store)
    before = [item.key for item in caching.recommend("write a file")]
    for _ in range(30):
        store.append(Event("a", "q", (), "mail/send", True, 0.0))
        store.append(Event("a", "q", (), before[0], False, 0.0))
    assert [item.key for item in caching.recommend("write a file")] == before
    caching.refresh()
    after = {item.key: item.score for item in caching.recommend("write a file")}
    assert after["mail/send"] > after[before[0]] - 0.35
    assert [*after] != before


def test_a_session_moves_the_ranking_as_its_weight_says(recommender, tmp_path):
    store = FeedbackStore(tmp_path / "f.sqlite")
    for start in (0.0, 10_000.0, 20_000.0):
        for offset, key in enumerate(("geo/route", "mail/write_file")):
            store.append(Event("a", "q", (), key, True, start + offset, start + offset))
    store.append(Event("b", "q", (), "geo/route", True, 30_000.0, 30_000.0))
    scores = {}
    for weight in (0.0, 1.0):
        intentions = replace(SET, sessions=replace(SET.sessions, weight=weight))
        remembering = recommender(store=store, clock=lambda: 30_001.0, intentions=intentions)
        assert (remembering.recent("b"), remembering.recent("a"), remembering.recent("c")) == ([4], [], [])
        for agent in "bc":
            items = remembering.recommend("write a file", Context(agent))
            scores[weight, agent] = {item.key: item.score for item in items}
    gained = {key: scores[1.0, "b"][key] - scores[0.0, "b"][key] for key in scores[0.0, "b"]}
    assert gained.pop("mail/write_file") == pytest.approx(3 / (4 + SET.sessions.prior_strength))
    assert set(gained.values()) == {0.0}
    assert scores[1.0, "c"] == scores[0.0, "c"]
    ranked, remembering.clock = remembering.recommend("write a file", Context("b")), lambda: 40_000.0
    assert remembering.recommend("write a file", Context("b")) != ranked  # the session is over


def test_configuration_is_checked():
    for values in ([1, 0, 0, 0], [0.5, 0.5, 0.5, 0, 0], [2, -1, 0, 0, 0], ["a"] * 5, None):
        with pytest.raises(StudyError, match="shares of 1"):
            settings.weights(values, "x")


def test_assignment_is_fixed_even_and_new_for_each_experiment():
    names, agents = ["control", "a", "b"], [f"agent {n}" for n in range(3000)]
    first = [assign(agent, names, "one") for agent in agents]
    assert first == [assign(agent, names, "one") for agent in agents]
    assert stats.chisquare([first.count(name) for name in names]).pvalue > 1e-3
    pairs = Counter(zip(first, [assign(agent, names, "two") for agent in agents], strict=True))
    table = [[pairs[one, two] for two in names] for one in names]
    assert stats.chi2_contingency(table).pvalue > 1e-3
    with pytest.raises(StudyError):
        assign("x", [], "one")
