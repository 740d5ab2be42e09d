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
from study.analysis.report.tables import named
from study.config.compose import sound_systems
from study.data.dataset import Dataset
from study.evaluation.metrics import PAPER_METRICS
from study.evaluation.statistics import RESAMPLES, compare, compare_all, holm
from study.runner.row_store import HITS_ONLY, list_rows, read_per_task, read_record, read_top10

# The paper's rows with and without the LLM re-ranker, and the system that has one.
FULL, BASE, RERANKED = "T2MRec", "w/o Re-ranking", "t2mrec_llm"
SAME = "t2mrec_same_training"  # T2MRec by the training whose pools the language model re-ranks
PAPER_PROTOCOL = "cold"  # the paper's partition; its values describe no other
FAMILY = "ablation"  # of the variants that a table shows even where they have no run
GROUPED = "ndcg@10"  # what the breakdown by category compares
PER_CELL = 100  # draws of its randomisation test for every cell: the smallest corrected p-value is 1 / PER_CELL
CHUNK = 500  # tasks whose features are held at a time
DIFFERENCE = ["diff", "diff_ci_low", "diff_ci_high", "rank_biserial"]
TESTS = ["wilcoxon_p_holm", "randomisation_p_holm"]
COLUMNS = ["protocol", "system", "title", "metric", "seeds", "n", "ours", "sd", "ci_low", "ci_high", "paper", "gap"]
COLUMNS += ["paper_effect", *DIFFERENCE, *TESTS, "family"]


def variants() -> dict[str, DictConfig]:
    """The settings of T2MRec and its untuned variants by name, the reference first."""
    return {
        name: settings
        for name, settings in sorted(sound_systems().items())
        if name.startswith(REFERENCE) and settings.tuned is None
    }


def titles() -> dict[str, str]:
    """T2MRec and its untuned variants as printed."""
    return {name: str(settings.title) for name, settings in variants().items()}


def wanted(protocol: str) -> list[str]:
    """The variants that a protocol's table shows whether they ran or not: the ablations, and the re-ranked method,
    where their files say that they are meant to run."""
    return [
        name
        for name, settings in variants().items()
        if protocol in settings.protocols and (settings.family == FAMILY or name == RERANKED)
    ]


def runs(dataset: str) -> dict[str, dict[str, pd.DataFrame]]:
    """Protocol -> variant -> per-task table, for protocols under which the reference ran."""
    protocols = sorted({protocol for protocol, _ in list_rows(dataset)})
    found = {protocol: read_per_task(dataset, protocol, titles()) for protocol in protocols}
    return {protocol: frames for protocol, frames in found.items() if REFERENCE in frames}


def printed() -> Any:
    """Table 4 by the study's names: index (system, metric@k), columns paper and paper_effect.

    paper_effect: what removing a part does to the paper's full method; for the re-ranked one what the re-ranker adds.
    """
    cells = paper.load()
    cells = cells[cells["table"] == "table4"].assign(name=named)
    full, base = (cells[cells["printed"] == row].set_index("name")["value"] for row in (FULL, BASE))
    system = cells["own"].where(cells["printed"] != FULL, RERANKED)
    compared = cells["name"].map(full).where(cells["printed"] != FULL, cells["name"].map(base))
    effect = (cells["value"] - compared).where(cells["printed"] != BASE)
    table = cells.assign(system=system, paper=cells["value"], paper_effect=effect)
    return table.set_index(["system", "name"])[["paper", "paper_effect"]]


def table4(dataset: str) -> pd.DataFrame:
    """Table 4 with what the paper leaves out, under every protocol: one row per protocol, system and metric.

    gap = ours - paper; diff = system - reference over tasks. Holm-corrected p-values, for `COMPARED` alone, are over
    the variants of the family ``ablation`` and both metrics of a protocol. A variant of `wanted` without a run has 0
    seeds and no value of ours. Paper columns are empty for another data set and under protocols other than
    `PAPER_PROTOCOL`.
    """
    cells, rows = printed(), list[dict[str, Any]]()
    for protocol, frames in runs(dataset).items():
        described = paper.describes(dataset) and protocol == PAPER_PROTOCOL
        means = overall_means(frames).to_dict("index")
        differences, tests = dict[Any, Any](), dict[Any, Any]()
        if len(frames) > 1:
            shared: Any = {"frames": frames, "reference": REFERENCE, "seed": 0}
            every = compare_all(metrics=PAPER_METRICS, resamples=1, per_comparison=0, **shared)
            differences = every.set_index(["system", "metric"])[DIFFERENCE].to_dict("index")
            family = declared_families(protocol, ())[FAMILY]
            tested = compare_all(metrics=COMPARED, per_comparison=1000, family=family, **shared)
            tests = tested.set_index(["system", "metric"])[[*TESTS, "family"]].to_dict("index")
        asked = {*frames, *wanted(protocol)}
        shown = [(name, title) for name, title in titles().items() if name in asked]
        for (name, title), (metric, measure) in product(shown, zip(PAPER_METRICS, paper.COMPARED, strict=True)):
            row: dict[str, Any] = {"protocol": protocol, "system": name, "title": title, "metric": metric}
            row |= {"seeds": 0, "n": 0, "ours": float("nan")}
            if name in frames:
                about = means[name, measure]
                row |= {"seeds": about["n_seeds"], "n": frames[name].dropna(subset=metric)["task_id"].nunique()}
                row |= {"ours": about["mean"], **{key: about[key] for key in ("sd", "ci_low", "ci_high")}}
            if described and (name, metric) in cells.index:
                row |= cells.loc[(name, metric)].to_dict()
                row["gap"] = row["ours"] - row["paper"]
            rows.append(row | differences.get((name, metric), {}) | tests.get((name, metric), {}))
    return pd.DataFrame(rows).reindex(columns=COLUMNS)


def by_group(dataset: str, tasks: pd.DataFrame) -> pd.DataFrame:
    """What removing a part does within every category and subcategory of tasks, on `GROUPED`.

    _holm: corrected over the variants of the family ``ablation`` and the groups of a protocol and level.
    """
    tests = ["wilcoxon_p", "randomisation_p"]
    kept = ["n", "mean_system", "mean_reference", "diff", "diff_ci_low", "diff_ci_high", "rank_biserial", *tests]
    tables = []
    for (protocol, frames), level in product(runs(dataset).items(), ("category", "subcategory")):
        family, parts = declared_families(protocol, ())[FAMILY], []
        size = len(family) * tasks[f"{level}_clean"].nunique()
        how: Any = {"seed": 0, "resamples": max(RESAMPLES, PER_CELL * size), "per_comparison": 0}
        for group, members in tasks.groupby(f"{level}_clean")["id"]:
            inside = {name: frame[frame["task_id"].isin(set(members))] for name, frame in frames.items()}
            inside = {name: frame for name, frame in inside.items() if len(frame)}
            if len(inside) > 1:
                found = compare_all(inside, REFERENCE, [GROUPED], **how)
                parts.append(found.assign(protocol=protocol, level=level, group=str(group)))
        if parts:
            table = pd.concat(parts, ignore_index=True)[["protocol", "system", "level", "group", *kept]]
            declared = table["system"].isin(family)
            for test in tests:
                table.loc[declared, f"{test}_holm"] = holm(table.loc[declared, test].to_numpy(), size)
            tables.append(table)
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=["protocol", "system", "level"])


def reranked(dataset: str) -> pd.DataFrame:
    """What a language model's orders do to the pools of the same training: T2MRec with it and without (`SAME`).

    Returns: protocol, system, metric, n, with_model, without, diff and its interval, p of the randomisation test;
    changed, the tasks whose first ten are others or in another order (NaN outside `cold`); answered, and the tasks
    whose answer was discarded, by reason (``fallback_...``).
    """
    rows = []
    for protocol, frames in runs(dataset).items():
        for name in (name for name in frames if name.startswith(RERANKED) and SAME in frames):
            told = read_record(dataset, protocol, name)["seeds"]
            discarded = sum((Counter(one["report"]["fallbacks"]) for one in told), Counter[str]())
            counts = {"answered": sum(one["report"]["answered"] for one in told)}
            counts |= {f"fallback_{reason}": discarded[reason] for reason in sorted(discarded)}
            counts = {"changed": _changed(dataset, protocol, name), **counts}
            for metric in COMPARED:
                found = compare(frames[name], frames[SAME], metric, seed=0)
                row = {"protocol": protocol, "system": name, "metric": metric, "n": found["n"]}
                row |= {"with_model": found["mean_system"], "without": found["mean_reference"]}
                row |= {key: found[key] for key in ("diff", "diff_ci_low", "diff_ci_high", "randomisation_p")}
                rows.append(row | counts)
    return pd.DataFrame(rows)


def _changed(dataset: str, protocol: str, name: str) -> float:
    """NaN where the kept lists hold relevant servers alone."""
    keys = ["task_id", "seed", "rank"]
    if protocol in HITS_ONLY:
        return np.nan
    tops = read_top10(dataset, protocol, (name, SAME))
    with_model, without = (tops[one].set_index(keys)["server_id"] for one in (name, SAME))
    return float((with_model != without.reindex(with_model.index)).groupby(level=["task_id", "seed"]).any().sum())


def structure_facts(data: Dataset) -> pd.DataFrame:
    """What the structural features (eq. 12-17) are on this data, counted over all pairs of a task and a server.

    by_program: under the language names of the authors' program; other_...: where the two differ.
    """
    features, theirs = StructuralFeatures(data.servers), StructuralFeatures(data.servers, aliases="program")
    nonzero, beyond, pairs = np.zeros(len(FEATURES), dtype=np.int64), 0, len(data.tasks) * len(data.servers)
    by_program, other, other_tasks = 0, 0, 0
    for start in range(0, len(data.tasks), CHUNK):
        tasks = data.tasks.iloc[start : start + CHUNK]
        values = features(tasks)
        language, program = values[FEATURES.index("language")], theirs(tasks)[FEATURES.index("language")]
        by_program += int((program != 0).sum())
        other += int((language != program).sum())
        other_tasks += int((language != program).any(axis=1).sum())
        nonzero += (values != 0).sum(axis=(1, 2))
        beyond += int(((values[0] != 0) | (values[2] != 0)).sum())
    facts: dict[str, float] = {"tasks": len(data.tasks), "servers": len(data.servers), "pairs": pairs}
    for level in ("category", "subcategory"):
        facts[f"shared_{level}_names"] = len(set(data.tasks[level]) & set(data.servers[level]))
    facts["servers_stating_a_system"] = int((data.servers["system"].str.strip() != "").sum())
    facts |= {f"pairs_{name}": int(count) for name, count in zip(FEATURES, nonzero, strict=True)}
    facts |= {"pairs_language_by_program": by_program, "pairs_other_language": other}
    facts |= {"tasks_other_language": other_tasks, "pairs_beyond_language": beyond}
    facts["share_language_alone"] = round(1 - beyond / pairs, 9)
    # As objects, so that the counts of pairs are written with all their digits.
    return pd.DataFrame({"measure": list(facts), "value": pd.Series(list(facts.values()), dtype=object)})


@analysis("ablation")
def parts(study: Context) -> Tables:
    """What does each part of T2MRec add (Table 4), by group of tasks, and what are its structural features?"""
    made = {"table4": table4(study.dataset), "by_group": by_group(study.dataset, study.data.tasks)}
    made["structure"] = structure_facts(study.data)
    return made if (orders := reranked(study.dataset)).empty else {**made, "reranked": orders}
