"""How near a rerun comes to the original, by the measures of Breuer et al. (SIGIR 2020), on the same tasks.

Order of the lists: Kendall's tau over the union, rank-biased overlap. Values of tasks: root mean square error, paired
t-test. Effect over a baseline: effect ratio and difference of relative improvements. Two seeds of one system and other
systems say what a value means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from study.analysis.framework import Context, Tables, analysis
from study.data.dataset import FloatArray
from study.evaluation import per_task
from study.runner import authors_program
from study.runner.row_store import read_per_task, read_row

SEEDS = "seeds"


@dataclass(frozen=True)
class Reproduction:
    """How near this study's row comes to the authors' program."""

    protocol: str
    system: str
    others: list[str]
    baselines: list[str]
    metrics: list[str]
    persistence: float
    alpha: float


class Run(NamedTuple):
    """A run: task -> servers, best first, and the scores per task, index task_id, one column per metric."""

    lists: Mapping[int, Sequence[int]]
    scores: pd.DataFrame


def tau_union(first: Sequence[int], second: Sequence[int]) -> float:
    """Kendall's tau of two lists of one length over their union, each server named by its place in the union.

    The union holds the first list and behind it what the second one adds, so [1, 2, 3] and [1, 2, 4] are in full
    agreement: servers that replace others at the same ranks cost nothing (Breuer et al. 2020, section 4.1).
    """
    places = {server: position for position, server in enumerate(dict.fromkeys([*first, *second]))}
    return float(stats.kendalltau([places[one] for one in first], [places[one] for one in second]).statistic)


def rank_biased_overlap(first: Sequence[int], second: Sequence[int], persistence: float) -> float:
    """Rank-biased overlap of two lists, cut at the longer one and scaled to 1 for equal lists (Clarke et al. 2021). The
    mean over depths d of |first[:d] & second[:d]| / d with weights persistence^(d - 1)."""
    depths = range(1, max(len(first), len(second)) + 1)
    shares = [len(set(first[:depth]) & set(second[:depth])) / depth for depth in depths]
    return float(np.average(shares, weights=[persistence**depth for depth in depths]))


# Effects over a baseline, from the values per task of the original, of the rerun and of the baseline.
EFFECTS: dict[str, Callable[[FloatArray, FloatArray, FloatArray], float]] = {
    # The mean gain over the baseline in the rerun as a share of that in the original; 1 where they are equal.
    "effect_ratio": lambda first, again, base: float((again - base).mean() / (first - base).mean()),
    # Relative improvement over the baseline in the original minus that in the rerun; 0 where they are equal.
    "delta_improvement": lambda first, again, base: float(first.mean() / base.mean() - again.mean() / base.mean()),
}


def measures(
    original: Run, again: Run, baselines: Mapping[str, pd.DataFrame], settings: Reproduction
) -> Iterator[tuple[str, str, str, float]]:
    """Every measure of two runs over the tasks of the original: measure, metric, baseline, value. `baselines`: values
    per task, index task_id, the same run on both sides."""
    pairs = [(ranked, again.lists[task]) for task, ranked in original.lists.items()]
    yield "tau_union", "", "", float(np.mean([tau_union(*pair) for pair in pairs]))
    yield "rbo", "", "", float(np.mean([rank_biased_overlap(*pair, settings.persistence) for pair in pairs]))
    for metric in settings.metrics:
        tables = (original.scores, again.scores, *baselines.values())
        first, second, *others = (table.loc[original.scores.index, metric].to_numpy(np.float64) for table in tables)
        yield "rmse", metric, "", float(np.sqrt(np.mean((first - second) ** 2)))
        yield "t_test_p", metric, "", float(stats.ttest_rel(first, second).pvalue)
        for name, base in zip(baselines, others, strict=True):
            for measure, effect in EFFECTS.items():
                yield measure, metric, name, effect(first, second, base)


def compare(
    original: Run,
    seeds: Mapping[str, Run],
    others: Mapping[str, Run],
    baselines: Mapping[str, pd.DataFrame],
    settings: Reproduction,
) -> pd.DataFrame:
    """The original with each seed and each other system, and the seeds among themselves, one row per comparison,
    measure, metric and baseline.

    Returns: pairs, n (tasks), mean, least, most, and apart: the share of pairs that the t-test tells apart.
    """
    compared = [(settings.system, original, run) for run in seeds.values()]
    compared += [(name, original, run) for name, run in others.items()]
    compared += [(SEEDS, one, two) for one, two in combinations(seeds.values(), 2)]
    keys = ["comparison", "measure", "metric", "baseline"]
    values = pd.DataFrame(
        ((name, *entry) for name, one, two in compared for entry in measures(one, two, baselines, settings)),
        columns=[*keys, "value"],
    )
    grouped = values.groupby(keys, sort=False)["value"]
    table = grouped.agg(pairs="size", mean="mean", least="min", most="max").reset_index()
    table.insert(len(keys) + 1, "n", len(original.lists))
    apart = grouped.agg(lambda p: (p < settings.alpha).mean()).to_numpy()
    return table.assign(apart=np.where(table["measure"] == "t_test_p", apart, np.nan))


@analysis("audit")
def reproduction(study: Context) -> Tables:
    """How near does the row T2MRec come to the authors' program, by the measures of repro_eval?

    No tables where the authors' program has no top tens of the data set.
    """
    dataset, settings = study.dataset, study.settings(Reproduction)
    folder = authors_program.results_folder(dataset)
    if not (folder / "top10.csv").exists():
        return {}
    ids = set(study.data.tasks["id"]), set(study.data.servers["id"])
    values = per_task.read(folder / "per_task.csv.xz").set_index("task_id")
    original = Run(authors_program.read_top10(folder / "top10.csv", *ids), values)
    seeds = runs(dataset, settings.protocol, settings.system)
    others = {name: next(iter(runs(dataset, settings.protocol, name).values())) for name in settings.others}
    baselines = read_per_task(dataset, settings.protocol, settings.baselines)
    means = {name: baselines[name].groupby("task_id").mean(numeric_only=True) for name in settings.baselines}
    return {"reproduction": compare(original, seeds, others, means, settings)}


def runs(dataset: str, protocol: str, system: str) -> dict[str, Run]:
    """Seed -> the run of a system, ten servers a task."""
    values, top, _ = read_row(dataset, protocol, system)
    by_seed = {}
    for (seed, ranked), (_, part) in zip(top.groupby("seed"), values.groupby("seed"), strict=True):
        lists: dict[Any, list[int]] = ranked.groupby("task_id")["server_id"].agg(list).to_dict()
        by_seed[str(seed)] = Run(lists, part.set_index("task_id"))
    return by_seed
