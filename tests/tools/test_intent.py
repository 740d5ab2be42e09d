"""Intent-based ranking: analysis, factors, filters, cache, sessions; its weights, variants and online measures."""

import math
from dataclasses import fields, replace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import optimize, stats

from baselines.intent import IntentServers
from study.advisor.engine.intent import feedback, settings
from study.advisor.engine.intent import recommender as answers
from study.advisor.engine.intent.feedback import Event, FeedbackStore, statistics
from study.advisor.engine.intent.recommender import PAIRS, Chains, Context, Requirements, SignalIndex, assign
from study.advisor.engine.intent.settings import (
    CORRECTED,
    FACTORS,
    Comparison,
    Limit,
    Rules,
    Sessions,
    Tuning,
    as_designed,
)
from study.base.errors import StudyError
from study.data.dataset import Dataset, relevance_from_lists
from study.data.splits import Split
from study.tools import intent, request_log
from study.tools.collections.livemcpbench import Episode, Execution, Route
from study.tools.queries import QuerySet
from tests.toy_tools import BLOCK

SET = settings.intent_settings()
CONTROL = SET.variants["control"]
SUBSTRINGS, BARE = Rules(substring_domains=True), Rules(bare_verbs=True)
READ = [("I want to find where a Python function is defined", {"python"}, CORRECTED, "find", "code", "python")]
READ += [("I need to test login functionality in a web app", {"login"}, CORRECTED, "test", "web test", "login")]
READ += [("find find a CSV", (), CORRECTED, "find", "data", ""), ("", (), CORRECTED, "", "", "")]
# Defects of the design.
READ += [("the latest capital", (), CORRECTED, "", "", "")]
READ += [("the latest capital", (), SUBSTRINGS, "", "documentation test", "")]
READ += [("Verify, then (check)!", (), CORRECTED, "verify check", "test", "")]
READ += [("Verify, then (check)!", (), BARE, "", "test", ""), ("verify it", (), BARE, "verify", "test", "")]


def analysed(query, vocabulary=(), rules=CORRECTED):
    intent = answers.analyse(query, SET.verbs, SET.domains, vocabulary, rules)
    return intent.verbs, intent.domains, intent.terms


@pytest.mark.parametrize(("query", "vocabulary", "rules", "verbs", "domains", "terms"), READ)
def test_examples_and_defects_of_the_analysis(query, vocabulary, rules, verbs, domains, terms):
    assert [" ".join(found) for found in analysed(query, vocabulary, rules)] == [verbs, domains, terms]


@given(st.text(max_size=200), st.sampled_from([CORRECTED, as_designed()]))
def test_analysis_is_total_and_without_repeats(query, rules):
    assert all(len(set(found)) == len(found) for found in analysed(query, {"a"}, rules))


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
    named, order = {"verb": [3, 1, 2], "semantic": [2]}, np.arange(4)
    for rules, ranked in ((CORRECTED, [2, 1, 3]), (Rules(first_seen_ties=True), [2, 3, 1])):
        assert answers.most_named(named, np.array([0, 0.9, 0.1, 0.5]), order, 9, rules).tolist() == ranked


def past(**columns):
    return replace(feedback.empty(3), **{name: np.array(values, float) for name, values in columns.items()})


USED, RATE = past(calls=[10, 2, 0], successes=[5, 2, 0]), 7 / 12
RATED = past(latency_ms=[200, 9000, 0], timed=[4, 3, 0], rating=[10, 0, 0], rated=[2, 1, 0])
AGENT = {"a": (np.array([2.0, 0, 0]), np.array([2.0, 0, 0]))}
KNOWN = replace(past(calls=[8, 4, 0], last_used=[0, 0, np.nan]), agents=AGENT)
FAILS, EXTREME, CAP = Rules(unused_fails=True), Rules(extreme_unknowns=True), Rules(fixed_cap=True)
BY_HAND = [("success_rate", USED, [], [(5 + 2 * RATE) / 12, (2 + 2 * RATE) / 4, RATE])]
BY_HAND += [("success_rate", USED, [FAILS], [0.5, 1, 0]), ("success_rate", past(), [], [0.5] * 3)]
# Tool 0: the most used, half decayed, bias 0.5 + (2 + 1) / 4 = 1.25; tool 1: half as much, bias 1.
BY_HAND += [("popularity", KNOWN, [30 * answers.DAY, "a"], [0.625, 0.25, 0])]
BY_HAND += [("popularity", KNOWN, [0, "a"], [1, 0.5, 0])]
BY_HAND += [("popularity", past(calls=[2000, 500, 0]), [0, "", CAP], [1, 0.5, 0])]
# What is not known is neutral.
BY_HAND += [("performance", RATED, [], [0.95, 0, 0.5]), ("performance", RATED, [EXTREME], [0.95, 0, 1])]
BY_HAND += [("user_rating", RATED, [], [(2 + 4 / 3) / 4, (0 + 4 / 3) / 3, 2 / 3])]
BY_HAND += [("user_rating", RATED, [EXTREME], [1, 0, 0])]


@pytest.mark.parametrize(("factor", "known", "more", "expected"), BY_HAND)
def test_factors_by_hand(factor, known, more, expected):
    np.testing.assert_allclose(getattr(answers, factor)(known, SET.ranking, *more), expected)


def test_half_life():
    days = np.array([0, 30, 60, np.nan, -5.0])
    np.testing.assert_allclose(answers.recency(days, 30), [1, 0.5, 0.25, 1, 1])
    # exp(-d / 30) is at one half after 20.8 days, not after 30.
    designed = answers.recency(np.array([0, 30, 30 * math.log(2)]), 30, Rules(e_folding_decay=True))
    np.testing.assert_allclose(designed, [1, math.exp(-1), 0.5])


counts = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=6)


@given(counts, st.floats(-1, 1), st.floats(0, 1e9), st.integers(0, 5000))
def test_factors_stay_between_0_and_1(pairs, relevance, now, latency):
    calls = np.array([a + b for a, b in pairs], float)
    successes, ratings = np.array(pairs, float).T
    used = {"calls": calls, "successes": successes, "latency_ms": calls * latency, "timed": calls}
    rated = {"rating": 5 * ratings, "rated": calls, "last_used": np.full(len(pairs), 10.0)}
    known = replace(feedback.empty(len(pairs)), **used, **rated)
    table = answers.factors(np.full(len(pairs), relevance, np.float32), known, SET.ranking, now=now)
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
    assert answers.obstacle(answers.NEEDS_NOTHING, other) is None


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
    kept, reasons = answers.usable([1, 0], ["t", "u"], {}, Context("a"), limiter, 9.9)
    assert (kept, "used 2 times in 10 s" in reasons[0]) == ([1], True)
    assert not limiter.limited("a", "t", 10.0)
    for row in range(3 * PAIRS):
        limiter.record(f"agent {row}", "tool", 20.0 + row)
    assert len(limiter.calls) == PAIRS
    for _ in range(9):
        limiter.record("a", "tool", 1e6)
    assert [limiter.limited("a", "tool", moment) for moment in (1e6, 1e6 + 10)] == [True, False]


def test_the_key_names_everything():
    base = {"query": "q", "count": 5, "context": Context("a"), "weights": CONTROL, "rules": CORRECTED}
    base["state"] = "c", "s", 3
    changed = [{}, {"query": "r"}, {"count": 6}, {"context": Context("a", permissions=frozenset({"x"}))}]
    changed += [{"context": Context("b")}, {"weights": SET.variants["variant_a"]}, {"rules": Rules(filter_last=True)}]
    changed += [{"state": ("c", "s", 4)}, {"state": ("d", "s", 3)}]
    assert len({answers.cache_key(**base | change) for change in changed}) == len(changed)
    loose = base | {"rules": Rules(query_only_cache=True)}
    assert answers.cache_key(**loose) == answers.cache_key(**loose | {"context": Context("b")})


def test_sessions_and_chains_by_hand():
    moments = [(0, "x", True), (10, "y", True), (12, "z", False), (200, "x", True), (201, "x", True), (250, "y", True)]
    events = [Event("a", "q", (), key, fine, float(at), float(at)) for at, key, fine in moments]
    events += [Event("b", "q", (), "y", True, 5.0), Event("a", "q", ("x",), None, asked=6.0)]
    found = {
        agent: [[key for key, _ in own] for own in runs] for agent, runs in answers.sessions_of(events, 100.0).items()
    }
    assert found == {"a": [["x", "y"], ["x", "x", "y"]], "b": [["y"]]}
    made = Chains([[0, 1], [0, 0, 1], [1], [2, 0]], 3, Sessions(100.0, 0.1, 2.0, 2))
    # Tool 1 came after tool 0 in two of three sessions; tool 0 after tool 2 in one of one.
    np.testing.assert_allclose(made.following([0]), [0, 2 / 5, 0])
    np.testing.assert_allclose(made.following([0, 2]), [1 / 3, 2 / 5, 0])
    assert (made.next_of(0, 3), made.next_of(2, 3), made.next_of(1, 3)) == ([1], [], [])


def test_statistics_by_hand():
    events = [Event("a", "q", (), "x", True, 1.0, 2.0, 100.0, 4.0), Event("b", "q", (), "x", False, 5.0, rating=0.0)]
    events += [Event("a", "q", (), "gone", True), Event("a", "q", ("x",), None)]
    found = statistics(events, ["x", "y"])
    assert (found.calls.tolist(), found.successes.tolist()) == ([2, 0], [1, 0])
    assert (found.latency_ms.tolist(), found.timed.tolist()) == ([100, 0], [1, 0])
    assert (found.rating.tolist(), found.rated.tolist()) == ([4, 0], [2, 0])
    np.testing.assert_equal(found.last_used, [5.0, np.nan])
    assert found.agents["b"][0].tolist() == [1, 0]
    assert statistics(events, ["x"], Rules(lost_zero_ratings=True)).rated.tolist() == [1]


@pytest.fixture
def recommender(catalog, embedder):
    fixed = {"embedder": embedder, "clock": lambda: 0.0, "monotonic": lambda: 0.0}
    return lambda **options: answers.IntentRecommender(catalog, **fixed | options)


def test_recommendations_explain_themselves(recommender):
    found = recommender().recommend("read a file", count=3)
    assert (found[0].key, found[0].why[:13]) == ("fs/read_file", "relevance 0.3")
    assert found[0].score == pytest.approx(sum(w * found[0].factors[n] for n, w in zip(FACTORS, CONTROL, strict=True)))
    assert [item.score for item in found] == sorted((item.score for item in found), reverse=True)
    with pytest.raises(StudyError, match="empty"):
        recommender().recommend(" ")


def test_filters_come_before_the_cut(recommender):
    needs = {"fs/read_file": Requirements(permissions=frozenset({"read"}))}
    nobody = Context("a", permissions=frozenset())
    made = recommender(requirements=needs)
    assert len(made.recommend("read a file", nobody, 3)) == 3
    assert "fs/read_file" not in {item.key for item in made.recommend("read a file", nobody, 5)}
    designed = recommender(requirements=needs, rules=Rules(filter_last=True))
    assert len(designed.recommend("read a file", nobody, 3)) == 2
    # One candidate only, and that one forbidden: another tool takes its place.
    single = recommender(requirements=needs, intentions=replace(SET, ranking=replace(SET.ranking, candidates=1)))
    assert len(single.recommend("read a file", nobody)) == 1


@pytest.mark.parametrize("rules", [CORRECTED, Rules(filter_last=True)])
def test_only_tools_that_may_be_found_also_from_the_cache(recommender, rules):
    made, among = recommender(rules=rules), np.array([False, False, True, False, True])
    for _ in range(2):
        assert made.recommend("read a file", count=2)[0].row == 0
        assert sorted(item.row for item in made.recommend("read a file", count=3, among=among)) == [2, 4]
    assert made.hits == 2


def test_what_changes_is_not_answered_from_the_cache(recommender, tmp_path):
    now, store = [0.0], FeedbackStore(tmp_path / "f.sqlite")
    made = recommender(intentions=replace(SET, rate_limit=Limit(1, 10.0)), monotonic=lambda: now[0])
    assert made.recommend("read a file")[0].key == "fs/read_file"
    made.used("", "fs/read_file")
    assert made.recommend("read a file")[0].key != "fs/read_file"
    now[0] = 10.0
    assert made.recommend("read a file")[0].key == "fs/read_file"
    assert made.hits == 2
    # Both tools that write a file match "write a file" equally well as far as words go.
    made = recommender(store=store)
    before = [item.key for item in made.recommend("write a file")]
    for _ in range(30):
        store.append(Event("a", "q", (), "mail/send", True, 0.0))
        store.append(Event("a", "q", (), before[0], False, 0.0))
    assert [item.key for item in made.recommend("write a file")] == before
    made.refresh()
    after = {item.key: item.score for item in made.recommend("write a file")}
    assert after["mail/send"] > after[before[0]] - 0.35
    assert [*after] != before
    # The design's cache gives others the same answer.
    needs = {"fs/read_file": Requirements(languages=frozenset({"go"}))}
    contexts = [Context(name, languages=frozenset({name})) for name in ("rust", "go")]
    for rules, firsts in ((CORRECTED, 2), (Rules(query_only_cache=True), 1)):
        made = recommender(requirements=needs, rules=rules)
        assert len({made.recommend("read a file", context)[0].key for context in contexts}) == firsts


def test_a_session_moves_the_ranking_as_its_weight_says(recommender, tmp_path):
    store = FeedbackStore(tmp_path / "f.sqlite")
    for start in (0.0, 10_000.0, 20_000.0):
        for offset, key in enumerate(("geo/route", "mail/write_file")):
            store.append(Event("a", "q", (), key, True, start + offset, start + offset))
    store.append(Event("b", "q", (), "geo/route", True, 30_000.0, 30_000.0))
    scores = {}
    for weight in (0.0, 1.0):
        intentions = replace(SET, sessions=replace(SET.sessions, weight=weight))
        made = recommender(store=store, clock=lambda: 30_001.0, intentions=intentions)
        assert (made.recent("b"), made.recent("a"), made.recent("c")) == ([4], [], [])
        for agent in "bc":
            found = made.recommend("write a file", Context(agent))
            scores[weight, agent] = {item.key: item.score for item in found}
    gained = {key: scores[1.0, "b"][key] - scores[0.0, "b"][key] for key in scores[0.0, "b"]}
    assert gained.pop("mail/write_file") == pytest.approx(3 / (4 + SET.sessions.prior_strength))
    assert set(gained.values()) == {0.0}
    assert scores[1.0, "c"] == scores[0.0, "c"]


def test_configuration_is_checked():
    for values in ([1, 0, 0, 0], [0.5, 0.5, 0.5, 0, 0], [2, -1, 0, 0, 0], ["a"] * 5, None):
        with pytest.raises(StudyError, match="shares of 1"):
            settings.weights(values, "x")
    with pytest.raises(StudyError, match="range"):
        replace(SET.ranking, half_life_days=0.0)
    assert all(getattr(as_designed(), field.name) for field in fields(Rules))


@given(hnp.arrays(np.float64, st.integers(1, 6), elements=st.floats(-5, 5)))
def test_projection_is_the_nearest_point(vector):
    found = intent.project(vector)
    assert found.sum() == pytest.approx(1)
    assert (found >= 0).all()
    # Optimality on the simplex: no corner lies in a direction of descent.
    assert ((vector - found) @ (np.eye(len(vector)) - found).T <= 1e-8).all()


def lessons(seed, n=12, pairs=7):
    return list(np.random.default_rng(seed).uniform(-1, 1, size=(n, pairs, 5)))


def test_gradient_is_that_of_the_loss():
    w, queries = SET.variants["variant_b"], [*lessons(0, 3), *lessons(1, 2, 4)]
    value, slope = (lambda x, part=part: intent.loss(x, queries, 0.3)[part] for part in (0, 1))
    assert optimize.check_grad(value, slope, w) < 1e-6


@pytest.mark.parametrize("seed", [0, 1])
def test_the_minimum_is_that_of_an_independent_solver(seed):
    queries, start = lessons(seed), SET.variants["control"]
    own = intent.tune(queries, start, Tuning(0.1, 20_000))
    simplex = {"bounds": [(0, 1)] * 5, "constraints": {"type": "eq", "fun": lambda w: w.sum() - 1}}
    how = {"jac": True, "method": "SLSQP", "options": {"ftol": 1e-12, "maxiter": 500}}
    other = optimize.minimize(lambda w: intent.loss(w, queries, 0.1), start, **simplex, **how)
    assert intent.loss(own, queries, 0.1)[0] <= other.fun + 1e-6
    np.testing.assert_allclose(own, other.x, atol=2e-3)


def test_a_planted_factor_is_found():
    drawn = np.random.default_rng(3).uniform(size=(60, 20, 5))
    queries = [intent.differences(table, [int(table[:, 2].argmax())], range(20)) for table in drawn]
    assert intent.tune(queries, SET.variants["control"], SET.tuning)[2] > 0.95


def test_differences_by_hand_and_dividing_by_the_sum_leaves_the_simplex():
    table = np.array([[1.0, 0], [0, 1], [0.5, 0.5]])
    assert intent.differences(table, [0, 7], [0, 2]).tolist() == [[0.5, -0.5]]
    assert intent.differences(table, [7], [0, 2]).shape == (0, 2)
    start = SET.variants["control"]
    np.testing.assert_array_equal(intent.tune([np.empty((0, 5))], start, SET.tuning), start)
    np.testing.assert_array_equal(intent.tune([np.zeros((3, 5))], start, SET.tuning), start)
    # The first factor speaks against the choice: the design's weights go below 0, projected ones stop there.
    queries = [np.array([[-1.0, 0.5, 0, 0, 0]])] * 5
    start = np.array([0.02, 0.98, 0, 0, 0])
    designed = intent.tune(queries, start, Tuning(0.1, 50), Rules(sum_normalised=True))
    assert designed.min() < 0
    assert intent.tune(queries, start, Tuning(0.1, 50)).min() >= 0


def test_assignment_is_fixed_even_and_new_for_each_experiment():
    names, agents = ["control", "a", "b"], [f"agent {n}" for n in range(3000)]
    first = [assign(agent, names, "one") for agent in agents]
    assert first == [assign(agent, names, "one") for agent in agents]
    assert stats.chisquare([first.count(name) for name in names]).pvalue > 1e-3
    table = pd.crosstab(first, [assign(agent, names, "two") for agent in agents])
    assert table.shape == (3, 3)
    assert stats.chi2_contingency(table).pvalue > 1e-3
    with pytest.raises(StudyError):
        assign("x", [], "one")


def test_bounds_against_the_formula_step_by_step():
    values, alpha, c, bounds = np.array([1.0, 0.0, 1.0, 0.5] * 40), 0.1, 0.5, []
    mean, variance, weighted, total, spread = 0.5, 0.25, 0.0, 0.0, 0.0
    for t, x in enumerate(values, start=1):
        bet = min(np.sqrt(2 * np.log(2 / alpha) / (variance * t * np.log(1 + t))), c)
        weighted, total = weighted + bet * x, total + bet
        spread += 4 * (x - mean) ** 2 * (-np.log(1 - bet) - bet) / 4
        means = (0.5 + values[:t].cumsum()) / np.arange(2, t + 2)
        mean, variance = means[-1], (0.25 + ((values[:t] - means) ** 2).sum()) / (t + 1)
        radius = (np.log(2 / alpha) + spread) / total
        bounds.append((weighted / total - radius, weighted / total + radius))
    low, high = intent.confidence_sequence(values, alpha, c)
    assert 0 < low[-1] < high[-1] < 1  # nothing is cut off
    assert (np.diff(low) >= 0).all()
    assert (np.diff(high) <= 0).all()
    assert (low[-1], high[-1]) == pytest.approx((np.max(bounds, axis=0)[0], np.min(bounds, axis=0)[1]))


def test_looking_all_the_time_keeps_the_error_rate():
    streams = (np.random.default_rng(7).random((300, 400)) < 0.3).astype(float)
    bounds = np.array([intent.confidence_sequence(stream, 0.05, 0.5) for stream in streams])
    assert ((bounds[:, 0] > 0.3) | (bounds[:, 1] < 0.3)).any(axis=1).mean() <= 0.05
    # The same streams with a fixed-sample test looked at after every observation: far more than 5 % false alarms.
    t = np.arange(1, 401)
    z = np.abs(streams.cumsum(axis=1) / t - 0.3) / np.sqrt(0.3 * 0.7 / t)
    assert (z[:, 10:] > 1.96).any(axis=1).mean() > 0.15


def test_a_better_variant_is_found_and_an_equal_one_is_not():
    rng = np.random.default_rng(11)
    rates = {"control": 0.5, "better": 0.7, "worse": 0.3, "equal": 0.5}
    observed = {name: rng.binomial(1, rate, 3000).astype(float) for name, rate in rates.items()}
    decided = intent.compare_variants(observed, SET.comparison).set_index("variant")["decision"]
    assert decided.to_dict() == {"better": "better", "worse": "worse", "equal": "open"}
    (verdict,) = intent.compare_variants({"control": [], "a": [1.0]}, SET.comparison).to_dict("records")
    assert (verdict["decision"], verdict["agents"], verdict["control_agents"]) == ("open", 1, 0)
    for wrong, reason in ({"a": [1.0], "b": [0.0]}, "control"), ({"control": [2.0], "b": [0.0]}, "outside"):
        with pytest.raises(StudyError, match=reason):
            intent.compare_variants(wrong, SET.comparison)
    with pytest.raises(StudyError, match="range"):
        Comparison(0, 1, 0.5)


def test_one_observation_per_agent():
    told = [("a", True), ("b", True), ("a", False), ("a", True), ("c", None)]
    events = [Event(agent, "q", (), "t", success, experiment="x") for agent, success in told]
    # What another experiment, or none, has ranked says nothing about these variants.
    events[1:1] = [Event("a", "q", (), "t", False), Event("d", "q", (), "t", False, experiment="y")]
    assert intent.outcomes(events, ["control"], "x", 2) == {"control": [0.5]}
    assert intent.outcomes(events, ["control"], "x", 1) == {"control": [1.0, 1.0]}


def test_online_metrics_by_hand():
    both = ("x", "y")
    events = [Event("a", "q", both, "x", True, 10.0, 14.0, None, 5.0), Event("a", "q", both, "x", False, 20.0, 29.0)]
    events += [Event("b", "q", both, None), Event("b", "q", ("x",), "z", True, 0.0, 2.0, None, 2.0)]
    found = intent.online_metrics(events, ["x", "never shown"]).set_index("name")
    clicks, time = found.loc["click_through_rate"], found.loc["time_to_success_s"]
    assert (clicks.value, clicks.n, time.value, time.n) == (0.5, 4, 3.0, 2)
    assert found.loc["success_rate", "value"] == pytest.approx(2 / 3)
    assert found.loc[["satisfaction", "coverage"], "value"].tolist() == [3.5, 0.5]
    assert 0 < clicks.low < 0.5 < clicks.high < 1
    nothing = intent.online_metrics([])
    assert nothing["value"].isna().all()
    assert (nothing["n"] == 0).all()


@pytest.fixture
def episodes():
    first = (Route(BLOCK.format("Files", "read a file"), (1, 0)),)
    second = (Route("no block", ()), Route(BLOCK.format("Mail", "send"), (2,)))
    ran = (Execution(3, False, 1), Execution(2, True, 2), Execution(2, False, 2))
    one = Episode("t1", first, (Execution(0, True, 1), Execution(None, True, 1)), True)
    return [one, Episode("t2", second, ran, False), Episode("t3", (), (), True)]


def test_counts_of_the_log(episodes):
    found = intent.count(episodes, 5)
    assert found.calls.tolist() == [[1, 0, 0, 0, 0], [0, 0, 2, 1, 0], [0] * 5]
    assert found.successes[1].tolist() == [0, 0, 1, 0, 0]
    assert found.approved.tolist() == [[1, 0, 0, 0, 0], [0] * 5, [0] * 5]
    past = found.statistics(np.array([True, False, True]), 5.0)
    assert (past.calls.sum(), past.rating[0], past.rated.sum(), past.timed.sum()) == (1, 5, 1, 0)
    assert np.isnan(past.last_used).all()
    asked = request_log.requests(episodes)
    assert asked.queries.ids == ("t1:1", "t2:2")
    assert asked.queries.texts == ("Files read a file", "Mail send")
    assert asked.queries.labels == (((0,),), ((2,),))
    assert asked.returned.tolist() == [[1, 0], [2, -1]]


def make_study(episodes, known):
    ids = "t1", "t2", "t3"
    asks = intent.asked_tasks(episodes, QuerySet("q", ids, ("a", "b", "c"), (((0,),), ((2,),), ((4,),)), ids))
    relevance = np.random.default_rng(0).random((3, 5), dtype=np.float32)
    return intent.Study(asks, intent.count(episodes, 5), known, relevance, (np.arange(5),) * 3, SET)


@pytest.mark.parametrize("known", [intent.others, intent.earlier])
def test_no_task_knows_its_own_outcome(episodes, known):
    other = replace(episodes[1], success=not episodes[1].success, executions=(Execution(4, True, 0),) * 9)
    changed = [episodes[0], other, episodes[2]]
    one, two = make_study(episodes, known), make_study(changed, known)
    np.testing.assert_array_equal(one.factors(1), two.factors(1))
    if known is intent.earlier:
        np.testing.assert_array_equal(one.factors(0), two.factors(0))
    assert (one.factors(2) != two.factors(2)).any()
    # Nor do the weights that rank it: they are learned without it.
    same = [study.tuned(lambda ask: (ask,))[1] for study in (one, two)]
    np.testing.assert_array_equal(*same)


def test_signal_recall_by_hand(catalog, episodes):
    index = intent.SignalIndex(catalog, SET)
    queries = QuerySet("q", ("a",), ("read a file",), (((0,), (4,)),), ("a",))
    asks = request_log.Asks(queries, np.array([0]), ((0,),), np.array([[-1]]))
    table = intent.by_signal(index, asks, np.array([[0.5, 0.4, 0.3, 0.2, 0.1]], np.float32)).set_index("signal")
    assert table.loc["verb", ["brought", "recall"]].tolist() == [1, 0.5]
    assert table.loc["semantic", ["brought", "recall"]].tolist() == [5, 1]
    assert table.loc["all", "recall"] == 1
    # Where the cut is set, meaning brings no more.
    index = intent.SignalIndex(catalog, replace(SET, ranking=replace(SET.ranking, candidates=2)))
    table = intent.by_signal(index, asks, np.array([[0.5, 0.4, 0.3, 0.2, 0.1]], np.float32)).set_index("signal")
    assert table.loc["semantic", ["brought", "recall"]].tolist() == [2, 0.5]


def test_misread_queries_and_the_cache(catalog, embedder):
    queries = ["the latest capital", "verify, please", "read a file", "nothing"]
    assert intent.misread(catalog, queries, SET) == {"queries": 4, "false_domain": 0.25, "missed_verb": 0.25}
    found = intent.latency(catalog, queries, SET, embedder)
    assert found["cache_hits"] == 4
    assert 0 < found["cached_p50_ms"] <= found["cached_p95_ms"]


def servers_and_tasks():
    texts = {"name": ["a", "b", "c"], "description": ["read a file", "read a file", "send mail"]}
    stated = {"language": ["Python", "Go, Rust", ""], "system": ["", "macOS", ""], "stars_count": [0, 99, 9]}
    servers = pd.DataFrame({"id": [1, 2, 3], **texts, **stated, "tools": "", "category": "", "subcategory": ""})
    tasks = pd.DataFrame({"id": [1, 2], "name": ["read a file", "send mail"], "language": ["py", ""]})
    tasks = tasks.assign(description="", category="", theme=["Linux tools", ""])
    lists = (np.array([0, 1, 2]), np.array([1]))
    data = Dataset("toy", servers, tasks, relevance_from_lists(lists, 3), lists)
    nothing = sp.csr_matrix((2, 3), dtype=np.float32)
    return data, Split("cold", data.relevance, nothing, nothing, cold=True)


def test_compatibility_by_hand():
    table = intent.compatibility(*servers_and_tasks()).set_index("filter")
    # The task in Python loses the server in Go and Rust, the one about Linux that for macOS; the other states nothing.
    assert table["servers_that_state_it"].tolist() == [2, 1]
    assert table["pairs_removed"].tolist() == pytest.approx([1 / 6, 1 / 6])
    assert table["labels_removed"].tolist() == pytest.approx([0.25, 0.25])


def test_servers_by_relevance_and_stars(monkeypatch, embedder, tmp_path):
    monkeypatch.setattr("baselines.intent.encode", embedder.encode)
    data, split = servers_and_tasks()

    def score(*weights, **options):
        system = IntentServers(weights, **options)
        system.fit(data, split, seed=1, workdir=tmp_path)
        return system.score(np.array([0, 1]))

    np.testing.assert_allclose(score(1, 0, 0, 0, 0), [[1, 1, 0], [0, 0, 1]], atol=1e-6)
    np.testing.assert_allclose(score(0, 0, 1, 0, 0)[0], [0, 1, 0.5], atol=1e-6)
    np.testing.assert_allclose(score(0, 0.5, 0, 0.25, 0.25), 0.5)
    assert np.isneginf(score(1, 0, 0, 0, 0, compatible=True)).tolist() == [[False, True, False], [False] * 3]


def test_targets_beside_what_was_measured():
    table = pd.DataFrame({"task_id": ["a", "b"], "seed": 0, "hit_rate@3": 1.0, "mrr@3": 0.1, "mrr@9": [1.0, 0.5]})
    runs = {protocol: dict.fromkeys(intent.SYSTEMS, table) for protocol in intent.PROTOCOLS}
    times = pd.DataFrame([{"first_p50_ms": 9.0, "first_p95_ms": 101.0, "cached_p95_ms": 0.1}])
    found = intent.targets_table(runs, times).frame.set_index("target")
    assert found.loc["mrr", "measured"].tolist() == [0.75] * 8
    assert (set(found.loc["mrr", "met"]), set(found.loc["precision@3", "met"])) == ({"no"}, {"yes"})
    assert found.loc[[f"latency, {name}" for name in times], "met"].tolist() == ["yes", "no", "yes"]
    del runs["intent"]["intent_control"]
    assert intent.targets_table(runs, times) is None


def test_chains_of_a_request_know_nothing_of_its_own_task():
    def episode(task, *tools):
        return Episode(task, (), tuple(Execution(tool, True, after) for after, tool in enumerate(tools)), True)

    episodes = [episode("a", 0, 1), episode("b", 0, 2), episode("c", 0, 2)]
    queries = QuerySet("q", ("a:1", "b:1"), ("x", "y"), (((1,),), ((2,),)), ("a", "b"))
    asks = request_log.Asks(queries, np.array([0, 1]), ((1,), (2,)), np.full((2, 1), -1))
    # Before its first request task a had run tool 0, which tool 2 followed in both other tasks.
    np.testing.assert_allclose(intent.following(asks, episodes, 3), [[0, 0, 2 / 4], [0, 1 / 4, 1 / 4]])
