"""Protocol `judged`: how useful the answers and the released labels are, with what is unknown beside every score.

Everything is computed from committed files: topics.csv, judgements.csv, the pooled runs, and the first ten answers of
other systems. A mean has an interval over topics (which tasks were drawn); NDCG and precision also have one for judge
noise (had the judge graded once more). The validation topics serve choices; the test topics never do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from study import paths
from study.errors import StudyError
from study.evaluation import metrics
from study.evaluation.statistics import mean_interval, percentile_limits, resampled, tau_b
from study.judging import collection as measures
from study.judging import store
from study.judging.collection import DEPTH, Collection, Float64Array
from study.runner.row_store import read_top10

CUTOFFS = (5, 10)
PERSISTENCE = 0.8
# Above this share of unjudged answers two systems are not compared.
MOST_UNJUDGED = 0.05
NOISE_RESAMPLES = 200
SHARES = {"useful": 1, "core": 2}
RESAMPLES = 2_000  # of the correlations and of label_families.csv
FAMILY_COLUMNS = ["family", "systems", "topics", "tau", "p", "ci_low", "ci_high", "use", "use_ci_low", "use_ci_high"]
FAMILY_COLUMNS += ["diff", "diff_ci_low", "diff_ci_high", "diff_p"]


def per_task(collection: Collection, run: pd.DataFrame) -> pd.DataFrame:
    """Every measure for every topic and seed of a run.

    `run`: columns task_id, seed, rank, server_id; tasks that are no topics are ignored.
    Returns: task_id, seed, ndcg@5 and @10 (gains 2^g - 1), precision@k (grade >= 1), core_precision@k (grade 2), mrr@10
        (first grade >= 1), bpref, rbp, rbp_residual, unjudged@k. NDCG, MRR and bpref are NaN for topics without any
        useful server; bpref and rbp see ten places, as the run does.
    """
    frames = []
    for seed, part in run.groupby("seed"):
        rows, ranked, grades = collection.look_up(part)
        relevant, judged = collection.relevant(rows), collection.grades[rows]
        values = {f"ndcg@{k}": metrics.ndcg(ranked, relevant, k, graded=True) for k in CUTOFFS}
        values |= {f"precision@{k}": measures.precision(grades, k, least=1) for k in CUTOFFS}
        values |= {f"core_precision@{k}": measures.precision(grades, k, least=2) for k in CUTOFFS}
        values[f"mrr@{DEPTH}"] = metrics.mrr(ranked, relevant, DEPTH)
        values["bpref"] = measures.bpref(grades, (judged >= 1).sum(axis=1), (judged == 0).sum(axis=1))
        values["rbp"], values["rbp_residual"] = measures.rbp(grades, PERSISTENCE)
        values |= {f"unjudged@{k}": measures.unjudged(grades, k) for k in CUTOFFS}
        keys = {"task_id": collection.topics["task_id"].to_numpy()[rows], "seed": seed}
        frames.append(pd.DataFrame(keys | values))
    if not frames or not len(frames[0]):
        raise StudyError("the run answers none of the topics", fix="run the system for the topics of topics.csv")
    return pd.concat(frames, ignore_index=True)


@dataclass(frozen=True)
class Redrawn:
    """A part of a collection as if its judge had graded every pair twice anew, `NOISE_RESAMPLES` times.

    `collection`: the part.
    `pair`: shape (topics, servers and unknown ones), the number of a judged pair, -1 for others.
    `grades`: shape (draws, pairs).
    `ideal`: the cutoff -> shape (draws, topics), the discounted gain of a perfect order; 0 without a useful server.
    """

    collection: Collection
    pair: NDArray[np.int64]
    grades: NDArray[np.int8]
    ideal: Mapping[int, Float64Array]


def redrawn(collection: Collection, part: str, *, seed: int) -> Redrawn:
    """The two new grades of a pair are drawn, with replacement, from its first two: equal ones count as that grade,
    unequal ones give the final grade, as they did. The draws are the same for every system."""
    rng, collection = np.random.default_rng(seed), collection.part(part)
    topic, server = np.nonzero(collection.grades != measures.UNJUDGED)
    first, second = collection.passes[:, topic, server]
    final = collection.grades[topic, server]
    pair = np.full((len(collection.topics), len(collection.servers) + DEPTH), -1)
    pair[topic, server] = np.arange(len(topic))
    drawn = [np.choose(rng.integers(4, size=len(topic)), (first, second, final, final)) for _ in range(NOISE_RESAMPLES)]
    grades = np.array(drawn, dtype=np.int8).reshape(NOISE_RESAMPLES, len(topic))
    best = np.zeros((NOISE_RESAMPLES, len(collection.topics), max(CUTOFFS)))
    for row, places in enumerate(pair):
        own = -np.sort(-grades[:, places[places >= 0]], axis=1)[:, : max(CUTOFFS)]
        best[:, row, : own.shape[1]] = own
    return Redrawn(collection, pair, grades, {k: _discounted(best, k) for k in CUTOFFS})


def _discounted(grades: NDArray[np.generic], k: int) -> Float64Array:
    """The sum of (2^g - 1) / log2(i + 1) over the first k places of the last axis (eq. 29-30)."""
    gains = np.exp2(grades[..., :k].astype(np.float64)) - 1
    total: Float64Array = (gains / np.log2(np.arange(2, k + 2))).sum(axis=-1)
    return total


def noise(drawn: Redrawn, run: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """95 % intervals of a run's means if the judge had graded every pair twice anew."""
    found = [drawn.collection.look_up(own)[:2] for _, own in run.groupby("seed")]
    rows, ranked = (np.concatenate(parts) for parts in zip(*found, strict=True))
    place = np.where(ranked >= 0, drawn.pair[rows[:, None], ranked], -1)
    grades = np.where(place >= 0, np.take(drawn.grades, place, axis=1), 0)
    kept: dict[str, Float64Array] = {}
    for k in CUTOFFS:
        ideal = drawn.ideal[k][:, rows]
        defined = ideal > 0
        shares = np.divide(_discounted(grades, k), ideal, out=np.zeros_like(ideal), where=defined)
        means = [own[known].mean() for own, known in zip(shares, defined, strict=True) if known.any()]
        kept[f"ndcg@{k}"] = np.array(means)
        kept[f"precision@{k}"] = ((grades[..., :k] >= 1).sum(axis=2) / k).mean(axis=1)
        kept[f"core_precision@{k}"] = ((grades[..., :k] >= 2).sum(axis=2) / k).mean(axis=1)
    return {name: percentile_limits(means) for name, means in kept.items() if len(means)}


def scores(
    collection: Collection, tables: Mapping[str, pd.DataFrame], runs: Mapping[str, pd.DataFrame], *, seed: int = 0
) -> pd.DataFrame:
    """Means with both intervals, from rows of `per_task` by system and the runs they were computed from.

    Returns: columns system, part, metric, n (topics where it is defined), mean, ci_low, ci_high, noise_ci_low,
        noise_ci_high (empty for measures without), unjudged (share among the places that the metric looks at),
        comparable.
    """
    rows, drawn = [], {part: redrawn(collection, part, seed=seed) for part in collection.topics["part"].unique()}
    for system, frame in tables.items():
        averaged = frame.drop(columns="seed").groupby("task_id").mean(skipna=False).reset_index()
        parts = averaged.merge(collection.topics, on="task_id")
        for part, values in parts.groupby("part"):
            noisy = noise(drawn[part], runs[system])
            for metric in (name for name in averaged.columns[1:] if not name.startswith("unjudged")):
                defined = values[metric].dropna().to_numpy(np.float64)
                k = int(metric.partition("@")[2] or DEPTH)
                unknown = float(values[f"unjudged@{k}"].mean())
                noise_low, noise_high = noisy.get(metric, (np.nan, np.nan))
                row = {"system": system, "part": part, "metric": metric, "n": len(defined)}
                row |= {**mean_interval(defined, seed=seed), "noise_ci_low": noise_low, "noise_ci_high": noise_high}
                rows.append(row | {"unjudged": unknown, "comparable": unknown <= MOST_UNJUDGED})
    return pd.DataFrame(rows)


def all_runs(dataset: str) -> dict[str, pd.DataFrame]:
    """The pooled runs, and the test answers of every other system that ran under the topics' protocol."""
    runs = store.read_runs(dataset)
    protocol = store.topic_settings().protocol
    return runs | {name: run for name, run in read_top10(dataset, protocol).items() if name not in runs}


def score_tables(dataset: str) -> dict[str, pd.DataFrame]:
    """Every run scored: ``per_task.csv.xz`` and ``tables/scores.csv``, by file name."""
    collection, runs = Collection.load(dataset), all_runs(dataset)
    values = {name: per_task(collection, run) for name, run in runs.items()}
    every = pd.concat([frame.assign(system=name) for name, frame in values.items()], ignore_index=True)
    every = every[["system", *every.columns.drop("system")]]
    return {"per_task.csv.xz": every, "tables/scores.csv": scores(collection, values, runs)}


def graded(pairs: pd.DataFrame, judgements: pd.DataFrame) -> pd.DataFrame:
    """The pairs with their final grade; every pair must be judged."""
    rows = pairs.merge(judgements[[*store.PAIR, "final"]], on=store.PAIR, how="left", validate="many_to_one")
    if rows["final"].isna().any():
        raise StudyError(f"{int(rows['final'].isna().sum())} pairs are not judged", fix="judge the whole pool first")
    return rows.assign(final=rows["final"].astype(np.int64))


def shares(rows: pd.DataFrame, *, seed: int = 0) -> dict[str, float]:
    """Share of useful (grade >= 1) and core (2) servers and the mean grade: means over topics, with intervals. Returns:
    topics, pairs, then useful, core and mean_grade, each with _ci_low and _ci_high (95 %)."""
    values = {name: (rows["final"] >= least).astype(np.float64) for name, least in SHARES.items()}
    values["mean_grade"] = rows["final"].astype(np.float64)
    found: dict[str, float] = {"topics": rows["task_id"].nunique(), "pairs": len(rows)}
    for name, column in values.items():
        by_topic: Float64Array = np.asarray(column.groupby(rows["task_id"]).mean(), dtype=np.float64)
        found |= mean_interval(by_topic, seed=seed, name=name, prefix=f"{name}_")
    return found


def label_precision(dataset: str, labels: pd.DataFrame, classes: pd.DataFrame | None = None) -> pd.DataFrame:
    """How many released labels are useful: overall, by part, position and provenance, and the random control.

    `labels`: the released lists as a run, the listed position as rank.
    `classes`: of the audit, columns task_id, server_id, class: which rule a label bears the mark of.
    Returns: columns scope (all, part, position, class, control), name, and those of `shares`.
    """
    judgements, provenance = store.read_table(dataset, "judgements"), store.read_table(dataset, "provenance")
    rows = graded(labels, judgements).merge(store.read_table(dataset, "topics"), on="task_id")
    groups = {"part": rows.groupby("part"), "position": rows.groupby("rank")}
    if classes is not None:
        marked = rows.merge(classes[[*store.PAIR, "class"]].drop_duplicates(store.PAIR), on=store.PAIR, how="left")
        groups["class"] = marked.groupby("class")
    scopes = [("all", "all", rows)]
    scopes += [(scope, str(name), part) for scope, grouped in groups.items() for name, part in grouped]
    scopes += [("control", "all", graded(provenance[provenance["control"] == 1], judgements))]
    return pd.DataFrame([{"scope": scope, "name": name, **shares(part)} for scope, name, part in scopes])


def by_labels(collection: Collection, run: pd.DataFrame, labels: pd.DataFrame) -> pd.DataFrame:
    """NDCG@10 against the released labels, per topic and seed: columns task_id, seed, by_labels."""
    listed = Collection.of(collection.topics, labels.assign(final=1, grade_1=1, grade_2=1))
    frames = []
    for seed, part in run.groupby("seed"):
        rows, ranked, _ = listed.look_up(part)
        values = metrics.ndcg(ranked, listed.relevant(rows), DEPTH)
        ids = collection.topics["task_id"].to_numpy()[rows]
        frames.append(pd.DataFrame({"task_id": ids, "seed": seed, "by_labels": values}))
    return pd.concat(frames, ignore_index=True)


def two_views(
    collection: Collection, runs: Mapping[str, pd.DataFrame], part: str, variants: Sequence[str] = ()
) -> pd.DataFrame:
    """NDCG@10 by labels and by judgements per topic of a part, averaged over seeds.

    Left out are the released labels themselves, which score 1 by definition, systems with more than 5 % of unjudged
    answers, variants (patterns of names: near copies of a system would be counted as independent evidence), and topics
    without any useful server.

    Returns: columns system, task_id, by_labels, by_judgements.
    """
    wanted, frames = set(collection.topics.loc[collection.topics["part"] == part, "task_id"]), []
    for name, run in runs.items():
        if name == store.LABELS or any(fnmatchcase(name, pattern) for pattern in variants):
            continue
        judged = per_task(collection, run)
        judged = judged[judged["task_id"].isin(wanted)]
        if judged["unjudged@10"].mean() > MOST_UNJUDGED:
            continue
        view = by_labels(collection, run, runs[store.LABELS]).merge(judged, on=["task_id", "seed"])
        means = view.groupby("task_id")[["by_labels", "ndcg@10"]].mean().dropna().reset_index()
        frames.append(means.rename(columns={"ndcg@10": "by_judgements"}).assign(system=name))
    if not frames:
        raise StudyError("no system can be compared", fix="judge the pool, or a further round of it")
    return pd.concat(frames, ignore_index=True)[["system", "task_id", "by_labels", "by_judgements"]]


def rank_correlation(views: pd.DataFrame, *, seed: int = 0) -> dict[str, float]:
    """Kendall's tau-b between the systems' means by labels and by judgements.

    Intervals are 95 % percentile bootstraps. That of `ci_low` and `ci_high` draws topics and systems with replacement,
    independently of each other: other topics could have been taken, and other systems been tried. A system drawn twice
    ties with itself by both means, and tau-b leaves such pairs out. That of `topics_ci_low` and `topics_ci_high` draws
    topics alone: it holds for these very systems.

    Returns: systems, topics, tau, p (two-sided, exact over all orders of the systems; NaN where means tie, since the
        exact distribution is that of orders without ties), the ends of both intervals; NaN for fewer than two systems.
    """
    labels, judged = means_wide(views)
    systems, topics = labels.shape
    found: dict[str, float] = {"systems": systems, "topics": topics}
    if systems < 2:
        ends = ("ci_low", "ci_high", "topics_ci_low", "topics_ci_high")
        return found | dict.fromkeys(("tau", "p", *ends), float("nan"))
    drawn_topics, drawn_systems = resampled(topics, systems, seed=seed, resamples=RESAMPLES)
    means = np.array([[view[:, chosen].mean(axis=1) for view in (labels, judged)] for chosen in drawn_topics])
    by_topics = tau_b(means[:, 0], means[:, 1])
    by_both = tau_b(*(np.take_along_axis(means[:, view], drawn_systems, axis=1) for view in (0, 1)))
    fit, use = labels.mean(axis=1), judged.mean(axis=1)
    untied = len(np.unique(fit)) == len(np.unique(use)) == systems
    found |= {"tau": float(stats.kendalltau(fit, use).statistic)}
    found |= {"p": float(stats.kendalltau(fit, use, method="exact").pvalue) if untied else float("nan")}
    for prefix, taus in (("", by_both), ("topics_", by_topics)):
        found |= zip((f"{prefix}ci_low", f"{prefix}ci_high"), percentile_limits(taus), strict=True)
    return found


def means_wide(views: pd.DataFrame) -> tuple[Float64Array, Float64Array]:
    """The columns by_labels and by_judgements of `two_views`, each of shape (systems, topics), systems by name."""
    wide = views.pivot_table(index="system", columns="task_id", values=["by_labels", "by_judgements"])
    labels, judged = (np.asarray(wide[name], dtype=np.float64) for name in ("by_labels", "by_judgements"))
    return labels, judged


def label_families(views: pd.DataFrame, kinds: store.LabelUse, *, seed: int = 0) -> pd.DataFrame:
    """Do systems that learn the labels order alike, and are they as useful as systems that see none?

    Intervals draw topics and systems, as in `rank_correlation`, the systems of each kind apart. `diff_p` is exact: over
    all ways to part the systems into two kinds of these sizes (twice the smaller one-sided share).

    Returns: one row per kind that has systems (`with_labels`, with them the `fused` ones in a second row,
        `without_labels`, and the `untuned` ones of these): family, systems, topics, tau, p, ci_low, ci_high, use (mean
        judged NDCG@10 over systems and topics), use_ci_low, use_ci_high, and diff (use minus that of `without_labels`;
        in the row of `untuned`, that of `with_labels` minus its own), diff_ci_low, diff_ci_high,
        diff_p (empty where a side has one system).
    """
    families = {
        "with_labels": kinds.with_labels,
        "with_labels and fused": [*kinds.with_labels, *kinds.fused],
        "without_labels": kinds.without_labels,
        "untuned": kinds.untuned,
    }
    compared = {name: (name, "without_labels") for name in ("with_labels", "with_labels and fused")}
    compared["untuned"] = ("with_labels", "untuned")
    parts = {name: views[views["system"].isin(systems)] for name, systems in families.items()}
    parts = {name: part for name, part in parts.items() if len(part)}
    used = {name: means_wide(part)[1] for name, part in parts.items()}
    drawn = {name: _use_draws(use, seed, number) for number, (name, use) in enumerate(used.items())}
    rows = []
    for name, part in parts.items():
        row: dict[str, object] = {"family": name, **rank_correlation(part, seed=seed)}
        row |= {"use": used[name].mean(), **_ends("use", drawn[name])}
        learned, unseen = compared.get(name, ("", ""))
        if {learned, unseen} <= used.keys():
            row |= {"diff": used[learned].mean() - used[unseen].mean(), **_ends("diff", drawn[learned] - drawn[unseen])}
            means = used[learned].mean(axis=1), used[unseen].mean(axis=1)
            if min(len(each) for each in means) > 1:
                rng = np.random.default_rng(seed)
                row["diff_p"] = stats.permutation_test(means, _mean_difference, rng=rng).pvalue
        rows.append(row)
    return pd.DataFrame(rows, columns=FAMILY_COLUMNS)


def _mean_difference(one: Float64Array, other: Float64Array, axis: int = -1) -> Float64Array:
    found: Float64Array = np.asarray(one.mean(axis=axis) - other.mean(axis=axis))
    return found


def _use_draws(use: Float64Array, seed: int, number: int) -> Float64Array:
    """Means of `use` (systems x topics) over drawn topics, the same for every family, and drawn systems."""
    systems, topics = use.shape
    (drawn_topics,) = resampled(topics, seed=seed, resamples=RESAMPLES)
    (drawn_systems,) = resampled(systems, seed=[seed, number], resamples=RESAMPLES)
    pairs = zip(drawn_topics, drawn_systems, strict=True)
    return np.array([use[rows][:, chosen].mean() for chosen, rows in pairs], dtype=np.float64)


def _ends(name: str, draws: Float64Array) -> dict[str, float]:
    return dict(zip((f"{name}_ci_low", f"{name}_ci_high"), percentile_limits(draws), strict=True))


def summary(views: pd.DataFrame, *, seed: int = 0) -> pd.DataFrame:
    """Means of both views with intervals over topics. Returns: one row per system: system, by_labels, by_labels_ci_low,
    by_labels_ci_high, and the same for by_judgements."""
    rows = []
    for system, part in views.groupby("system"):
        row: dict[str, object] = {"system": system}
        for name in ("by_labels", "by_judgements"):
            row |= mean_interval(part[name], seed=seed, name=name, prefix=f"{name}_")
        rows.append(row)
    return pd.DataFrame(rows).sort_values("by_judgements", ascending=False, ignore_index=True)


def label_tables(dataset: str) -> dict[str, pd.DataFrame]:
    """label_precision, two_views, rank_correlation and label_families. rank_correlation has a row per part, with tau
    over every variant too in columns ``all_*``: without p, since near copies of a system are no further evidence."""
    collection, runs = Collection.load(dataset), all_runs(dataset)
    settings, parts = store.pool_settings(), collection.topics["part"].unique()
    views = {str(part): two_views(collection, runs, str(part), settings.variants) for part in parts}
    audited = paths.results(dataset) / "audit" / "provenance.parquet"
    classes = pd.read_parquet(audited) if audited.exists() else None
    correlations = []
    for part, view in views.items():
        everyone = rank_correlation(two_views(collection, runs, part))
        every = {f"all_{name}": everyone[name] for name in ("systems", "tau", "ci_low", "ci_high")}
        correlations.append({"part": part, **rank_correlation(view), **every})
    families = [label_families(view, settings.label_use).assign(part=part) for part, view in views.items()]
    both = pd.concat(families)
    return {
        "tables/label_precision.csv": label_precision(dataset, runs[store.LABELS], classes),
        "tables/two_views.csv": pd.concat([summary(view).assign(part=part) for part, view in views.items()]),
        "tables/rank_correlation.csv": pd.DataFrame(correlations),
        "tables/label_families.csv": both[["part", *both.columns.drop("part")]],
    }
