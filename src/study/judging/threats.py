"""What could be wrong with the collection: one test and one number for each threat to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pandas as pd
from scipy import stats

from study.evaluation import statistics
from study.judging import agreement, store, workflow
from study.judging.collection import Collection, Float64Array
from study.judging.evaluate import mean_interval

Number = tuple[float, float, float, int]  # value, its 95 % limits, n
UNKNOWN = float("nan")


def share(hits: int, n: int, scale: float = 1.0) -> Number:
    """A share of n, times `scale`, with its exact 95 % interval (Clopper and Pearson 1934)."""
    value, low, high = statistics.share_interval(hits, n, "beta")
    return scale * value, scale * low, scale * high, n


def mean(values: Float64Array) -> Number:
    """A mean over topics, those without a value left out, with its 95 % bootstrap interval."""
    defined = values[~np.isnan(values)]
    interval = mean_interval(defined)
    return interval["mean"], interval["ci_low"], interval["ci_high"], len(defined)


def incompleteness(collection: Collection) -> Iterator[tuple[str, Number]]:
    """Useful servers per topic: those known, and an estimate from the random control, by part of the collection; and
    how many topics have no server of the highest grade."""
    useful = collection.judgements.assign(useful=collection.judgements["final"] >= 1)
    useful = useful.merge(collection.topics, on="task_id")
    control = collection.table("provenance").merge(useful, on=store.PAIR)
    control, n_servers = control[control["control"] == 1], len(collection.table("lengths"))
    for part, of_part in useful.groupby("part"):
        per_topic = of_part.groupby("task_id")["useful"].sum().to_numpy(np.float64)
        yield f"useful servers known per topic, {part}", mean(per_topic)
        best = of_part.groupby("task_id")["final"].max()
        yield f"topics without a core server, {part}", (float((best < 2).sum()), UNKNOWN, UNKNOWN, len(best))
        hits = control.loc[control["part"] == part, "useful"]
        yield f"useful servers per topic by the control, {part}", share(int(hits.sum()), len(hits), n_servers)
    unnamed = control.loc[control["useful"], "sources"].isna()
    if len(unnamed):
        yield "useful servers of the control that no system named", share(int(unnamed.sum()), len(unnamed))


def leave_one_out(full: Collection) -> pd.DataFrame:
    """NDCG@10 of each pooled system, and the same had it not been pooled: pairs that it alone named are unjudged.

    Such a pair counts as without use for every system, so it is missing from the ideal order too.

    Returns: columns part, system, alone (judged pairs that no other system named and the control does not hold),
        ndcg@10, without, drop, place and place_without (by NDCG@10 among the systems).
    """
    named, rows = full.table("provenance"), []
    alone = named[named["control"] == 0].groupby("sources")  # a pair that several named has all their names
    runs = {name: run for name, run in full.runs.items() if name != store.LABELS}

    def means(collection: Collection) -> pd.DataFrame:
        return pd.DataFrame({name: collection.ndcg(run) for name, run in runs.items()})

    before = means(full)
    for name in runs:
        pairs, grades = alone.get_group(name) if name in alone.groups else named[:0], full.grades.copy()
        topic = pd.Index(full.topics["task_id"]).get_indexer(pd.Index(pairs["task_id"]))
        grades[topic, np.searchsorted(full.servers, pairs["server_id"].to_numpy(np.int64))] = 0
        after = means(replace(full, grades=grades))
        for part, ids in full.topics.groupby("part")["task_id"]:
            with_it, without = before.reindex(ids).mean().dropna(), after.reindex(ids).mean().dropna()
            if name in with_it:
                key: dict[str, object] = {"part": part, "system": name, "alone": int(pairs["task_id"].isin(ids).sum())}
                key |= {"ndcg@10": with_it[name], "without": without[name], "drop": with_it[name] - without[name]}
                key |= {"place": int((with_it > with_it[name]).sum()) + 1}
                rows.append(key | {"place_without": int((without > without[name]).sum()) + 1})
    return pd.DataFrame(rows)


def placement(collection: Collection) -> Float64Array:
    """Per topic: the share of useful grades in the first half of its packet less that in the second half, over both
    passes. The order of a packet is random, so without an effect of position the mean is 0."""
    judged, rows = collection.judgements.set_index(store.PAIR), []
    for current, pairs in collection.table("pool").groupby("round"):
        for number in ("1", "2"):
            ordered = pd.concat(workflow.group(pairs[store.PAIR], workflow.order_of(int(str(current)), number)))
            grade = judged[f"grade_{number}"].reindex(pd.MultiIndex.from_frame(ordered)).to_numpy()
            position = ordered.groupby("task_id").cumcount() + 0.5
            size = ordered.groupby("task_id")["server_id"].transform("size")
            columns = {"task_id": ordered["task_id"], "first": position * 2 < size, "useful": grade >= 1}
            rows.append(pd.DataFrame(columns))
    halves = pd.concat(rows).pivot_table(index="task_id", columns="first", values="useful", aggfunc="mean")
    return (halves[True] - halves[False]).to_numpy(np.float64)


def length_effect(collection: Collection) -> Float64Array:
    """Per topic: Spearman's correlation of a description's length with the final grade, over the judged servers; NaN
    where all grades or all lengths are equal."""
    rows = collection.judgements.merge(collection.table("lengths"), on="server_id")
    rows = rows[["task_id", "final", "characters"]].astype(np.float64)
    return np.array(
        [
            stats.spearmanr(one["final"], one["characters"]).statistic if one.nunique().min() > 1 else np.nan
            for one in (part.drop(columns="task_id") for _, part in rows.groupby("task_id"))
        ]
    )


def deception(collection: Collection) -> Iterator[tuple[str, Number]]:
    """Cards that were altered to deceive: how many were graded above 0, beside untouched cards of either kind."""
    rows = collection.table("readings")
    for kind in workflow.KINDS:
        given = rows.loc[(rows["reading"] == workflow.DECOYS) & (rows["kind"] == kind), "given"]
        if len(given):
            yield f"cards graded useful, {kind}", share(int((given >= 1).sum()), len(given))


def threats(collection: Collection, scores: pd.DataFrame, alone: pd.DataFrame) -> pd.DataFrame:
    """One row per number: columns threat, measure, value, ci_low, ci_high (95 %), n. `scores`: of
    `study.judging.readings.scores_by_reading`. `alone`: of `leave_one_out`."""
    judged, numbers = collection.judgements, [("incompleteness", *each) for each in incompleteness(collection)]
    for part, drops in alone.groupby("part"):
        worst = drops.sort_values("drop").iloc[-1]
        text = f"largest drop of NDCG@10 had a system not been pooled, {part} ({worst['system']})"
        numbers.append(("incompleteness", text, (float(worst["drop"]), UNKNOWN, UNKNOWN, len(drops))))
    better, other = store.pool_settings().compared
    for _, one in scores[scores["system"] == better].iterrows():
        text = f"gain of {better} over {other} by {one['reading']}, {one['part']} ({one['against']})"
        numbers.append(("circularity", text, (one["gain"], one["gain_ci_low"], one["gain_ci_high"], one["n"])))
    numbers.append(("length", "correlation of length and grade within a topic", mean(length_effect(collection))))
    numbers += [("deception", *each) for each in deception(collection)]
    if len(rejudged := collection.table("rejudged")):
        shift = agreement.drift(judged, rejudged).iloc[0]
        number = (shift["shift"], shift["ci_low"], shift["ci_high"], shift["pairs"])
        numbers.append(("drift", "grade at a later reading less the first", number))
    halves = mean(placement(collection))
    numbers.append(("position", "useful share of a packet's first half less its second", halves))
    hand = agreement.by_hand(judged, store.folder(collection.dataset) / "by_hand")
    topics = int(hand["topics"].max()) if len(hand) else 0  # without any, no score is corrected by a person's grades
    numbers.append(("no person", "topics graded by a person", (topics, UNKNOWN, UNKNOWN, topics)))
    rows = [(threat, measure, *number) for threat, measure, number in numbers]
    return pd.DataFrame(rows, columns=["threat", "measure", "value", "ci_low", "ci_high", "n"])


def threat_tables(collection: Collection, scores: pd.DataFrame | None) -> dict[str, pd.DataFrame]:
    """threats and leave_one_out; empty where no further reading was collected (`scores` is None)."""
    if scores is None:
        return {}
    alone = leave_one_out(collection)
    return {"leave_one_out": alone, "threats": threats(collection, scores, alone)}
