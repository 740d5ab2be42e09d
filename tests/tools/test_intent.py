"""Intent-based ranking on a log: learned weights, comparisons, online measures; no task knows its own outcome."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import optimize

from baselines.intent import IntentServers
from study.advisor.engine.intent.feedback import Event
from study.advisor.engine.intent.settings import Tuning, intent_settings
from study.base.errors import StudyError
from study.data.dataset import Dataset, relevance_from_lists
from study.data.splits import Split
from study.tools import intent
from study.tools.collections import Episode, Execution, Route
from study.tools.mcp_zero import Asks, followed_requests
from study.tools.queries import QuerySet
from tests.toy_tools import BLOCK

SET = intent_settings()
CONTROL = SET.variants["control"]


@given(hnp.arrays(np.float64, st.integers(1, 6), elements=st.floats(-5, 5)))
def test_projection_is_the_nearest_point(vector):
    nearest = intent.project(vector)
    assert nearest.sum() == pytest.approx(1)
    assert (nearest >= 0).all()
    # Optimality on the simplex: no corner lies in a direction of descent.
    assert ((vector - nearest) @ (np.eye(len(vector)) - nearest).T <= 1e-8).all()


def lessons(seed, n=12, pairs=7):
    return list(np.random.default_rng(seed).uniform(-1, 1, size=(n, pairs, 5)))


def test_gradient_is_that_of_the_loss():
    w, queries = SET.variants["variant_b"], [*lessons(0, 3), *lessons(1, 2, 4)]
    value, slope = (lambda x, part=part: intent.loss(x, queries, 0.3)[part] for part in (0, 1))
    assert optimize.check_grad(value, slope, w) < 1e-6


@pytest.mark.parametrize("seed", [0, 1])
def test_the_minimum_is_that_of_an_independent_solver(seed):
    queries, start = lessons(seed), CONTROL
    weights = intent.tune(queries, start, Tuning(0.1, 20_000))
    simplex = {"bounds": [(0, 1)] * 5, "constraints": {"type": "eq", "fun": lambda w: w.sum() - 1}}
    how = {"jac": True, "method": "SLSQP", "options": {"ftol": 1e-12, "maxiter": 500}}
    other = optimize.minimize(lambda w: intent.loss(w, queries, 0.1), start, **simplex, **how)
    assert intent.loss(weights, queries, 0.1)[0] <= other.fun + 1e-6
    np.testing.assert_allclose(weights, other.x, atol=2e-3)


def test_a_planted_factor_is_found():
    tables = np.random.default_rng(3).uniform(size=(60, 20, 5))
    queries = [intent.differences(table, [int(table[:, 2].argmax())]) for table in tables]
    assert intent.tune(queries, CONTROL, SET.tuning)[2] > 0.95


def test_differences_by_hand_and_tuning_stays_on_the_simplex():
    table = np.array([[1.0, 0], [0.5, 0.5]])
    assert intent.differences(table, [0, 7]).tolist() == [[0.5, -0.5]]
    assert intent.differences(table, [7]).shape == (0, 2)
    start = CONTROL
    np.testing.assert_array_equal(intent.tune([np.empty((0, 5))], start, SET.tuning), start)
    np.testing.assert_array_equal(intent.tune([np.zeros((3, 5))], start, SET.tuning), start)
    # The first factor speaks against the choice: its weight stops at 0.
    queries = [np.array([[-1.0, 0.5, 0, 0, 0]])] * 5
    start = np.array([0.02, 0.98, 0, 0, 0])
    tuned = intent.tune(queries, start, Tuning(0.1, 50))
    assert (tuned.min(), tuned[0], tuned.sum()) == (0, 0, pytest.approx(1))


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
    with pytest.raises(StudyError, match="control"):
        intent.compare_variants({"a": [1.0], "b": [0.0]}, SET.comparison)


def test_one_observation_per_agent():
    uses = [("a", True), ("b", True), ("a", False), ("a", True), ("c", None)]
    events = [Event(agent, "q", (), "t", success, experiment="x") for agent, success in uses]
    # What another experiment, or none, has ranked says nothing about these variants.
    events[1:1] = [Event("a", "q", (), "t", False), Event("d", "q", (), "t", False, experiment="y")]
    assert intent.outcomes(events, ["control"], "x", 2) == {"control": [0.5]}
    assert intent.outcomes(events, ["control"], "x", 1) == {"control": [1.0, 1.0]}


def test_online_metrics_by_hand():
    both = ("x", "y")
    events = [Event("a", "q", both, "x", True, 10.0, 14.0, None, 5.0), Event("a", "q", both, "x", False, 20.0, 29.0)]
    events += [Event("b", "q", both, None), Event("b", "q", ("x",), "z", True, 0.0, 2.0, None, 2.0)]
    metrics = intent.online_metrics(events, ["x", "never shown"]).set_index("name")
    clicks, time = metrics.loc["click_through_rate"], metrics.loc["time_to_success_s"]
    assert (clicks.value, clicks.n, time.value, time.n) == (0.5, 4, 3.0, 2)
    assert metrics.loc["success_rate", "value"] == pytest.approx(2 / 3)
    assert metrics.loc[["satisfaction", "coverage"], "value"].tolist() == [3.5, 0.5]
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
    log = intent.count(episodes, 5)
    assert log.calls.tolist() == [[1, 0, 0, 0, 0], [0, 0, 2, 1, 0], [0] * 5]
    assert log.successes[1].tolist() == [0, 0, 1, 0, 0]
    assert log.approved.tolist() == [[1, 0, 0, 0, 0], [0] * 5, [0] * 5]
    past = log.statistics(np.array([True, False, True]), 5.0)
    assert (past.calls.sum(), past.rating[0], past.rated.sum(), past.timed.sum()) == (1, 5, 1, 0)
    assert np.isnan(past.last_used).all()
    asks = followed_requests(episodes)
    assert asks.queries.ids == ("t1:1", "t2:2")
    assert asks.queries.texts == ("Files read a file", "Mail send")
    assert asks.queries.labels == (((0,),), ((2,),))
    assert asks.returned.tolist() == [[1, 0], [2, -1]]


def make_study(episodes, may_know):
    ids = "t1", "t2", "t3"
    asks = intent.annotated_tasks(episodes, QuerySet("q", ids, ("a", "b", "c"), (((0,),), ((2,),), ((4,),)), ids))
    relevance = np.random.default_rng(0).random((3, 5), dtype=np.float32)
    return intent.Study(asks, intent.count(episodes, 5), may_know, relevance, (np.arange(5),) * 3, SET)


@pytest.mark.parametrize("may_know", [intent.others, intent.earlier])
def test_no_task_knows_its_own_outcome(episodes, may_know):
    other = episodes[1]._replace(success=not episodes[1].success, executions=(Execution(4, True, 0),) * 9)
    changed = [episodes[0], other, episodes[2]]
    one, two = make_study(episodes, may_know), make_study(changed, may_know)
    np.testing.assert_array_equal(one.factors(1), two.factors(1))
    if may_know is intent.earlier:
        np.testing.assert_array_equal(one.factors(0), two.factors(0))
    assert (one.factors(2) != two.factors(2)).any()
    # Nor do the weights that rank it: they are learned without it.
    same = [study.tuned([(0,), (1,), (2,)])[1] for study in (one, two)]
    np.testing.assert_array_equal(*same)


def test_chains_of_a_request_know_nothing_of_its_own_task():
    def episode(task, *tools):
        return Episode(task, (), tuple(Execution(tool, True, after) for after, tool in enumerate(tools)), True)

    episodes = [episode("a", 0, 1), episode("b", 0, 2), episode("c", 0, 2)]
    queries = QuerySet("q", ("a:1", "b:1"), ("x", "y"), (((1,),), ((2,),)), ("a", "b"))
    asks = Asks(queries, np.array([0, 1]), ((1,), (2,)), np.full((2, 1), -1))
    # Before its first request task a had run tool 0, which tool 2 followed in both other tasks.
    bonus = intent.following(asks, episodes, 3)
    np.testing.assert_allclose(bonus, [[0, 0, 2 / 4], [0, 1 / 4, 1 / 4]])
    # By relevance alone tool 0 is first, 1 second; what usually followed moves up as it is weighed more.
    relevance = np.array([[0.9, 0.8, 0.75]] * 2, np.float32)
    study = intent.Study(asks, intent.count(episodes, 3), intent.others, relevance, (np.arange(3),) * 2, SET)
    table = intent.chained(study, bonus).query("system == 'intent_relevance'").set_index("weight")
    assert table.loc[0, ["asks_with_chain", "mrr@3"]].tolist() == pytest.approx([2, (1 / 2 + 1 / 3) / 2])
    assert table.loc[0.4, "mrr@3"] == pytest.approx((1 / 3 + 1 / 3) / 2)


def test_servers_by_relevance_and_stars(monkeypatch, embedder, tmp_path):
    monkeypatch.setattr("baselines.intent.encode", embedder.encode)
    texts = {"name": ["a", "b", "c"], "description": ["read a file", "read a file", "send mail"]}
    stated = {"language": ["Python", "Go, Rust", ""], "system": ["", "macOS", ""], "stars_count": [0, 99, 9]}
    servers = pd.DataFrame({"id": [1, 2, 3], **texts, **stated, "tools": "", "category": "", "subcategory": ""})
    tasks = pd.DataFrame({"id": [1, 2], "name": ["read a file", "send mail"], "language": ["py", ""]})
    tasks = tasks.assign(description="", category="", theme=["Linux tools", ""])
    lists = (np.array([0, 1, 2]), np.array([1]))
    data = Dataset("toy", servers, tasks, relevance_from_lists(lists, 3), lists)
    nothing = sp.csr_matrix((2, 3), dtype=np.float32)
    split = Split("cold", data.relevance, nothing, nothing, cold=True)

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
    (table,) = intent.targets_table(runs, times)
    rows = table.frame.set_index("target")
    assert rows.loc["mrr", "measured"].tolist() == [0.75] * 8
    assert (set(rows.loc["mrr", "met"]), set(rows.loc["precision@3", "met"])) == ({"no"}, {"yes"})
    assert rows.loc[[f"latency, {name}" for name in times], "met"].tolist() == ["yes", "no", "yes"]
    del runs["intent"]["intent_control"]
    assert not list(intent.targets_table(runs, times))
