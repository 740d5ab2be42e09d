"""The reported results of a data set in the form that notebooks and figures need, and what a single row is worth."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import pandas as pd

from study.analysis.framework import read_group_table
from study.analysis.report.runs import COMPARED, REFERENCE, overall_means
from study.config.compose import sound_systems
from study.evaluation.statistics import compare_all
from study.runner.row_store import read_per_task, read_row

LOG = logging.getLogger(__name__)

# Protocols in the order of the study's argument; others follow by name.
ORDER = ("cold", "cold_grouped", "warm", "loo")
# The name of a system with the values that a search chose is its own name and this.
TUNED_SUFFIX = "_tuned"
LONG_SUFFIX = "_long"  # with more epochs, at its default settings or tuned
# What a row is held against: the method under study, else, where that has no run, the simplest baseline.
REFERENCES = (REFERENCE, "popularity")
DIFFERENCE = ["diff", "diff_ci_low", "diff_ci_high"]


@dataclass(frozen=True)
class Results:
    """The reported results of one data set: protocols with runs in the study's order, and four tables of the report.
    `titles` and `families` (kinds) hold every system that is configured or has a run."""

    dataset: str
    protocols: list[str]
    titles: dict[str, str]
    families: dict[str, str]
    overall: pd.DataFrame
    significance: pd.DataFrame
    comparisons: pd.DataFrame  # with other references than T2MRec
    costs: pd.DataFrame

    @classmethod
    def load(cls, dataset: str) -> Results:
        """Read the tables of the report stage."""
        names = ("overall", "significance", "comparisons", "runs")
        overall, *others = (read_group_table(dataset, "report", name) for name in names)
        settings, present = sound_systems(), set(overall["protocol"])
        protocols = [name for name in ORDER if name in present]
        protocols += sorted(present - set(protocols))
        without = {name: name for name in overall["system"] if name not in settings}
        titles = {name: str(system.title) for name, system in settings.items()} | without
        families = {name: str(system.family) for name, system in settings.items()} | dict.fromkeys(without, "other")
        return cls(dataset, protocols, titles, families, overall, *others)

    def not_converged(self) -> set[tuple[str, str]]:
        """The runs (protocol, system) of which most seeds were best on validation when training ended."""
        late = self.costs[2 * self.costs["not_converged"] > self.costs["seeds"]]
        return set(zip(late["protocol"], late["system"], strict=True))

    def per_task(self, protocol: str, system: str) -> pd.DataFrame:
        """One row per task, metrics averaged over seeds; index task_id."""
        return read_row(self.dataset, protocol, system).per_task.drop(columns="seed").groupby("task_id").mean()


def outcome(dataset: str, protocol: str, system: str) -> pd.DataFrame:
    """One row per metric of `COMPARED`, for the system and, if one has run, the first of `REFERENCES`.

    Returns: columns system, metric, n (tasks with a relevant server), mean, ci_low, ci_high (95 % percentile bootstrap
    over tasks of the seed-averaged values), and for the system diff, diff_ci_low, diff_ci_high (of paired tasks to
    the reference), NaN without one.
    """
    frames = {system: read_row(dataset, protocol, system).per_task}
    for name, frame in read_per_task(dataset, protocol, [name for name in REFERENCES if name != system]).items():
        if set(frame["task_id"]) == set(frames[system]["task_id"]):
            frames[name] = frame
            break
        LOG.warning("warning: nothing is compared with %s, which ran for other tasks: run it again", name)
    means = overall_means(frames).reset_index(drop=True).drop(columns="metric").rename(columns={"measure": "metric"})
    table = pd.concat(means[means["metric"] == metric] for metric in COMPARED)
    table["n"] = [
        frames[system].dropna(subset=[metric])["task_id"].nunique()
        for system, metric in zip(table["system"], table["metric"], strict=True)
    ]
    if len(frames) > 1:
        tested = compare_all(frames, list(frames)[1], COMPARED, seed=0, resamples=1)
        table = table.merge(tested[["system", "metric", *DIFFERENCE]], "left", on=["system", "metric"])
    return table.reindex(columns=["system", "metric", "n", "mean", "ci_low", "ci_high", *DIFFERENCE])


def outcome_table(table: pd.DataFrame) -> pd.DataFrame:
    """The table of `outcome` as text."""
    text = table[["system", "metric"]].replace({name: str(system.title) for name, system in sound_systems().items()})
    for name, prefix, form in (("mean", "", "{:.4f}"), ("diff", "diff_", "{:+.4f}")):
        low, high = (table[f"{prefix}ci_{end}"].map(form.format) for end in ("low", "high"))
        has_value = table[name].notna()
        text["to the reference" if prefix else name] = table[name].map(form.format).where(has_value, "")
        text["interval of it" if prefix else "interval"] = (low + " to " + high).where(has_value, "")
    return text
