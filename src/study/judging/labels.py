"""How many released labels are useful, and whether systems that fit the labels are the useful ones.

Everything is computed from committed files: the collection, the pooled runs, and the first ten answers of other
systems. Intervals are 95 % bootstraps over topics; those of correlations and families also draw systems.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from scipy import stats

from study.base import paths
from study.base.errors import StudyError
from study.evaluation.statistics import FEW_RESAMPLES, percentile_limits, resampled, tau_b
from study.judging import store
from study.judging.collection import Collection, Float64Array
from study.judging.evaluate import SEED, comparable, mean_interval

# Share -> the lowest grade that counts.
SHARES = {"useful": 1, "core": 2}
VIEWS = ["by_labels", "by_judgements"]
FAMILY_COLUMNS = ["family", "systems", "topics", "tau", "p", "ci_low", "ci_high", "use", "use_ci_low", "use_ci_high"]
FAMILY_COLUMNS += ["diff", "diff_ci_low", "diff_ci_high", "diff_p"]


def shares(pairs: pd.DataFrame, judgements: pd.DataFrame) -> dict[str, float]:
    """Share of useful (grade >= 1) and core (2) servers of some pairs, and their mean grade: means over topics.

    Returns: topics, pairs, then useful, core and mean_grade, each with _ci_low and _ci_high (95 %).
    Raises StudyError: a pair is not judged.
    """
    rows = pairs.merge(judgements[[*store.PAIR, "final"]], on=store.PAIR, how="left", validate="many_to_one")
    if missing := int(rows["final"].isna().sum()):
        raise StudyError(f"{missing} pairs are not judged", fix="judge the whole pool first")
    values = {name: rows["final"] >= least for name, least in SHARES.items()} | {"mean_grade": rows["final"]}
    row: dict[str, float] = {"topics": rows["task_id"].nunique(), "pairs": len(rows)}
    for name, column in values.items():
        row |= mean_interval(column.astype(np.float64).groupby(rows["task_id"]).mean(), name=name, prefix=f"{name}_")
    return row


def label_precision(collection: Collection, labels: pd.DataFrame, classes: pd.DataFrame | None = None) -> pd.DataFrame:
    """How many released labels are useful: overall, by part, position and provenance, and the random control.

    `labels`: the released lists as a run, the listed position as rank.
    `classes`: of the audit, columns task_id, server_id, class: which rule a label bears the mark of.
    Returns: columns scope (all, part, position, class, control), name, and those of `shares`.
    """
    provenance = collection.table("provenance")
    listed = labels.merge(collection.topics, on="task_id")
    groups = {"part": listed.groupby("part"), "position": listed.groupby("rank")}
    if classes is not None:
        marked = listed.merge(classes[[*store.PAIR, "class"]].drop_duplicates(store.PAIR), on=store.PAIR)
        groups["class"] = marked.groupby("class")
    scopes = [("all", "all", listed)]
    scopes += [(scope, str(name), part) for scope, grouped in groups.items() for name, part in grouped]
    scopes += [("control", "all", provenance[provenance["control"] == 1])]
    rows = [{"scope": scope, "name": name, **shares(part, collection.judgements)} for scope, name, part in scopes]
    return pd.DataFrame(rows)


def two_views(
    collection: Collection, runs: Mapping[str, pd.DataFrame], labels: pd.DataFrame, part: str
) -> pd.DataFrame:
    """NDCG@10 of runs by labels and by judgements per topic of a part, averaged over seeds; topics without any useful
    server are left out. `labels`: the released lists as a run. Returns: columns system, task_id, by_labels,
    by_judgements."""
    ids, frames = collection.topics.loc[collection.topics["part"] == part, "task_id"], []
    listed = Collection.of(collection.topics, labels.assign(final=1, grade_1=1, grade_2=1))
    for name, run in runs.items():
        views = pd.DataFrame({"by_labels": listed.ndcg(run), "by_judgements": collection.ndcg(run)}).dropna()
        views = views[views.index.isin(ids)].rename_axis("task_id").reset_index()
        frames.append(views.assign(system=name)[["system", "task_id", *VIEWS]])
    return pd.concat(frames, ignore_index=True)


def rank_correlation(views: pd.DataFrame) -> dict[str, float]:
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
    row: dict[str, float] = {"systems": systems, "topics": topics}
    if systems < 2:
        ends = ("ci_low", "ci_high", "topics_ci_low", "topics_ci_high")
        return row | dict.fromkeys(("tau", "p", *ends), float("nan"))
    drawn_topics, drawn_systems = resampled(topics, systems, seed=SEED, resamples=FEW_RESAMPLES)
    means = np.array([[view[:, chosen].mean(axis=1) for view in (labels, judged)] for chosen in drawn_topics])
    by_topics = tau_b(means[:, 0], means[:, 1])
    by_both = tau_b(*(np.take_along_axis(means[:, view], drawn_systems, axis=1) for view in (0, 1)))
    fit, use = labels.mean(axis=1), judged.mean(axis=1)
    untied = len(np.unique(fit)) == len(np.unique(use)) == systems
    row["tau"] = float(stats.kendalltau(fit, use).statistic)
    row["p"] = float(stats.kendalltau(fit, use, method="exact").pvalue) if untied else float("nan")
    return row | _ends("", by_both) | _ends("topics_", by_topics)


def means_wide(views: pd.DataFrame) -> tuple[Float64Array, Float64Array]:
    """The columns by_labels and by_judgements of `two_views`, each of shape (systems, topics), systems by name."""
    wide = views.pivot_table(index="system", columns="task_id", values=VIEWS)
    labels, judged = (np.asarray(wide[name], dtype=np.float64) for name in VIEWS)
    return labels, judged


def label_families(views: pd.DataFrame, kinds: store.LabelUse) -> pd.DataFrame:
    """Do supervised systems order alike, and are they as useful as unsupervised ones?

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
    draws = {name: _use_draws(use, number) for number, (name, use) in enumerate(used.items())}
    rows = []
    for name, part in parts.items():
        row: dict[str, object] = {"family": name, **rank_correlation(part)}
        row |= {"use": used[name].mean(), **_ends("use_", draws[name])}
        learned, unseen = compared.get(name, ("", ""))
        if {learned, unseen} <= used.keys():
            row |= {"diff": used[learned].mean() - used[unseen].mean()}
            row |= _ends("diff_", draws[learned] - draws[unseen])
            means = used[learned].mean(axis=1), used[unseen].mean(axis=1)
            if min(len(each) for each in means) > 1:
                rng = np.random.default_rng(SEED)
                row["diff_p"] = stats.permutation_test(means, _mean_difference, rng=rng).pvalue
        rows.append(row)
    return pd.DataFrame(rows, columns=FAMILY_COLUMNS)


def _mean_difference(one: Float64Array, other: Float64Array, axis: int = -1) -> Float64Array:
    difference: Float64Array = np.asarray(one.mean(axis=axis) - other.mean(axis=axis))
    return difference


def _use_draws(use: Float64Array, number: int) -> Float64Array:
    """Means of `use` (systems x topics) over drawn topics, the same for every family, and drawn systems."""
    systems, topics = use.shape
    (drawn_topics,) = resampled(topics, seed=SEED, resamples=FEW_RESAMPLES)
    (drawn_systems,) = resampled(systems, seed=[SEED, number], resamples=FEW_RESAMPLES)
    pairs = zip(drawn_topics, drawn_systems, strict=True)
    return np.array([use[rows][:, chosen].mean() for chosen, rows in pairs], dtype=np.float64)


def _ends(prefix: str, draws: Float64Array) -> dict[str, float]:
    return dict(zip((f"{prefix}ci_low", f"{prefix}ci_high"), percentile_limits(draws), strict=True))


def summary(views: pd.DataFrame) -> pd.DataFrame:
    """Means of both views with intervals over topics. Returns: one row per system, the most useful first: system,
    by_labels, by_labels_ci_low, by_labels_ci_high, and the same for by_judgements."""
    rows = []
    for system, part in views.groupby("system"):
        row: dict[str, object] = {"system": system}
        for name in VIEWS:
            row |= mean_interval(part[name], name=name, prefix=f"{name}_")
        rows.append(row)
    return pd.DataFrame(rows).sort_values("by_judgements", ascending=False, ignore_index=True)


def label_tables(
    collection: Collection, scores: pd.DataFrame, runs: Mapping[str, pd.DataFrame]
) -> dict[str, pd.DataFrame]:
    """label_precision, two_views, rank_correlation and label_families. rank_correlation has a row per part, with tau
    over every variant too in columns ``all_*``: without p, since near copies of a system are no further evidence.

    Left out are the released labels themselves, which score 1 by definition, and systems with many unjudged answers.
    """
    settings, labels, correlations, families, summaries = store.pool_settings(), runs[store.LABELS], [], [], []
    for part in collection.topics["part"].unique():
        compared = {name: runs[name] for name in comparable(scores, part) if name != store.LABELS}
        plain = [name for name in compared if not settings.is_variant(name)]
        if not plain:
            raise StudyError("no system can be compared", fix="judge the pool, or a further round of it")
        everyone = two_views(collection, compared, labels, part)
        views, over_all = everyone[everyone["system"].isin(plain)], rank_correlation(everyone)
        every = {f"all_{name}": over_all[name] for name in ("systems", "tau", "ci_low", "ci_high")}
        correlations.append({"part": part, **rank_correlation(views), **every})
        families.append(label_families(views, settings.label_use).assign(part=part)[["part", *FAMILY_COLUMNS]])
        summaries.append(summary(views).assign(part=part))
    audited = paths.results(collection.dataset) / "audit" / "provenance.parquet"
    classes = pd.read_parquet(audited) if audited.exists() else None
    return {
        "label_precision": label_precision(collection, labels, classes),
        "two_views": pd.concat(summaries),
        "rank_correlation": pd.DataFrame(correlations),
        "label_families": pd.concat(families),
    }
