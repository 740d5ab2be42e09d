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
from typing import Any

import numpy as np
import pandas as pd

from study.advisor.encoders.choose import Embedder
from study.advisor.engine.intent.feedback import Event, Statistics, empty
from study.advisor.engine.intent.recommender import (
    SIGNALS,
    Chains,
    Context,
    IntentRecommender,
    Requirements,
    SignalIndex,
    assign,
    factors,
    most_named,
    obstacle,
)
from study.advisor.engine.intent.settings import (
    CONTROL,
    CORRECTED,
    FACTORS,
    Comparison,
    Float64Array,
    Intentions,
    Rules,
    Tuning,
    as_designed,
    intent_settings,
)
from study.advisor.retrieval.documents import ToolCatalog
from study.advisor.retrieval.index import Settings, ToolIndex
from study.advisor.retrieval.structure import languages, operating_systems
from study.base.errors import StudyError
from study.data.dataset import Dataset, FloatArray, IntArray
from study.data.splits import Split
from study.evaluation.statistics import bootstrap_interval, share_interval
from study.tools import request_log, results
from study.tools.collections.livemcpbench import Episode
from study.tools.queries import QuerySet, rank_all
from study.tools.request_log import Asks
from study.tools.results import Run, Runs, Table

DESIGN_RATE, DESIGN_STEPS = 0.01, 100  # the specification's own
FEW = 50  # uses below which a few single ones settle the five weights


def project(vector: Float64Array) -> Float64Array:
    """The nearest point of the probability simplex (Duchi et al. 2008, figure 1), shape of `vector` (n,)."""
    ordered = np.sort(vector)[::-1]
    above = np.cumsum(ordered) - 1
    count = np.arange(1, len(vector) + 1)
    last = np.flatnonzero(ordered - above / count > 0)[-1]
    nearest: Float64Array = np.maximum(vector - above[last] / count[last], 0)
    return nearest


def differences(factors: Float64Array, selected: Sequence[int], candidates: Sequence[int]) -> Float64Array:
    """Factor differences between every selected candidate and every other one, shape (pairs, n_factors). A selected
    tool that is no candidate cannot be moved by any weights and gives no pair."""
    chosen = [row for row in candidates if row in set(selected)]
    others = [row for row in candidates if row not in set(selected)]
    return (factors[chosen][:, None] - factors[others][None]).reshape(-1, factors.shape[1])


def lessons(events: Iterable[Event]) -> list[Float64Array]:
    """Factor differences of every successful use among what was shown with it, each of shape (pairs, n_factors). A use
    that failed, or whose outcome is unknown, does not say that the tool should have stood higher."""
    return [
        differences(np.array(event.factors), [event.shown.index(event.selected)], range(len(event.shown)))
        for event in events
        if event.success and event.factors and event.selected in event.shown
    ]


def loss(weights: Float64Array, queries: Sequence[Float64Array], temperature: float) -> tuple[float, Float64Array]:
    """The mean loss over queries and its gradient, shape (n_factors,). `queries`: factor differences d per query, each
    of shape (pairs, n_factors), pairs > 0. A pair's loss is log(1 + exp(-w . d / T)) (RankNet, Burges et al. 2005; the
    specification says "gradient descent" and names no loss); the pairs of one query count as one query."""
    stacked = np.concatenate(queries)
    shares = np.repeat([1 / (len(queries) * len(own)) for own in queries], [len(own) for own in queries])
    margin = stacked @ weights / temperature
    value = float(shares @ np.logaddexp(0, -margin))
    slope: Float64Array = -((shares * np.exp(-np.logaddexp(0, margin))) @ stacked) / temperature
    return value, slope


def tune(
    queries: Sequence[Float64Array], start: Float64Array, tuning: Tuning, rules: Rules = CORRECTED
) -> Float64Array:
    """The weights of least loss, shape (n_factors,), non-negative with sum 1: projected gradient descent with the step
    1 / L, L a bound of the curvature, reaches the minimum, as the loss is convex.

    `queries`: from `differences`; those without pairs say nothing and are left out. With none left the start stays.
    Raises StudyError: the specification's division by the sum met a sum that is not positive.
    """
    told = [own for own in queries if len(own)]
    weights = start.copy()
    if not told:
        return weights
    if rules.sum_normalised:
        for _ in range(DESIGN_STEPS):
            weights = weights - DESIGN_RATE * loss(weights, told, tuning.temperature)[1]
            if weights.sum() <= 0:
                raise StudyError("the weights' sum is not positive", fix="use the projection: sum_normalised False")
            weights = weights / weights.sum()
        return weights
    # The logistic function's curvature is at most 1/4; ||d||^2 bounds that of w . d.
    bound = float(np.mean([(own**2).sum(axis=1).mean() for own in told])) / (4 * tuning.temperature**2)
    if not bound:
        return weights
    for _ in range(tuning.iterations):
        weights = project(weights - loss(weights, told, tuning.temperature)[1] / bound)
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
    if x.size and not (x.min() >= 0 and x.max() <= 1):
        raise StudyError("an observation lies outside 0 to 1", fix="scale outcomes to shares")
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
    found: dict[str, list[float]] = {name: [] for name in variants}
    begun: dict[str, list[bool]] = defaultdict(list)
    for event in events:
        if event.experiment != experiment or event.success is None or len(begun[event.agent]) >= uses:
            continue
        own = begun[event.agent]
        own.append(event.success)
        if len(own) == uses:
            found[assign(event.agent, variants, experiment)].append(float(np.mean(own)))
    return found


def compare_variants(observed: Mapping[str, Sequence[float]], settings: Comparison) -> pd.DataFrame:
    """Every variant against the control; `observed`: from `outcomes`. Columns variant, agents and control_agents
    (observations), difference (variant - control), low, high (its bounds, valid at all times), decision (better, worse
    or open). All bounds hold together with probability 1 - alpha: alpha is shared by the arms (union bound)."""
    if CONTROL not in observed or len(observed) < 2:
        raise StudyError("a comparison needs the control and a variant", fix=f"name {CONTROL!r} among the variants")
    level, bounds, lines = settings.alpha / len(observed), {}, []
    for name, values in observed.items():
        lows, highs = confidence_sequence(values, level, settings.largest_bet)
        bounds[name] = (float(lows[-1]), float(highs[-1])) if len(lows) else (0.0, 1.0)
    control = observed[CONTROL]
    for name, own in ((name, own) for name, own in observed.items() if name != CONTROL):
        low, high = bounds[name][0] - bounds[CONTROL][1], bounds[name][1] - bounds[CONTROL][0]
        difference = float(np.mean(own) - np.mean(control)) if len(own) and len(control) else float("nan")
        line = {"variant": name, "agents": len(own), "control_agents": len(control), "difference": difference}
        decision = "better" if low > 0 else "worse" if high < 0 else "open"
        lines.append(line | {"low": low, "high": high, "decision": decision})
    return pd.DataFrame(lines)


def online_metrics(events: Sequence[Event], keys: Sequence[str] = ()) -> pd.DataFrame:
    """Click-through rate, success rate, time to success (median seconds), satisfaction (mean rating) and coverage (the
    share of the catalogue's tools, `keys`, that were ever shown). Click-through counts recommendations that showed
    something; success counts uses with a known outcome. Columns name, value, low, high (of shares: the 95 % Wilson
    interval) and n; NaN where no event bears on a metric."""
    shown = [event for event in events if event.shown]
    known = [event for event in events if event.selected is not None and event.success is not None]
    timed = [(one.asked, one.finished) for one in known if one.success]
    times = [end - start for start, end in timed if start is not None and end is not None]
    ratings = [event.rating for event in events if event.rating is not None]
    covered = len({key for event in events for key in event.shown}.intersection(keys))
    chosen = sum(event.selected in event.shown for event in shown), len(shown)
    worked = sum(bool(event.success) for event in known), len(known)
    nothing = (np.nan,) * 3
    lines = [
        ("click_through_rate", *(share_interval(*chosen) if shown else nothing), len(shown)),
        ("success_rate", *(share_interval(*worked) if known else nothing), len(known)),
        ("time_to_success_s", np.median(times) if times else np.nan, np.nan, np.nan, len(times)),
        ("satisfaction", np.mean(ratings) if ratings else np.nan, np.nan, np.nan, len(ratings)),
        ("coverage", covered / len(keys) if keys else np.nan, np.nan, np.nan, len(keys)),
    ]
    return pd.DataFrame(lines, columns=["name", "value", "low", "high", "n"])


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
    used: Float64Array  # 1 where the task used the tool at all
    approved: Float64Array  # 1 where it did and a person judged the task solved

    def statistics(self, episodes: np.ndarray, rating_scale: float) -> Statistics:
        """What is known after the chosen episodes. `episodes`: bool, shape (n_episodes,)."""
        known = {name: part[episodes].sum(axis=0) for name, part in vars(self).items()}
        ratings = {"rating": known["approved"] * rating_scale, "rated": known["used"]}
        counts = {"calls": known["calls"], "successes": known["successes"]}
        return replace(empty(self.calls.shape[1]), **counts, **ratings)


def count(episodes: Sequence[Episode], n_tools: int) -> Log:
    """Count the executions of tools that the catalogue has."""
    calls, successes, approved = np.zeros((3, len(episodes), n_tools))
    for number, episode in enumerate(episodes):
        for execution in episode.executions:
            if execution.tool is not None:
                calls[number, execution.tool] += 1
                successes[number, execution.tool] += execution.ok
        approved[number] = (calls[number] > 0) * episode.success
    return Log(calls, successes, (calls > 0).astype(np.float64), approved)


def asked_tasks(episodes: Sequence[Episode], queries: QuerySet) -> Asks:
    """The annotated tasks by their own text; labels are the annotators'."""
    place = {episode.task: row for row, episode in enumerate(episodes)}
    rows = np.array([place[task] for task in queries.ids], dtype=np.int64)
    ran = [[run.tool for run in episodes[row].executions if run.tool is not None] for row in rows]
    return Asks(queries, rows, tuple(tuple(dict.fromkeys(own)) for own in ran), np.full((len(queries), 1), -1))


def misread(catalog: ToolCatalog, queries: Sequence[str], intentions: Intentions) -> dict[str, float]:
    """Shares of the queries that the specification's word rules misread: a domain inside a word, a verb by a comma."""
    whole, designed = (SignalIndex(catalog, intentions, rules) for rules in (CORRECTED, as_designed()))
    read = [(whole.read(query), designed.read(query)) for query in queries]
    false_domain = float(np.mean([bool(set(b.domains) - set(a.domains)) for a, b in read]))
    missed_verb = float(np.mean([bool(set(a.verbs) - set(b.verbs)) for a, b in read]))
    return {"queries": float(len(queries)), "false_domain": false_domain, "missed_verb": missed_verb}


def latency(
    catalog: ToolCatalog, queries: Sequence[str], intentions: Intentions, embedder: Embedder | None = None
) -> dict[str, float]:
    """Milliseconds per recommendation, each query asked twice: the second answer comes from the cache."""
    made = IntentRecommender(catalog, intentions=intentions, embedder=embedder)
    made.recommend("a first question loads the model", Context())
    found: dict[str, float] = {}
    for name in ("first", "cached"):
        taken = []
        for query in queries:
            started = time.perf_counter()
            made.recommend(query)
            taken.append(time.perf_counter() - started)
        found |= results.percentiles(name, np.array(taken))
    return found | {"cache_hits": float(made.hits)}


def compatibility(data: Dataset, split: Split) -> pd.DataFrame:
    """What the filter "project compatibility" removes where a task states its language and theme, training part only.

    A server's language is the one that it is written in. One row per filter: tasks, servers that state something, share
    of all pairs and of the labels removed.
    """
    tasks, lines = split.tasks("train"), []
    for name in ("language", "system"):
        by_language = name == "language"
        read, column = (languages, "language") if by_language else (operating_systems, "theme")
        needs = [Requirements(**{f"{name}s": read(text)}) for text in data.servers[name]]
        kinds = {need: number for number, need in enumerate(dict.fromkeys(needs))}
        kind = np.array([kinds[need] for need in needs])
        blocked: dict[frozenset[str], np.ndarray] = {}
        removed = labels = 0
        for task in tasks:
            own = read(str(data.tasks[column].iloc[task]))
            if own not in blocked:
                context = Context(languages=own) if by_language else Context(systems=own)
                blocked[own] = np.array([obstacle(need, context) is not None for need in kinds])[kind]
            removed += int(blocked[own].sum())
            labels += int(blocked[own][split.train[task].indices].sum())
        stated = sum(need != Requirements() for need in needs)
        line: dict[str, object] = {"filter": name, "tasks": len(tasks), "servers_that_state_it": stated}
        line |= {"pairs_removed": removed / (len(tasks) * data.n_servers), "labels_removed": labels / split.train.nnz}
        lines.append(line)
    return pd.DataFrame(lines)


# Which episodes may be known when one is asked: (rows of all, its row) -> bool, shape (n_episodes,).
Known = Callable[[IntArray, int], np.ndarray]
others: Known = np.not_equal
earlier: Known = np.less


@dataclass(frozen=True)
class Study:
    """One protocol, ready to be scored."""

    asks: Asks
    log: Log
    known: Known
    relevance: FloatArray  # cosines, shape (n_asks, n_tools)
    candidates: tuple[IntArray, ...]  # tools of the candidate stage per ask
    intentions: Intentions
    rules: Rules = CORRECTED

    def past(self, episode: int) -> np.ndarray:
        """Which episodes may be known when this one is asked, bool, shape (n_episodes,)."""
        return self.known(np.arange(len(self.log.calls)), episode)

    def factors(self, ask: int, left_out: int | None = None, *, at: int | None = None) -> Float64Array:
        """Factors of an ask's candidates, shape (n_candidates, 5). `left_out`: an episode that must not be known
        either. `at`: the episode at whose time it is asked (its own)."""
        own = int(self.asks.episode[ask])
        known = self.past(own if at is None else at)
        known[own] = False
        if left_out is not None:
            known[left_out] = False
        past = self.log.statistics(known, self.intentions.ranking.rating_scale)
        table = factors(self.relevance[ask], past, self.intentions.ranking, rules=self.rules)
        return table[self.candidates[ask]]

    def over_all_tools(self) -> Study:
        """The same with every tool as a candidate."""
        return replace(self, candidates=(np.arange(self.relevance.shape[1]),) * len(self.asks.queries))

    def scores(self, weights: Mapping[int, Float64Array]) -> FloatArray:
        """Scores of all tools, -inf outside the candidates, shape (n_asks, n_tools). `weights`: by episode."""
        found = np.full(self.relevance.shape, -np.inf, dtype=np.float32)
        for ask, rows in enumerate(self.candidates):
            found[ask, rows] = self.factors(ask) @ weights[int(self.asks.episode[ask])]
        return found

    def tuned(self, targets: Callable[[int], tuple[int, ...]]) -> dict[int, Float64Array]:
        """Per episode, weights learned from the episodes that it may know; none of them ever sees that episode.
        `targets`: the tools of an ask that should be ranked above its other candidates."""
        found = {}
        for episode in sorted(set(self.asks.episode.tolist())):
            known = self.past(episode)
            lessons = []
            for ask in np.flatnonzero(known[self.asks.episode]):
                rows = self.candidates[ask].tolist()
                place = {row: number for number, row in enumerate(rows)}
                wanted = [place[row] for row in targets(int(ask)) if row in place]
                table = self.factors(int(ask), left_out=episode, at=episode)
                lessons.append(differences(table, wanted, range(len(rows))))
            found[episode] = tune(lessons, self.intentions.variants["control"], self.intentions.tuning)
        return found


def protocol_runs(catalog: ToolCatalog, queries: QuerySet, episodes: Sequence[Episode]) -> Iterator[Run | Table]:
    """All protocols, and the tables intent_weights, intent_candidates and intent_behaviour."""
    past, intentions = count(episodes, len(catalog.tools)), intent_settings()
    index = ToolIndex(catalog, Settings(document=intentions.ranking.document))
    signals = {"corrected": SignalIndex(catalog, intentions)}
    signals["as designed"] = SignalIndex(catalog, intentions, as_designed())
    tasks = asked_tasks(episodes, queries)
    weights, brought = [], []
    protocols: dict[str, tuple[Asks, Known]] = {
        "intent": (tasks, others),
        "intent_prequential": (tasks, earlier),
        "intent_requests": (request_log.requests(episodes), others),
    }
    for protocol, (asks, known) in protocols.items():
        relevance = index.scores(asks.queries.texts)
        study = Study(asks, past, known, relevance, stage(signals["corrected"], asks, relevance), intentions)
        yield from fixed_runs(protocol, study, signals["as designed"])
        runs, table = tuned_runs(protocol, study, catalog)
        yield from runs
        weights.append(table.assign(protocol=protocol))
        if known is others:
            parts = {name: by_signal(own, asks, relevance).assign(rules=name) for name, own in signals.items()}
            brought.append(pd.concat(parts.values()).assign(protocol=protocol))
    yield Table("intent_weights", pd.concat(weights))
    yield Table("intent_candidates", pd.concat(brought))
    yield Table("intent_behaviour", pd.DataFrame([misread(catalog, tasks.queries.texts, intentions)]))


def latency_table(catalog: ToolCatalog, queries: QuerySet) -> Table:
    """intent_latency.csv: milliseconds per recommendation, first and cached; its record names the machine."""
    intentions = intent_settings()
    table = pd.DataFrame([latency(catalog, queries.texts, intentions)])
    facts = results.sources(catalog, queries) | {"config": asdict(intentions.ranking)}
    return Table("intent_latency", table, facts)


def stage(signals: SignalIndex, asks: Asks, relevance: FloatArray) -> tuple[IntArray, ...]:
    """The candidates of every ask."""
    asked = zip(asks.queries.texts, relevance, strict=True)
    return tuple(signals.candidates(signals.read(text), own) for text, own in asked)


def fixed_runs(protocol: str, study: Study, designed: SignalIndex) -> Iterator[Run]:
    """The systems whose weights are given."""
    asks, intentions, variants = study.asks, study.intentions, study.intentions.variants
    everything = study.over_all_tools()
    alone = dict(zip(FACTORS, np.eye(len(FACTORS)), strict=True))
    letter = replace(study, candidates=stage(designed, asks, study.relevance), rules=as_designed())
    fixed: dict[str, tuple[Study, Float64Array]] = {
        "intent_relevance": (everything, alone["relevance"]),
        "intent_relevance_candidates": (study, alone["relevance"]),
        "intent_success_rate": (everything, alone["success_rate"]),
        "intent_popularity": (everything, alone["popularity"]),
        "intent_user_rating": (everything, alone["user_rating"]),
        **{f"intent_{name}": (study, weights) for name, weights in variants.items()},
        "intent_control_all_tools": (everything, variants["control"]),
        "intent_as_designed": (letter, variants["control"]),
    }
    for name, (chosen, weights) in fixed.items():
        config = {"weights": weights.tolist(), "rules": asdict(chosen.rules), "ranking": asdict(intentions.ranking)}
        ranked = rank_all(chosen.scores(dict.fromkeys(asks.episode.tolist(), weights)))
        yield by_task_run(protocol, name, ranked, asks, config, designed.catalog)


def tuned_runs(protocol: str, study: Study, catalog: ToolCatalog) -> tuple[list[Run], pd.DataFrame]:
    """The systems whose weights are learned, and the recorded router; and the weights' spread over the folds."""
    asks, everything, runs, lines = study.asks, study.over_all_tools(), [], []
    lessons: Mapping[str, Callable[[int], tuple[int, ...]]] = {
        "log": lambda ask: asks.selected[ask],
        "labels": lambda ask: tuple(tool for label in asks.queries.labels[ask] for tool in label),
    }
    for source, targets in lessons.items():
        if source == "labels" and protocol == "intent_requests":
            continue  # its labels are the log's choices
        learned = study.tuned(targets)
        config = {"tuning": asdict(study.intentions.tuning), "ranking": asdict(study.intentions.ranking)}
        # Learned among candidates, applied to them and to the whole catalogue.
        for ending, own in (("", study), ("_all_tools", everything)):
            name, ranked = f"intent_tuned_on_{source}{ending}", rank_all(own.scores(learned))
            runs.append(by_task_run(protocol, name, ranked, asks, config, catalog))
        table = np.stack(list(learned.values()))
        for factor, column in zip(FACTORS, table.T, strict=True):
            spread = {"mean": column.mean(), "least": column.min(), "greatest": column.max()}
            lines.append({"learned_on": source, "factor": factor, "folds": len(table), **spread})
    if protocol == "intent_requests":
        runs.append(by_task_run(protocol, "recorded", asks.returned, asks, {}, catalog))
    return runs, pd.DataFrame(lines)


def by_task_run(
    protocol: str, name: str, ranked: IntArray, asks: Asks, config: Mapping[str, Any], catalog: ToolCatalog
) -> Run:
    """A system's run, with the task as the unit everywhere."""
    table = by_task(ranked, asks, len(catalog.tools)).rename_axis("task_id").reset_index()
    facts = {"asks": len(asks.queries), "config": dict(config)}
    return Run(protocol, name, table.assign(seed=results.SEED), (catalog, asks.queries), facts)


def by_task(ranked: IntArray, asks: Asks, n_tools: int) -> pd.DataFrame:
    """Measures of rankings, each the mean over a task's asks; index the task."""
    table = results.measure(ranked, asks.queries, n_tools).drop(columns="task_id")
    return table.groupby(np.array(asks.queries.groups), sort=False).mean()


def by_signal(signals: SignalIndex, asks: Asks, relevance: FloatArray) -> pd.DataFrame:
    """Recall of the labels among each signal's candidates (after the cut), and among those of all together. Columns
    silent: share of asks to which it brings nothing; brought: mean number of distinct tools before the cut."""
    count = signals.intentions.ranking.candidates or relevance.shape[1]
    asked, lines = zip(asks.queries.texts, relevance, strict=True), []
    named = [signals.named(signals.read(text), own, count) for text, own in asked]
    for signal in (*SIGNALS, "all"):
        kept = SIGNALS if signal == "all" else (signal,)
        chosen, sizes = [], []
        for row, found in enumerate(named):
            own = {name: found[name] for name in kept}
            chosen.append(most_named(own, relevance[row], signals.order, count, signals.rules).tolist())
            sizes.append(len({tool for tools in own.values() for tool in tools}))
        share = results.measure_sets({count: chosen}, asks.queries, relevance.shape[1])[f"recall@{count}"]
        line = {"signal": signal, "asks": len(named), "silent": float(np.mean([not size for size in sizes]))}
        lines.append(line | {"brought": float(np.mean(sizes)), "recall": share.to_numpy().mean()})
    return pd.DataFrame(lines)


WEIGHTS = (0.0, 0.05, 0.1, 0.2, 0.4)
DEPTH = 10  # tools of a recommendation, of which the share that is ever recommended is counted


def session_tables(catalog: ToolCatalog, queries: QuerySet, episodes: Sequence[Episode]) -> Iterator[Table]:
    """intent_chains.csv: the agent's requests, with more and more weight on what the tools it has just run lead to (by
    the log of all other tasks). intent_coverage.csv: the share of the tools that are ever among the first ten."""
    intentions, n_tools = intent_settings(), len(catalog.tools)
    past, signals = count(episodes, n_tools), SignalIndex(catalog, intentions)
    index = ToolIndex(catalog, Settings(document=intentions.ranking.document))
    chains, coverage = [], []
    asked = {"intent": asked_tasks(episodes, queries), "intent_requests": request_log.requests(episodes)}
    for protocol, asks in asked.items():
        relevance = index.scores(asks.queries.texts)
        among = Study(asks, past, others, relevance, stage(signals, asks, relevance), intentions)
        named = {"relevance": (among.over_all_tools(), np.eye(len(FACTORS))[0])}
        named |= {CONTROL: (among, intentions.variants[CONTROL])}
        bonus = following(asks, episodes, n_tools) if protocol == "intent_requests" else np.zeros((0, n_tools))
        for name, (study, weights) in named.items():
            scores = study.scores(dict.fromkeys(asks.episode.tolist(), weights))
            shown = np.unique(rank_all(scores, DEPTH))
            line = {"protocol": protocol, "system": f"intent_{name}", "asks": len(asks.queries), "tools": n_tools}
            coverage.append(line | {f"coverage@{DEPTH}": float((shown >= 0).sum() / n_tools)})
            for weight in WEIGHTS if protocol == "intent_requests" else ():
                moved = rank_all((scores + weight * bonus).astype(np.float32))
                names = [f"mrr@{n_tools}", "hit_rate@1", "hit_rate@3"]
                found = by_task(moved, asks, n_tools).sort_index()[names].mean().to_dict()
                told = int((bonus > 0).any(axis=1).sum())
                line = {"system": f"intent_{name}", "weight": weight, "asks": len(bonus), "asks_with_chain": told}
                chains.append(line | found)
    yield Table("intent_chains", pd.DataFrame(chains))
    yield Table("intent_coverage", pd.DataFrame(coverage))


def following(asks: Asks, episodes: Sequence[Episode], n_tools: int) -> Float64Array:
    """`Chains.following` of what an agent had run before each request, shape (n_asks, n_tools); its own task is not in
    the log that it is counted in."""
    used = [[run.tool for run in one.executions if run.tool is not None and run.ok] for one in episodes]
    settings, found = intent_settings().sessions, np.zeros((len(asks.queries), n_tools))
    for ask, (own, name) in enumerate(zip(asks.episode.tolist(), asks.queries.ids, strict=True)):
        number = int(name.rpartition(":")[2])  # of the request in its task
        before = (run for run in episodes[own].executions if run.after < number and run.ok)
        chains = Chains((tools for row, tools in enumerate(used) if row != own), n_tools, settings)
        found[ask] = chains.following([run.tool for run in before if run.tool is not None])
    return found


SYSTEMS = ("intent_as_designed", "intent_control", "intent_tuned_on_log", "intent_relevance")
PROTOCOLS = ("intent", "intent_requests")
NOT_RATED = "cannot be measured here: nobody rated a recommendation; the log holds a verdict on each whole task"


def targets_table(runs: Runs, latency: pd.DataFrame | None) -> Table | None:
    """intent_targets.csv: every target that the specification states (its success criteria) beside what was measured.

    Its MRR is that of the tool that the agent used (protocol ``intent_requests``), or of the annotators' tools
    (``intent``); its "precision@3" is the share of recommendations with a relevant tool among the first three, by its
    own formula. None where the protocols were not run.
    """
    if not all(set(SYSTEMS) <= runs.get(protocol, {}).keys() for protocol in PROTOCOLS):
        return None
    lines: list[dict[str, object]] = []
    for target, limit, metric in (("mrr", 0.8, "mrr@"), ("precision@3", 0.9, "hit_rate@3")):
        for protocol in PROTOCOLS:
            for system in SYSTEMS:
                table = runs[protocol][system]
                column = next(name for name in reversed(table.columns) if str(name).startswith(metric))
                values = table[column].to_numpy(np.float64)
                low, high = bootstrap_interval(values, seed=results.SEED)
                line: dict[str, object] = {"target": target, "limit": f"> {limit:g}", "protocol": protocol}
                line |= {"system": system, "n": len(values), "measured": values.mean(), "ci_low": low, "ci_high": high}
                lines.append(line | {"met": "yes" if values.mean() > limit else "no"})
    for name in ("first_p50_ms", "first_p95_ms", "cached_p95_ms"):
        line = {"target": f"latency, {name}", "limit": "< 100 ms", "system": "intent_control", "met": "not measured"}
        if latency is not None:
            value = float(latency[name].iloc[0])
            line |= {"measured": value, "met": "yes" if value < 100 else "no"}
        lines.append(line)
    lines.append({"target": "user rating", "limit": "> 4.5 of 5", "met": NOT_RATED})
    order = ["target", "limit", "protocol", "system", "n", "measured", "ci_low", "ci_high", "met"]
    return Table("intent_targets", pd.DataFrame(lines)[order])
