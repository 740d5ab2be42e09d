"""RQ2: what each part of T2MRec contributes, from the committed runs alone (paper, Table 4).

The paper removes a part from the method *with* its LLM re-ranker, on both sides; the variants here have none.
"""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from omegaconf import DictConfig

from study.advisor.retrieval.structure import FEATURES, StructuralFeatures
from study.analysis.framework import Context, Tables, analysis
from study.analysis.report import paper
from study.analysis.report.runs import COMPARED, REFERENCE, declared_families, overall_means
from study.config.compose import sound_systems
from study.data.dataset import Dataset
from study.evaluation.metrics import PAPER_METRICS
from study.evaluation.statistics import RESAMPLES, compare, compare_all, holm
from study.runner.row_store import HITS_ONLY, list_rows, read_per_task, read_record, read_top10

# The paper's row with the LLM re-ranker, and the system that has one.
FULL, RERANKED = "T2MRec", "t2mrec_llm"
SAME = "t2mrec_same_training"  # T2MRec by the training whose pools the language model re-ranks
PAPER_PROTOCOL = "cold"  # the paper's partition; its values describe no other
FAMILY = "ablation"  # of the variants that a table shows even where they have no run
GROUPED = "ndcg@10"  # what the breakdown by category compares
PER_CELL = 100  # draws of its randomisation test for every cell: the smallest corrected p-value is 1 / PER_CELL
CHUNK = 500  # tasks whose features are held at a time
DIFFERENCE = ["diff", "diff_ci_low", "diff_ci_high"]
TESTS = ["wilcoxon_p", "randomisation_p"]
COLUMNS = ["protocol", "system", "title", "metric", "seeds", "n", "ours", "sd", "ci_low", "ci_high", "paper", "gap"]
COLUMNS += ["paper_effect", *DIFFERENCE, "rank_biserial", "wilcoxon_p_holm", "randomisation_p_holm", "family"]


def variants() -> dict[str, DictConfig]:
    """The settings of T2MRec and its untuned variants by name, the reference first."""
    systems = sorted(sound_systems().items())
    return {name: settings for name, settings in systems if name.startswith(REFERENCE) and settings.tuned is None}


def list_expected(protocol: str) -> list[str]:
    """The variants that a protocol's table shows whether they ran or not: the ablations, and the re-ranked method,
    where their files say that they are meant to run."""
    meant = {name: settings for name, settings in variants().items() if protocol in settings.protocols}
    return [name for name, settings in meant.items() if settings.family == FAMILY or name == RERANKED]


def runs(dataset: str) -> dict[str, dict[str, pd.DataFrame]]:
    """Protocol -> variant -> per-task table, for protocols under which the reference ran."""
    protocols = sorted({protocol for protocol, _ in list_rows(dataset)})
    tables = {protocol: read_per_task(dataset, protocol, variants()) for protocol in protocols}
    return {protocol: frames for protocol, frames in tables.items() if REFERENCE in frames}


def load_printed_effects() -> pd.DataFrame:
    """Table 4 by the study's names: index (system, metric@k), columns paper and paper_effect. paper_effect: what
    removing a part does to the paper's full method; for the re-ranked one what the re-ranker adds."""
    cells = paper.load().query("table == 'table4'")
    rows = paper.wide(cells, "table4").rename(index=cells.set_index("printed")["own"].to_dict() | {FULL: RERANKED})
    effect = rows - rows.loc[RERANKED]
    effect.loc[RERANKED], effect.loc[REFERENCE] = rows.loc[RERANKED] - rows.loc[REFERENCE], np.nan
    table = rows.melt(ignore_index=False, var_name="metric", value_name="paper")
    table["paper_effect"] = effect.melt()["value"].to_numpy()
    return table.rename_axis("system").set_index("metric", append=True)


def table4(dataset: str) -> pd.DataFrame:
    """Table 4 with what the paper leaves out, under every protocol: one row per protocol, system and metric.

    gap = ours - paper; diff = system - reference over tasks. Holm-corrected p-values, for `COMPARED` alone, are over
    the variants of the family ``ablation`` and both metrics of a protocol. A variant of `list_expected` without a run
    has 0 seeds and no value of ours. Paper columns are empty for another data set and under protocols other than
    `PAPER_PROTOCOL`.
    """
    tables, keys = [], ["system", "metric"]
    for protocol, frames in runs(dataset).items():
        titles = {
            name: str(settings.title)
            for name, settings in variants().items()
            if name in {*frames, *list_expected(protocol)}
        }
        table = pd.DataFrame(index=pd.MultiIndex.from_product([titles, PAPER_METRICS], names=keys))
        means = overall_means(frames).reset_index(drop=True)
        means = means[means["measure"].isin(paper.COMPARED)].rename(columns={"mean": "ours", "n_seeds": "seeds"})
        means["metric"] = means["measure"].str.replace("f1_of_means@", "f1@")
        tasks = {name: frame.groupby("task_id")[list(PAPER_METRICS)].mean().count() for name, frame in frames.items()}
        parts: list[pd.DataFrame | pd.Series] = [means.set_index(keys)[["seeds", "ours", "sd", "ci_low", "ci_high"]]]
        parts.append(pd.concat(tasks, names=keys).rename("n").to_frame())
        if paper.describes(dataset) and protocol == PAPER_PROTOCOL:
            parts.append(load_printed_effects())
        if len(frames) > 1:
            how: dict[str, Any] = {"frames": frames, "reference": REFERENCE, "seed": 0}
            every = compare_all(metrics=PAPER_METRICS, resamples=1, per_comparison=0, **how)
            parts.append(every.set_index(keys)[[*DIFFERENCE, "rank_biserial"]])
            family = declared_families(protocol, ())[FAMILY]
            tested = compare_all(metrics=COMPARED, per_comparison=1000, family=family, **how)
            parts.append(tested.set_index(keys)[["wilcoxon_p_holm", "randomisation_p_holm", "family"]])
        table = table.join(parts).fillna({"seeds": 0, "n": 0}).astype({"seeds": int, "n": int}).reset_index()
        tables.append(table.assign(protocol=protocol, title=table["system"].map(titles)))
    table = (pd.concat(tables) if tables else pd.DataFrame()).reindex(columns=COLUMNS)
    return table.assign(gap=table["ours"] - table["paper"])


def by_group(dataset: str, tasks: pd.DataFrame) -> pd.DataFrame:
    """What removing a part does within every category and subcategory of tasks, on `GROUPED`. _holm: corrected over the
    variants of the family ``ablation`` and the groups of a protocol and level."""
    columns = ["protocol", "system", "level", "group", "n", "mean_system", "mean_reference", *DIFFERENCE]
    columns += ["rank_biserial", *TESTS]
    tables = []
    for (protocol, frames), level in product(runs(dataset).items(), ("category", "subcategory")):
        family, groups, parts = declared_families(protocol, ())[FAMILY], tasks.groupby(f"{level}_clean")["id"], []
        size = len(family) * groups.ngroups
        how: Any = {"seed": 0, "resamples": max(RESAMPLES, PER_CELL * size), "per_comparison": 0}
        for group, members in groups:
            inside = {name: frame[frame["task_id"].isin(members)] for name, frame in frames.items()}
            if len(inside) > 1 and len(inside[REFERENCE]):
                comparisons = compare_all(inside, REFERENCE, [GROUPED], **how)
                parts.append(comparisons.assign(protocol=protocol, level=level, group=str(group)))
        if parts:
            table = pd.concat(parts, ignore_index=True)[columns]
            declared = table["system"].isin(family)
            for test in TESTS:
                table.loc[declared, f"{test}_holm"] = holm(table.loc[declared, test].to_numpy(), size)
            tables.append(table)
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=columns)


def compare_reranked(dataset: str) -> pd.DataFrame:
    """What a language model's orders do to the pools of the same training: T2MRec with it and without (`SAME`).

    Returns: protocol, system, metric, n, with_model, without, diff and its interval, p of the randomisation test;
    changed, the tasks whose first ten are others or in another order (NaN outside `cold`); answered, and the tasks
    whose answer was discarded, by reason (``fallback_...``).
    """
    rows = []
    for protocol, frames in runs(dataset).items():
        for name in (name for name in frames if name.startswith(RERANKED) and SAME in frames):
            reports = [seed["report"] for seed in read_record(dataset, protocol, name)["seeds"]]
            discarded = sum((Counter(report["fallbacks"]) for report in reports), Counter[str]())
            counts = {"changed": _measure_change(dataset, protocol, name)}
            counts |= {"answered": sum(report["answered"] for report in reports)}
            counts |= {f"fallback_{reason}": discarded[reason] for reason in sorted(discarded)}
            for metric in COMPARED:
                tested = compare(frames[name], frames[SAME], metric, seed=0)
                row: dict[str, Any] = {"protocol": protocol, "system": name, "metric": metric, "n": tested["n"]}
                row |= {"with_model": tested["mean_system"], "without": tested["mean_reference"]}
                rows.append(row | {key: tested[key] for key in (*DIFFERENCE, "randomisation_p")} | counts)
    return pd.DataFrame(rows)


def _measure_change(dataset: str, protocol: str, name: str) -> float:
    """NaN where the kept lists hold relevant servers alone."""
    if protocol in HITS_ONLY:
        return np.nan
    keys, tops = ["task_id", "seed", "rank"], read_top10(dataset, protocol, (name, SAME))
    with_model, without = (tops[one].set_index(keys)["server_id"] for one in (name, SAME))
    return float((with_model != without.reindex(with_model.index)).groupby(level=["task_id", "seed"]).any().sum())


def structure_facts(data: Dataset) -> pd.DataFrame:
    """What the structural features (eq. 12-17) are on this data, counted over all pairs of a task and a server.
    by_program: under the language names of the authors' program; other_...: where the two differ."""
    features, theirs = StructuralFeatures(data.servers), StructuralFeatures(data.servers, aliases="program")

    def count_pairs(tasks: pd.DataFrame) -> dict[str, Any]:
        values = dict(zip(FEATURES, features(tasks), strict=True))
        program = theirs(tasks)[FEATURES.index("language")]
        other = values["language"] != program
        counts = {f"pairs_{name}": (matrix != 0).sum() for name, matrix in values.items()}
        counts |= {"pairs_language_by_program": (program != 0).sum(), "pairs_other_language": other.sum()}
        beyond = (values["category"] != 0) | (values["theme"] != 0)
        return counts | {"tasks_other_language": other.any(axis=1).sum(), "pairs_beyond_language": beyond.sum()}

    pairs = len(data.tasks) * len(data.servers)
    facts: dict[str, Any] = {"tasks": len(data.tasks), "servers": len(data.servers), "pairs": pairs}
    for level in ("category", "subcategory"):
        facts[f"shared_{level}_names"] = len(set(data.tasks[level]) & set(data.servers[level]))
    facts["servers_stating_a_system"] = (data.servers["system"].str.strip() != "").sum()
    chunks = [count_pairs(data.tasks.iloc[start : start + CHUNK]) for start in range(0, len(data.tasks), CHUNK)]
    facts |= {str(name): count for name, count in pd.DataFrame(chunks).sum().items()}
    facts["share_language_alone"] = round(1 - facts["pairs_beyond_language"] / pairs, 9)
    # As objects, so that the counts of pairs are written with all their digits.
    return pd.DataFrame({"measure": list(facts), "value": pd.Series(list(facts.values()), dtype=object)})


@analysis("ablation")
def parts(study: Context) -> Tables:
    """What does each part of T2MRec add (Table 4), by group of tasks, and what are its structural features?"""
    tables = {"table4": table4(study.dataset), "by_group": by_group(study.dataset, study.data.tasks)}
    tables |= {"structure": structure_facts(study.data), "reranked": compare_reranked(study.dataset)}
    return {name: table for name, table in tables.items() if len(table)}
