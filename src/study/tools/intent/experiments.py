"""Intent-based ranking on LiveMCPBench's real log: fixed weights, tuned weights, and what each signal brings.

Protocols: ``intent`` (every task, history = all other tasks), ``intent_prequential`` (history = the tasks before it in
file order; whether that is the order of time is not known), ``intent_requests`` (the agent's requests; the label is the
tool that it then ran; history = all other tasks; a task's requests are averaged).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace

import numpy as np
import pandas as pd

from study import paths
from study.data import dataset as datasets
from study.data import split_files
from study.data.dataset import FloatArray, IntArray
from study.evaluation.metrics import recall
from study.evaluation.records import record
from study.files import write_csv, write_json
from study.tools import results
from study.tools.catalogues import livemcp_log, published
from study.tools.catalogues.catalog import ToolCatalog
from study.tools.catalogues.queries import credit
from study.tools.discovery.experiments import rank_all
from study.tools.discovery.index import Settings, ToolIndex
from study.tools.intent import behaviour
from study.tools.intent import log as history
from study.tools.intent.candidates import SIGNALS, SignalIndex, most_named
from study.tools.intent.factors import factors
from study.tools.intent.settings import CORRECTED, FACTORS, Float64Array, Intentions, Rules, as_designed, load
from study.tools.intent.tuning import differences, tune

# Which episodes may be known when one is asked: (its row, their number) -> bool, shape (n_episodes,).
Known = Callable[[int, int], np.ndarray]


def others(row: int, count: int) -> np.ndarray:
    """All episodes but this one."""
    rest: np.ndarray = np.arange(count) != row
    return rest


def earlier(row: int, count: int) -> np.ndarray:
    """The episodes before this one."""
    before: np.ndarray = np.arange(count) < row
    return before


@dataclass(frozen=True)
class Study:
    """One protocol, ready to be scored.

    Attributes:
        relevance: cosines, shape (n_asks, n_tools).
        candidates: tools of the candidate stage per ask.
    """

    asks: history.Asks
    log: history.Log
    known: Known
    relevance: FloatArray
    candidates: tuple[IntArray, ...]
    intentions: Intentions
    rules: Rules = CORRECTED

    def factors(self, ask: int, left_out: int | None = None, *, at: int | None = None) -> Float64Array:
        """Factors of an ask's candidates, shape (n_candidates, 5).

        Args:
            left_out: an episode that must not be known either.
            at: the episode at whose time it is asked; None means the ask's own.
        """
        own = int(self.asks.episode[ask])
        known = self.known(own if at is None else at, len(self.log.calls))
        known[own] = False
        if left_out is not None:
            known[left_out] = False
        past = self.log.statistics(known, self.intentions.ranking.rating_scale)
        table = factors(self.relevance[ask], past, self.intentions.ranking, rules=self.rules)
        return table[self.candidates[ask]]

    def scores(self, weights: Mapping[int, Float64Array]) -> FloatArray:
        """Scores of all tools, -inf outside the candidates, shape (n_asks, n_tools).

        Args:
            weights: by episode.
        """
        found = np.full(self.relevance.shape, -np.inf, dtype=np.float32)
        for ask, rows in enumerate(self.candidates):
            found[ask, rows] = self.factors(ask) @ weights[int(self.asks.episode[ask])]
        return found

    def tuned(self, targets: Callable[[int], tuple[int, ...]]) -> dict[int, Float64Array]:
        """Per episode, weights learned from the episodes that it may know; none of them ever sees that episode.

        Args:
            targets: the tools of an ask that should be ranked above its other candidates.
        """
        found = {}
        for episode in sorted(set(self.asks.episode.tolist())):
            known = self.known(episode, len(self.log.calls))
            lessons = []
            for ask in np.flatnonzero(known[self.asks.episode]):
                rows = self.candidates[ask].tolist()
                place = {row: number for number, row in enumerate(rows)}
                wanted = [place[row] for row in targets(int(ask)) if row in place]
                table = self.factors(int(ask), left_out=episode, at=episode)
                lessons.append(differences(table, wanted, range(len(rows))))
            found[episode] = tune(lessons, self.intentions.variants["control"], self.intentions.tuning)
        return found


def run() -> None:
    """All protocols, and the tables intent_weights, intent_candidates, intent_behaviour, _latency and intent_filters.

    The last one needs the prepared Task2MCP, whose tasks and servers state languages.
    """
    loaded = published.load("livemcpbench")
    episodes = livemcp_log.load(paths.raw("livemcpbench"), loaded.catalog)
    past, intentions = history.count(episodes, len(loaded.catalog.tools)), load()
    index = ToolIndex(loaded.catalog, Settings(document=intentions.ranking.document))
    signals = {"corrected": SignalIndex(loaded.catalog, intentions)}
    signals["as designed"] = SignalIndex(loaded.catalog, intentions, as_designed())
    by_task, by_request = history.tasks(episodes, loaded.queries["tasks"]), history.requests(episodes)
    weights, brought = [], []
    protocols: dict[str, tuple[history.Asks, Known]] = {
        "intent": (by_task, others),
        "intent_prequential": (by_task, earlier),
        "intent_requests": (by_request, others),
    }
    for protocol, (asks, known) in protocols.items():
        relevance = index.scores(asks.queries.texts)
        study = Study(asks, past, known, relevance, stage(signals["corrected"], asks, relevance), intentions)
        weights.append(run_protocol(protocol, study, signals["as designed"]).assign(protocol=protocol))
        if known is others:
            parts = {name: by_signal(own, asks, relevance).assign(rules=name) for name, own in signals.items()}
            brought.append(pd.concat(parts.values()).assign(protocol=protocol))
    folder = paths.tables("livemcpbench")
    write_csv(folder / "intent_weights.csv", pd.concat(weights))
    write_csv(folder / "intent_candidates.csv", pd.concat(brought))
    facts = behaviour.misread(loaded.catalog, by_task.queries.texts, intentions)
    write_csv(folder / "intent_behaviour.csv", pd.DataFrame([facts]))
    run_latency()
    data = datasets.load("task2mcp")
    split = split_files.load(paths.splits("task2mcp") / "cold.parquet", data)
    write_csv(paths.tables("task2mcp") / "intent_filters.csv", behaviour.compatibility(data, split))


def run_latency() -> None:
    """intent_latency.csv: milliseconds per recommendation, first and cached; its record names the machine."""
    loaded, intentions = published.load("livemcpbench"), load()
    queries, folder = loaded.queries["tasks"], paths.tables("livemcpbench")
    table = pd.DataFrame([behaviour.latency(loaded.catalog, queries.texts, intentions)])
    write_csv(folder / "intent_latency.csv", table)
    facts = results.sources(loaded.catalog, queries) | {"config": asdict(intentions.ranking)}
    write_json(folder / "intent_latency.json", record(dataset="livemcpbench", table="intent_latency", **facts))


def stage(signals: SignalIndex, asks: history.Asks, relevance: FloatArray) -> tuple[IntArray, ...]:
    """The candidates of every ask."""
    return tuple(
        signals.candidates(signals.read(text), own) for text, own in zip(asks.queries.texts, relevance, strict=True)
    )


def run_protocol(protocol: str, study: Study, designed: SignalIndex) -> pd.DataFrame:
    """Every system under one protocol.

    Returns: the tuned weights, one row per source and factor: mean, least and greatest over the folds.
    """
    asks, intentions = study.asks, study.intentions
    everything = replace(study, candidates=(np.arange(study.relevance.shape[1]),) * len(asks.queries))
    variants = intentions.variants
    alone = dict(zip(FACTORS, np.eye(len(FACTORS)), strict=True))
    fixed: dict[str, tuple[Study, Float64Array]] = {
        "intent_relevance": (everything, alone["relevance"]),
        "intent_relevance_candidates": (study, alone["relevance"]),
        "intent_success_rate": (everything, alone["success_rate"]),
        "intent_popularity": (everything, alone["popularity"]),
        "intent_user_rating": (everything, alone["user_rating"]),
        **{f"intent_{name}": (study, weights) for name, weights in variants.items()},
        "intent_control_all_tools": (everything, variants["control"]),
        "intent_as_designed": (
            replace(study, candidates=stage(designed, asks, study.relevance), rules=as_designed()),
            variants["control"],
        ),
    }
    for name, (chosen, weights) in fixed.items():
        config = {"weights": weights.tolist(), "rules": asdict(chosen.rules), "ranking": asdict(intentions.ranking)}
        _save(
            protocol, name, chosen.scores(dict.fromkeys(asks.episode.tolist(), weights)), asks, config, designed.catalog
        )
    lines = []
    lessons: Mapping[str, Callable[[int], tuple[int, ...]]] = {
        "log": lambda ask: asks.selected[ask],
        "labels": lambda ask: tuple(tool for label in asks.queries.labels[ask] for tool in label),
    }
    for source, targets in lessons.items():
        if source == "labels" and protocol == "intent_requests":
            continue  # its labels are the log's choices
        learned = study.tuned(targets)
        config = {"tuning": asdict(intentions.tuning), "ranking": asdict(intentions.ranking)}
        _save(protocol, f"intent_tuned_on_{source}", study.scores(learned), asks, config, designed.catalog)
        # Learned among candidates, applied to the whole catalogue.
        _save(
            protocol, f"intent_tuned_on_{source}_all_tools", everything.scores(learned), asks, config, designed.catalog
        )
        table = np.stack(list(learned.values()))
        for factor, column in zip(FACTORS, table.T, strict=True):
            spread = {"mean": column.mean(), "least": column.min(), "greatest": column.max()}
            lines.append({"learned_on": source, "factor": factor, "folds": len(table), **spread})
    if protocol == "intent_requests":
        _save_ranked(protocol, "recorded", asks.returned, asks, {}, designed.catalog)
    return pd.DataFrame(lines)


def _save(
    protocol: str, name: str, scores: FloatArray, asks: history.Asks, config: Mapping[str, object], catalog: ToolCatalog
) -> None:
    _save_ranked(protocol, name, rank_all(scores), asks, config, catalog)


def _save_ranked(
    protocol: str, name: str, ranked: IntArray, asks: history.Asks, config: Mapping[str, object], catalog: ToolCatalog
) -> None:
    """Keep the measures by task; a task's several asks are averaged, so that the unit is the task everywhere."""
    table = results.measure(ranked, asks.queries, len(catalog.tools)).drop(columns="task_id")
    by_task = table.groupby(np.array(asks.queries.groups), sort=False).mean().rename_axis("task_id").reset_index()
    by_task["seed"] = results.SEED
    inputs = catalog, asks.queries
    results.save("livemcpbench", protocol, name, by_task, inputs, asks=len(asks.queries), config=dict(config))


def by_signal(signals: SignalIndex, asks: history.Asks, relevance: FloatArray) -> pd.DataFrame:
    """Recall of the labels among each signal's candidates, and among those of all together.

    Returns: one row per signal: silent (share of asks to which it brings nothing), brought (mean number of distinct
    tools before the cut), recall (after the cut at ``ranking.candidates``).
    """
    count = signals.intentions.ranking.candidates or relevance.shape[1]
    named = [
        signals.named(signals.read(text), own, count) for text, own in zip(asks.queries.texts, relevance, strict=True)
    ]
    lines = []
    for signal in (*SIGNALS, "all"):
        kept = SIGNALS if signal == "all" else (signal,)
        ranked = np.full((len(named), count), -1, dtype=np.int64)
        sizes = []
        for row, found in enumerate(named):
            own = {name: found[name] for name in kept}
            chosen = most_named(own, relevance[row], signals.order, count, signals.rules)
            ranked[row, : len(chosen)] = chosen
            sizes.append(len({tool for tools in own.values() for tool in tools}))
        rewritten, relevant = credit(ranked, asks.queries.labels, relevance.shape[1])
        lines.append(
            {
                "signal": signal,
                "asks": len(named),
                "silent": float(np.mean([not size for size in sizes])),
                "brought": float(np.mean(sizes)),
                "recall": float(recall(rewritten, relevant, count).mean()),
            }
        )
    return pd.DataFrame(lines)
