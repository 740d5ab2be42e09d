"""What could be wrong with the collection: one test and one number for each threat to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pandas as pd
from scipy import stats

from study.evaluation import statistics
from study.judging import agreement, passes, readings, store
from study.judging.annotation import group
from study.judging.collection import Collection, Float64Array

Row = dict[str, object]


def row(threat: str, measure: str, value: float, low: float, high: float, n: int) -> Row:
    """One line of `threats`."""
    return {"threat": threat, "measure": measure, "value": value, "ci_low": low, "ci_high": high, "n": n}


def share(threat: str, measure: str, hits: int, n: int, scale: float = 1.0) -> Row:
    """A share of n, times `scale`, with its exact 95 % interval (Clopper and Pearson 1934)."""
    value, low, high = statistics.share_interval(hits, n, "beta")
    return row(threat, measure, scale * value, scale * low, scale * high, n)


def mean(threat: str, measure: str, values: Float64Array) -> Row:
    """A mean over topics with its 95 % bootstrap interval."""
    found = statistics.mean_interval(values[~np.isnan(values)], seed=0)
    return row(threat, measure, found["mean"], found["ci_low"], found["ci_high"], int((~np.isnan(values)).sum()))


def incompleteness(dataset: str, n_servers: int) -> Iterator[Row]:
    """Useful servers per topic: those known, and an estimate from the random control, by part of the collection."""
    judged, topics = store.final(dataset), store.read_table(dataset, "topics")
    useful = judged.assign(useful=judged["final"] >= 1).merge(topics, on="task_id")
    control = store.read_table(dataset, "provenance").merge(useful, on=store.PAIR)
    control = control[control["control"] == 1]
    for part, own in useful.groupby("part"):
        known = own.groupby("task_id")["useful"].sum().to_numpy(np.float64)
        yield mean("incompleteness", f"useful servers known per topic, {part}", known)
        drawn = control[control["part"] == part]
        hits = int(drawn["useful"].sum())
        yield share("incompleteness", f"useful servers per topic by the control, {part}", hits, len(drawn), n_servers)
    found = control[control["useful"]]
    unnamed = int(found["sources"].fillna("").eq("").sum())
    if len(found):
        yield share("incompleteness", "useful servers of the control that no system named", unnamed, len(found))


def leave_one_out(dataset: str) -> pd.DataFrame:
    """NDCG@10 of each pooled system, and the same had it not been pooled: pairs that it alone named are unjudged.

    Such a pair counts as without use for every system, so it is missing from the ideal order too.

    Returns: columns part, system, alone (judged pairs that no other system named and the control does not hold),
        ndcg@10, without, drop, place and place_without (by NDCG@10 among the systems).
    """
    judged, topics = store.final(dataset), store.read_table(dataset, "topics")
    named = store.read_table(dataset, "provenance")
    alone = named[(named["control"] == 0) & ~named["sources"].fillna("").str.contains(";")]
    runs = {name: run for name, run in store.read_runs(dataset).items() if name != store.LABELS}
    full = Collection.of(topics, judged)
    where = {name: readings.places(full, run) for name, run in runs.items()}
    before = pd.DataFrame({name: readings.values(full, place) for name, place in where.items()})
    rows = []
    for name in runs:
        own, grades = alone[alone["sources"] == name], full.grades.copy()
        topic = pd.Index(topics["task_id"]).get_indexer(pd.Index(own["task_id"]))
        grades[topic, np.searchsorted(full.servers, own["server_id"].to_numpy())] = 0
        less = replace(full, grades=grades)
        after = pd.DataFrame({other: readings.values(less, place) for other, place in where.items()})
        for part, ids in topics.groupby("part")["task_id"]:
            means, without = before.reindex(ids).mean().dropna(), after.reindex(ids).mean().dropna()
            if name in means:
                key: Row = {"part": part, "system": name, "alone": int(own["task_id"].isin(ids).sum())}
                key |= {"ndcg@10": means[name], "without": without[name], "drop": means[name] - without[name]}
                key |= {"place": int((means > means[name]).sum()) + 1}
                rows.append(key | {"place_without": int((without > without[name]).sum()) + 1})
    return pd.DataFrame(rows)


def placement(dataset: str) -> Float64Array:
    """Per topic: the share of useful grades in the first half of its packet less that in the second half, over both
    passes. The order of a packet is random, so without an effect of position the mean is 0."""
    pool, judged = store.read_table(dataset, "pool"), store.final(dataset).set_index(store.PAIR)
    rows = []
    for current, pairs in pool.groupby("round"):
        for number in ("1", "2"):
            rng = passes.order_of(int(str(current)), number)
            ordered = pd.concat(group(pairs[store.PAIR], 8, rng))
            grade = judged[f"grade_{number}"].reindex(pd.MultiIndex.from_frame(ordered)).to_numpy()
            place = ordered.groupby("task_id").cumcount() + 0.5
            size = ordered.groupby("task_id")["server_id"].transform("size")
            columns = {"task_id": ordered["task_id"], "first": place * 2 < size, "useful": grade >= 1}
            rows.append(pd.DataFrame(columns))
    halves = pd.concat(rows).pivot_table(index="task_id", columns="first", values="useful", aggfunc="mean")
    return (halves[True] - halves[False]).to_numpy(np.float64)


def length_effect(dataset: str) -> Float64Array:
    """Per topic: Spearman's correlation of a description's length with the final grade, over the judged servers; NaN
    where all grades or all lengths are equal."""
    lengths = store.read_table(dataset, "lengths")
    rows = store.final(dataset).merge(lengths, on="server_id")
    found = []
    for _, own in rows.groupby("task_id"):
        varied = own[["final", "characters"]].nunique().min() > 1
        columns = (own[name].to_numpy(np.float64) for name in ("final", "characters"))
        found.append(stats.spearmanr(*columns).statistic if varied else np.nan)
    return np.array(found, dtype=np.float64)


def deception(dataset: str) -> Iterator[Row]:
    """Cards that were altered to deceive: how many were graded above 0, beside untouched cards of either kind."""
    rows = store.read_table(dataset, "readings")
    rows = rows[rows["reading"] == passes.DECOYS]
    for kind in passes.KINDS:
        own = rows[rows["kind"] == kind]
        if len(own):
            yield share("deception", f"cards graded useful, {kind}", int((own["given"] >= 1).sum()), len(own))


def persons(dataset: str) -> Row:
    """Topics that a person graded: without any, no score is corrected by a person's grades."""
    hand = agreement.by_hand(store.final(dataset), store.folder(dataset) / "by_hand")
    topics = int(hand["topics"].max()) if len(hand) else 0
    return row("no person", "topics graded by a person", topics, np.nan, np.nan, topics)


def threats(dataset: str, scores: pd.DataFrame, alone: pd.DataFrame) -> pd.DataFrame:
    """One row per number: columns threat, measure, value, ci_low, ci_high (95 %), n.

    `scores`: of `study.judging.readings.scores_by_reading`. `alone`: of `leave_one_out`.
    """
    rows = list(incompleteness(dataset, len(store.read_table(dataset, "lengths"))))
    for part, own in alone.groupby("part"):
        worst = own.sort_values("drop").iloc[-1]
        text = f"largest drop of NDCG@10 had a system not been pooled, {part} ({worst['system']})"
        rows.append(row("incompleteness", text, float(worst["drop"]), np.nan, np.nan, len(own)))
    better, other = store.pool_settings().compared
    for _, one in scores[scores["system"] == better].iterrows():
        text = f"gain of {better} over {other} by {one['reading']}, {one['part']} ({one['against']})"
        rows.append(row("circularity", text, one["gain"], one["gain_ci_low"], one["gain_ci_high"], one["n"]))
    rows.append(mean("length", "correlation of length and grade within a topic", length_effect(dataset)))
    rows += deception(dataset)
    rejudged = store.read_table_if_there(dataset, "rejudged")
    if len(rejudged):
        drift = agreement.drift(store.final(dataset), rejudged).iloc[0]
        found = (drift[name] for name in ("shift", "ci_low", "ci_high", "pairs"))
        rows.append(row("drift", "grade at a later reading less the first", *found))
    rows.append(mean("position", "useful share of a packet's first half less its second", placement(dataset)))
    rows.append(persons(dataset))
    return pd.DataFrame(rows)


def threat_tables(dataset: str, scores: pd.DataFrame | None) -> dict[str, pd.DataFrame]:
    """threats and leave_one_out by file name; empty where no further reading was collected (`scores` is None)."""
    if scores is None:
        return {}
    alone = leave_one_out(dataset)
    return {"tables/leave_one_out.csv": alone, "tables/threats.csv": threats(dataset, scores, alone)}
