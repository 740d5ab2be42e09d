"""Intent-based ranking on LiveMCPBench's real log, by fixed and by tuned weights; and what recorded feedback says.

Protocols: ``intent`` (every task, history = all other tasks), ``intent_prequential`` (history = the tasks before it in
file order, which may not be that of time), ``intent_requests`` (the agent's requests, each labelled with the tool that
it then ran; history = all other tasks; a task's requests are averaged).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from study.advisor.engine.intent.feedback import Event, Statistics, empty
from study.advisor.engine.intent.recommender import Chains, Context, IntentRecommender, SignalIndex, assign, factors
from study.advisor.engine.intent.settings import (
    CONTROL,
    DEFECTS,
    FACTORS,
    Comparison,
    Float64Array,
    Intentions,
    Tuning,
    intent_settings,
)
from study.advisor.retrieval.index import Settings, ToolIndex
from study.base.errors import StudyError
from study.data.dataset import FloatArray, IntArray
from study.evaluation.statistics import bootstrap_interval, share_interval
from study.tools import results
from study.tools.collections import Episode
from study.tools.mcp_zero import Asks, followed_requests
from study.tools.queries import QuerySet, rank_all
from study.tools.results import Inputs, Run, Runs, Table

WEIGHTS = (0.0, 0.05, 0.1, 0.2, 0.4)  # of what has followed the tools just used
FEW = 50  # uses below which a few single ones settle the five weights


def project(vector: Float64Array) -> Float64Array:
    """The nearest point of the probability simplex (Duchi et al. 2008, figure 1), shape of `vector` (n,)."""
    ordered = np.sort(vector)[::-1]
    above = np.cumsum(ordered) - 1
    count = np.arange(1, len(vector) + 1)
    last = np.flatnonzero(ordered - above / count > 0)[-1]
    nearest: Float64Array = np.maximum(vector - above[last] / count[last], 0)
    return nearest


def differences(factors: Float64Array, selected: Sequence[int]) -> Float64Array:
    """Factor differences between every selected candidate and every other one, shape (pairs, n_factors). `factors`: of
    the candidates. `selected`: places among them; what is no candidate cannot be moved by any weights."""
    chosen = np.isin(np.arange(len(factors)), list(selected))
    return (factors[chosen][:, None] - factors[~chosen][None]).reshape(-1, factors.shape[1])


def lessons(events: Iterable[Event]) -> list[Float64Array]:
    """Factor differences of every successful use among what was shown with it, each of shape (pairs, n_factors). A use
    that failed, or whose outcome is unknown, does not say that the tool should have stood higher."""
    return [
        differences(np.array(event.factors), [event.shown.index(event.selected)])
        for event in events
        if event.success and event.factors and event.selected in event.shown
    ]


def loss(weights: Float64Array, queries: Sequence[Float64Array], temperature: float) -> tuple[float, Float64Array]:
    """The mean loss over queries and its gradient, shape (n_factors,). `queries`: factor differences d per query, each
    of shape (pairs, n_factors), pairs > 0. A pair's loss is log(1 + exp(-w . d / T)) (RankNet, Burges et al. 2005; the
    specification says "gradient descent" and names no loss); the pairs of one query count as one query."""
    stacked = np.concatenate(queries)
    shares = np.repeat([1 / (len(queries) * len(pairs)) for pairs in queries], [len(pairs) for pairs in queries])
    margin = stacked @ weights / temperature
    slope: Float64Array = -((shares * np.exp(-np.logaddexp(0, margin))) @ stacked) / temperature
    return float(shares @ np.logaddexp(0, -margin)), slope


def tune(queries: Sequence[Float64Array], start: Float64Array, tuning: Tuning) -> Float64Array:
    """The weights of least loss, shape (n_factors,), non-negative with sum 1: projected gradient descent with the step
    1 / L, L a bound of the curvature, reaches the minimum, as the loss is convex.

    `queries`: from `differences`; those without pairs say nothing and are left out. With none left the start stays.
    """
    pairs = [query for query in queries if len(query)]
    weights = start.copy()
    # The logistic function's curvature is at most 1/4; ||d||^2 bounds that of w . d.
    bound = float(np.mean([(query**2).sum(axis=1).mean() for query in pairs or [np.zeros((1, 1))]]))
    bound /= 4 * tuning.temperature**2
    for _ in range(tuning.iterations if bound else 0):
        weights = project(weights - loss(weights, pairs, tuning.temperature)[1] / bound)
    return weights


def confidence_sequence(
    values: Sequence[float] | Float64Array, alpha: float, largest_bet: float
) -> tuple[Float64Array, Float64Array]:
    """Bounds of the mean after each observation, valid at all times together with probability 1 - alpha, so that one
    may stop at the first clear difference (predictable plug-in empirical Bernstein, Waudby-Smith and Ramdas 2024,
    theorem 2).

    `values`: observations in [0, 1], in order, shape (n,); their conditional means are equal. Returns: lower and upper
    bounds, both of shape (n,), within [0, 1]; they only ever narrow.
    """
    x = np.asarray(values, dtype=np.float64)
    t = np.arange(1, len(x) + 1)
    mean = (0.5 + np.cumsum(x)) / (t + 1)
    variance = (0.25 + np.cumsum((x - mean) ** 2)) / (t + 1)
    # What is used at time t was known before it.
    mean_before, variance_before = np.r_[0.5, mean[:-1]], np.r_[0.25, variance[:-1]]
    bet = np.minimum(np.sqrt(2 * np.log(2 / alpha) / (variance_before * t * np.log1p(t))), largest_bet)
    spread = 4 * (x - mean_before) ** 2 * (-np.log1p(-bet) - bet) / 4
    total = np.cumsum(bet)
    centre, radius = np.cumsum(bet * x) / total, (np.log(2 / alpha) + np.cumsum(spread)) / total
    low = np.maximum.accumulate(np.clip(centre - radius, 0, 1))
    return low, np.minimum.accumulate(np.clip(centre + radius, 0, 1))


def outcomes(events: Iterable[Event], variants: Sequence[str], experiment: str, uses: int) -> dict[str, list[float]]:
    """Per variant one observation per agent: the mean success of its first `uses` uses, in order of completion. Only
    events of this experiment count: elsewhere another variant may have ranked the tools."""
    observed: dict[str, list[float]] = {name: [] for name in variants}
    begun: dict[str, list[bool]] = defaultdict(list)
    for event in events:
        successes = begun[event.agent]
        if event.experiment == experiment and event.success is not None and len(successes) < uses:
            successes.append(event.success)
            if len(successes) == uses:
                observed[assign(event.agent, variants, experiment)].append(float(np.mean(successes)))
    return observed


def compare_variants(observed: Mapping[str, Sequence[float]], settings: Comparison) -> pd.DataFrame:
    """Every variant against the control; `observed`: from `outcomes`. Columns variant, agents and control_agents
    (observations), difference (variant - control), low, high (its bounds, valid at all times), decision (better, worse
    or open). All bounds hold together with probability 1 - alpha: alpha is shared by the arms (union bound)."""
    if CONTROL not in observed or len(observed) < 2:
        raise StudyError("a comparison needs the control and a variant", fix=f"name {CONTROL!r} among the variants")
    level, bounds, lines = settings.alpha / len(observed), {}, []
    for name, values in observed.items():
        lows, highs = confidence_sequence(values, level, settings.largest_bet)
        bounds[name] = (lows[-1], highs[-1], np.mean(values)) if len(values) else (0.0, 1.0, np.nan)
    least, most, mean = bounds.pop(CONTROL)
    for name, bound in bounds.items():
        low, high = bound[0] - most, bound[1] - least
        line = {"variant": name, "agents": len(observed[name]), "control_agents": len(observed[CONTROL])}
        decision = "better" if low > 0 else "worse" if high < 0 else "open"
        lines.append(line | {"difference": bound[2] - mean, "low": low, "high": high, "decision": decision})
    return pd.DataFrame(lines)


def online_metrics(events: Sequence[Event], keys: Sequence[str] = ()) -> pd.DataFrame:
    """Click-through rate, success rate, time to success (median seconds), satisfaction (mean rating) and coverage (the
    share of the catalogue's tools, `keys`, that were ever shown). Click-through counts recommendations that showed
    something; success counts uses with a known outcome. Columns name, value, low, high (of shares: the 95 % Wilson
    interval) and n; NaN where no event bears on a metric."""
    used = [event for event in events if event.selected is not None]
    times = [(event.asked, event.finished) for event in used if event.success]
    exposed = {key for event in events for key in event.shown}
    values: dict[str, list[float]] = {
        "click_through_rate": [event.selected in event.shown for event in events if event.shown],
        "success_rate": [event.success for event in used if event.success is not None],
        "time_to_success_s": [end - start for start, end in times if start is not None and end is not None],
        "satisfaction": [event.rating for event in events if event.rating is not None],
        "coverage": [key in exposed for key in keys],
    }
    table = pd.DataFrame({"name": [*values], "value": np.nan, "low": np.nan, "high": np.nan, "n": 0}).set_index("name")
    for name, of_metric in ((name, numbers) for name, numbers in values.items() if numbers):
        table.loc[name, "n"] = len(of_metric)
        if name.endswith("_rate"):
            table.loc[name, ["value", "low", "high"]] = share_interval(int(sum(of_metric)), len(of_metric))
        else:
            table.loc[name, "value"] = np.median(of_metric) if name == "time_to_success_s" else np.mean(of_metric)
    return table.reset_index()


@dataclass(frozen=True)
class Log:
    """LiveMCPBench's log as history: counts by task and tool, each of shape (n_episodes, n_tools).

    It holds which tools one agent ran, whether they reported an error, and a person's verdict on every task. It holds
    no times, no latencies, no second agent and no ratings of tools. So popularity has no decay and no bias, performance
    is unknown for every tool (a constant), and a tool's rating is the verdict on the tasks that used it. The agent
    could only run what its router had shown it: success and popularity are those of exposed tools.
    """

    calls: Float64Array  # calls, successes: executions, and those without an error
    successes: Float64Array
    approved: Float64Array  # 1 where the task used the tool and a person judged it solved

    def statistics(self, episodes: np.ndarray, rating_scale: float) -> Statistics:
        """What is known after the chosen episodes. `episodes`: bool, shape (n_episodes,)."""
        calls, successes, approved = (part[episodes] for part in vars(self).values())
        ratings = {"rating": approved.sum(axis=0) * rating_scale, "rated": (calls > 0).sum(axis=0).astype(np.float64)}
        counts = {"calls": calls.sum(axis=0), "successes": successes.sum(axis=0)}
        return replace(empty(calls.shape[1]), **counts, **ratings)


def count(episodes: Sequence[Episode], n_tools: int) -> Log:
    """Count the executions of tools that the catalogue has."""
    calls, successes, approved = np.zeros((3, len(episodes), n_tools))
    for number, episode in enumerate(episodes):
        for execution in episode.executions:
            if execution.tool is not None:
                calls[number, execution.tool] += 1
                successes[number, execution.tool] += execution.ok
        approved[number] = (calls[number] > 0) * episode.success
    return Log(calls, successes, approved)


def annotated_tasks(episodes: Sequence[Episode], queries: QuerySet) -> Asks:
    """The annotated tasks by their own text; labels are the annotators'."""
    row_of = {episode.task: row for row, episode in enumerate(episodes)}
    rows = np.array([row_of[task] for task in queries.ids], dtype=np.int64)
    ran = [[run.tool for run in episodes[row].executions if run.tool is not None] for row in rows]
    return Asks(queries, rows, tuple(tuple(dict.fromkeys(tools)) for tools in ran), np.full((len(queries), 1), -1))


def latency_table(inputs: Inputs) -> Table:
    """intent_latency.csv: milliseconds per recommendation, each query asked twice: the second answer comes from the
    cache; its record names the machine."""
    (catalog, queries), intentions = inputs, intent_settings()
    recommender, line = IntentRecommender(catalog, intentions=intentions), dict[str, float]()
    recommender.recommend("a first question loads the model", Context())
    for name in ("first", "cached"):
        times = [time.perf_counter()]
        for query in queries.texts:
            recommender.recommend(query)
            times.append(time.perf_counter())
        line |= results.percentiles(name, np.diff(times))
    facts = results.sources(*inputs) | {"config": asdict(intentions.ranking)}
    return Table("intent_latency", pd.DataFrame([line | {"cache_hits": float(recommender.hits)}]), facts)


# Which episodes may be known when one is asked: (rows of episodes, its row) -> bool, shape of the rows.
Known = Callable[[IntArray, int], np.ndarray]
others: Known = np.not_equal
earlier: Known = np.less


@dataclass(frozen=True)
class Study:
    """One protocol, ready to be scored."""

    asks: Asks
    log: Log
    may_know: Known
    relevance: FloatArray  # cosines, shape (n_asks, n_tools)
    candidates: tuple[IntArray, ...]  # tools of the candidate stage per ask
    intentions: Intentions
    designed: bool = False  # whether by the specification's own rules

    def factors(self, ask: int, at: int | None = None) -> Float64Array:
        """Factors of an ask's candidates, shape (n_candidates, 5). `at`: the episode at whose time it is asked (its
        own), which must not be known either."""
        episode = int(self.asks.episode[ask])
        past_episodes = self.may_know(np.arange(len(self.log.calls)), episode if at is None else at)
        past_episodes[[episode, episode if at is None else at]] = False
        past = self.log.statistics(past_episodes, self.intentions.ranking.rating_scale)
        table = factors(self.relevance[ask], past, self.intentions.ranking, designed=self.designed)
        return table[self.candidates[ask]]

    def over_all_tools(self) -> Study:
        """The same with every tool as a candidate."""
        return replace(self, candidates=(np.arange(self.relevance.shape[1]),) * len(self.asks.queries))

    def scores(self, weights: Mapping[int, Float64Array] | Float64Array) -> FloatArray:
        """Scores of all tools, -inf outside the candidates, shape (n_asks, n_tools). `weights`: of all, or by
        episode."""
        scores = np.full(self.relevance.shape, -np.inf, dtype=np.float32)
        for ask, rows in enumerate(self.candidates):
            of_ask = weights[int(self.asks.episode[ask])] if isinstance(weights, Mapping) else weights
            scores[ask, rows] = self.factors(ask) @ of_ask
        return scores

    def tuned(self, targets: Sequence[Sequence[int]]) -> dict[int, Float64Array]:
        """Per episode, weights learned from the episodes that it may know; none of them ever sees that episode.
        `targets`: per ask the tools that should be ranked above its other candidates."""
        learned_weights = {}
        for episode in sorted(set(self.asks.episode.tolist())):
            pairs = []
            for ask in np.flatnonzero(self.may_know(self.asks.episode, episode)).tolist():
                right = np.flatnonzero(np.isin(self.candidates[ask], list(targets[ask])))
                pairs.append(differences(self.factors(ask, episode), right.tolist()))
            learned_weights[episode] = tune(pairs, self.intentions.variants[CONTROL], self.intentions.tuning)
        return learned_weights


def protocol_runs(inputs: Inputs, episodes: Sequence[Episode]) -> Iterator[Run | Table]:
    """All protocols; intent_weights.csv and intent_chains.csv."""
    (catalog, queries), intentions, spread = inputs, intent_settings(), list[dict[str, object]]()
    signals = SignalIndex(catalog, intentions), SignalIndex(catalog, intentions, designed=True)
    log, index = count(episodes, len(catalog.tools)), ToolIndex(catalog, Settings(document=intentions.ranking.document))
    tasks, requests = annotated_tasks(episodes, queries), followed_requests(episodes)
    protocols = {"intent": (tasks, others), "intent_prequential": (tasks, earlier)}
    for protocol, (asks, may_know) in (protocols | {"intent_requests": (requests, others)}).items():
        texts, relevance = asks.queries.texts, index.scores(asks.queries.texts)
        corrected, designed = (tuple(map(one.candidates, map(one.read, texts), relevance)) for one in signals)
        study = Study(asks, log, may_know, relevance, corrected, intentions)
        if protocol == "intent_requests":
            yield Table("intent_chains", chained(study, following(asks, episodes, len(catalog.tools))))
        for name, ranked, config in (*fixed_rankings(study, designed), *tuned_rankings(study, protocol, spread)):
            table = by_task(ranked, asks, len(catalog.tools)).rename_axis("task_id").reset_index()
            facts = {"asks": len(asks.queries), "config": config}
            yield Run(protocol, name, table.assign(seed=results.SEED), (catalog, asks.queries), facts)
    yield Table("intent_weights", pd.DataFrame(spread))


def by_task(ranked: IntArray, asks: Asks, n_tools: int) -> pd.DataFrame:
    """Measures of rankings, each the mean over a task's asks, as the task is the unit everywhere; index the task."""
    table = results.measure(ranked, asks.queries, n_tools).drop(columns="task_id")
    return table.groupby(np.array(asks.queries.groups), sort=False).mean()


def following(asks: Asks, episodes: Sequence[Episode], n_tools: int) -> Float64Array:
    """`Chains.following` of what an agent had run before each request, shape (n_asks, n_tools); its own task is not in
    the log that it is counted in."""
    settings, bonus = intent_settings().sessions, np.zeros((len(asks.queries), n_tools))
    good = [[(run.tool, run.after) for run in one.executions if run.tool is not None and run.ok] for one in episodes]
    for ask, (episode, name) in enumerate(zip(asks.episode.tolist(), asks.queries.ids, strict=True)):
        number = int(name.rpartition(":")[2])  # of the request in its task
        past = ([tool for tool, _ in runs] for row, runs in enumerate(good) if row != episode)
        bonus[ask] = Chains(past, n_tools, settings).following(tool for tool, after in good[episode] if after < number)
    return bonus


def chained(study: Study, bonus: Float64Array) -> pd.DataFrame:
    """intent_chains.csv: the agent's requests, with more and more weight on what the tools it has just run lead to.
    `bonus`: from `following`."""
    asks, n_tools, lines = study.asks, bonus.shape[1], []
    fixed = {"relevance": (study.over_all_tools(), np.eye(len(FACTORS))[0])}
    fixed |= {CONTROL: (study, study.intentions.variants[CONTROL])}
    scores = {name: ranked_study.scores(weights) for name, (ranked_study, weights) in fixed.items()}
    for (name, base), weight in product(scores.items(), WEIGHTS):
        table = by_task(rank_all((base + weight * bonus).astype(np.float32)), asks, n_tools)
        line = {"system": f"intent_{name}", "weight": weight, "asks": len(bonus)}
        line |= {"asks_with_chain": int((bonus > 0).any(axis=1).sum())}
        lines.append(line | table.sort_index()[[f"mrr@{n_tools}", "hit_rate@1", "hit_rate@3"]].mean().to_dict())
    return pd.DataFrame(lines)


Ranking = tuple[str, IntArray, dict[str, Any]]  # of a system: its name, tools of every ask, settings


def fixed_rankings(study: Study, designed: tuple[IntArray, ...]) -> Iterator[Ranking]:
    """The systems whose weights are given; `designed`: the candidates by the specification's own rules."""
    everything, variants = study.over_all_tools(), study.intentions.variants
    alone = dict(zip(FACTORS, np.eye(len(FACTORS)), strict=True))
    fixed: dict[str, tuple[Study, Float64Array]] = {
        "relevance_candidates": (study, alone["relevance"]),
        **{name: (everything, alone[name]) for name in FACTORS if name != "performance"},
        **{name: (study, weights) for name, weights in variants.items()},
        "control_all_tools": (everything, variants[CONTROL]),
        "as_designed": (replace(study, candidates=designed, designed=True), variants[CONTROL]),
    }
    for name, (variant, weights) in fixed.items():
        config = {"weights": weights.tolist(), "rules": dict.fromkeys(DEFECTS, variant.designed)}
        config["ranking"] = asdict(variant.intentions.ranking)
        yield f"intent_{name}", rank_all(variant.scores(weights)), config


def tuned_rankings(study: Study, protocol: str, spread: list[dict[str, object]]) -> Iterator[Ranking]:
    """The systems whose weights are learned, and the recorded router. `spread`: gets a line per source and factor with
    the learned weights' mean, least and greatest over the folds."""
    targets: dict[str, Sequence[Sequence[int]]] = {"log": study.asks.selected}
    if protocol == "intent_requests":  # its labels are the log's choices
        yield "recorded", study.asks.returned, {}
    else:
        targets["labels"] = [[tool for label in labels for tool in label] for labels in study.asks.queries.labels]
    config = {"tuning": asdict(study.intentions.tuning), "ranking": asdict(study.intentions.ranking)}
    for source, right in targets.items():
        learned = study.tuned(right)
        # Learned among candidates, applied to them and to the whole catalogue.
        for ending, variant in (("", study), ("_all_tools", study.over_all_tools())):
            yield f"intent_tuned_on_{source}{ending}", rank_all(variant.scores(learned)), config
        for factor, column in zip(FACTORS, np.stack([*learned.values()]).T, strict=True):
            line = {"learned_on": source, "factor": factor, "folds": len(column), "mean": column.mean()}
            spread.append(line | {"least": column.min(), "greatest": column.max(), "protocol": protocol})


SYSTEMS = ("intent_as_designed", "intent_control", "intent_tuned_on_log", "intent_relevance")
PROTOCOLS = ("intent", "intent_requests")
NOT_RATED = "cannot be measured here: nobody rated a recommendation; the log holds a verdict on each whole task"


def targets_table(runs: Runs, latency: pd.DataFrame | None) -> Iterator[Table]:
    """intent_targets.csv: every target that the specification states (its success criteria) beside what was measured;
    nothing where the protocols were not run.

    Its MRR is that of the tool that the agent used (protocol ``intent_requests``), or of the annotators' tools
    (``intent``); its "precision@3" is the share of recommendations with a relevant tool among the first three, by its
    own formula.
    """
    if not all(set(SYSTEMS) <= runs.get(protocol, {}).keys() for protocol in PROTOCOLS):
        return
    lines = list[tuple[Any, ...]]()
    for target, limit, metric in (("mrr", 0.8, "mrr@"), ("precision@3", 0.9, "hit_rate@3")):
        for protocol in PROTOCOLS:
            for system in SYSTEMS:
                values = runs[protocol][system].filter(regex=f"^{metric}").iloc[:, -1].to_numpy(np.float64)
                low, high = bootstrap_interval(values, seed=results.SEED)
                met = "yes" if values.mean() > limit else "no"
                cell = (target, f"> {limit:g}", protocol, system, len(values))
                lines.append((*cell, values.mean(), low, high, met))
    for name in ("first_p50_ms", "first_p95_ms", "cached_p95_ms"):
        value = np.nan if latency is None else float(latency[name].iloc[0])
        met = "not measured" if latency is None else "yes" if value < 100 else "no"
        lines.append((f"latency, {name}", "< 100 ms", None, "intent_control", None, value, None, None, met))
    lines.append(("user rating", "> 4.5 of 5", *[None] * 6, NOT_RATED))
    order = ["target", "limit", "protocol", "system", "n", "measured", "ci_low", "ci_high", "met"]
    yield Table("intent_targets", pd.DataFrame(lines, columns=order))
