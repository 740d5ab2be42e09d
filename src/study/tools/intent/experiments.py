"""Intent-based ranking on LiveMCPBench's real log: fixed weights, tuned weights, and what each signal brings.

Protocols: ``intent`` (every task, history = all other tasks), ``intent_prequential`` (history = the tasks before it in
file order; whether that is the order of time is not known), ``intent_requests`` (the agent's requests; the label is the
tool that it then ran; history = all other tasks; a task's requests are averaged).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from study.advisor.encoders.endpoint import Embedder
from study.advisor.engine.intent.context import Context, Requirements, obstacle
from study.advisor.engine.intent.feedback import Statistics, empty
from study.advisor.engine.intent.ranking import SIGNALS, SignalIndex, factors, most_named
from study.advisor.engine.intent.recommender import IntentRecommender
from study.advisor.engine.intent.settings import (
    CORRECTED,
    FACTORS,
    Float64Array,
    Intentions,
    Rules,
    as_designed,
    intent_settings,
)
from study.advisor.retrieval.documents import QuerySet, ToolCatalog, rank_all
from study.advisor.retrieval.index import Settings, ToolIndex
from study.data.dataset import Dataset, FloatArray, IntArray
from study.data.splits import Split
from study.runner.inputs import load_inputs
from study.t2mrec.structure import languages, operating_systems
from study.tools import results
from study.tools.collections.livemcpbench import Episode
from study.tools.intent.learning import differences, tune
from study.tools.mcp_zero import request_log
from study.tools.mcp_zero.request_log import Asks
from study.tools.results import Run, Table


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
    by_task = asked_tasks(episodes, queries)
    weights, brought = [], []
    protocols: dict[str, tuple[Asks, Known]] = {
        "intent": (by_task, others),
        "intent_prequential": (by_task, earlier),
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
    yield Table("intent_behaviour", pd.DataFrame([misread(catalog, by_task.queries.texts, intentions)]))


def latency_table(catalog: ToolCatalog, queries: QuerySet) -> Table:
    """intent_latency.csv: milliseconds per recommendation, first and cached; its record names the machine."""
    intentions = intent_settings()
    table = pd.DataFrame([latency(catalog, queries.texts, intentions)])
    facts = results.sources(catalog, queries) | {"config": asdict(intentions.ranking)}
    return Table("intent_latency", table, facts)


def filter_table() -> Table:
    """intent_filters.csv of the prepared Task2MCP, whose tasks and servers state languages."""
    return Table("intent_filters", compatibility(*load_inputs("task2mcp", "cold")), collection="task2mcp")


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
    """The measures by task; a task's several asks are averaged, so that the unit is the task everywhere."""
    table = results.measure(ranked, asks.queries, len(catalog.tools)).drop(columns="task_id")
    by_task = table.groupby(np.array(asks.queries.groups), sort=False).mean().rename_axis("task_id").reset_index()
    by_task["seed"] = results.SEED
    facts = {"asks": len(asks.queries), "config": dict(config)}
    return Run(protocol, name, by_task, (catalog, asks.queries), facts)


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
