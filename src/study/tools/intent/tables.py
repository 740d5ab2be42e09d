"""Session context, coverage, and the specification's targets against what was measured, on LiveMCPBench's log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from study.advisor.engine.intent.ranking import SignalIndex
from study.advisor.engine.intent.sessions import Chains, session_settings
from study.advisor.engine.intent.settings import CONTROL, FACTORS, Float64Array, intent_settings
from study.advisor.retrieval.documents import QuerySet, ToolCatalog, rank_all
from study.advisor.retrieval.index import Settings, ToolIndex
from study.evaluation.statistics import bootstrap_interval
from study.tools import results
from study.tools.collections.livemcpbench import Episode
from study.tools.intent.experiments import Study, asked_tasks, count, others, stage
from study.tools.mcp_zero import request_log
from study.tools.mcp_zero.request_log import Asks
from study.tools.results import Runs, Table

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
                table = results.measure(moved, asks.queries, n_tools).drop(columns="task_id")
                by_task = table.groupby(np.array(asks.queries.groups)).mean()
                found = {name: by_task[name].mean() for name in (f"mrr@{n_tools}", "hit_rate@1", "hit_rate@3")}
                told = int((bonus > 0).any(axis=1).sum())
                line = {"system": f"intent_{name}", "weight": weight, "asks": len(bonus), "asks_with_chain": told}
                chains.append(line | found)
    yield Table("intent_chains", pd.DataFrame(chains))
    yield Table("intent_coverage", pd.DataFrame(coverage))


def following(asks: Asks, episodes: Sequence[Episode], n_tools: int) -> Float64Array:
    """`Chains.following` of what an agent had run before each request, shape (n_asks, n_tools); its own task is not in
    the log that it is counted in."""
    used = [[run.tool for run in one.executions if run.tool is not None and run.ok] for one in episodes]
    settings, found = session_settings(), np.zeros((len(asks.queries), n_tools))
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
    lines += [_time(name, latency) for name in ("first_p50_ms", "first_p95_ms", "cached_p95_ms")]
    lines.append({"target": "user rating", "limit": "> 4.5 of 5", "met": NOT_RATED})
    order = ["target", "limit", "protocol", "system", "n", "measured", "ci_low", "ci_high", "met"]
    return Table("intent_targets", pd.DataFrame(lines)[order])


def _time(name: str, latency: pd.DataFrame | None) -> dict[str, object]:
    line: dict[str, object] = {"target": f"latency, {name}", "limit": "< 100 ms", "system": "intent_control"}
    if latency is None:
        return line | {"met": "not measured"}
    value = float(latency[name].iloc[0])
    return line | {"measured": value, "met": "yes" if value < 100 else "no"}
