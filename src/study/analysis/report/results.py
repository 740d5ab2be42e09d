"""The reported results of a data set in the form that notebooks and figures need, and what a single row is worth."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import pandas as pd

from study.analysis.framework import GroupTables
from study.analysis.report.runs import COMPARED, REFERENCE, overall_means
from study.analysis.report.tables import name_metrics
from study.config.compose import load, sound_systems
from study.evaluation.statistics import compare_all
from study.runner.row_store import read_per_task, read_row

LOG = logging.getLogger(__name__)

QUESTION = "Question: fitting the released labels"
# Protocols in the order of the study's argument; others follow by name.
ORDER = ("cold", "cold_grouped", "warm", "loo")
# The name of a system with the values that a search chose is its own name and this.
TUNED_SUFFIX = "_tuned"
LONG_SUFFIX = "_long"  # with more epochs, at its default settings or tuned
# What a row is held against: the method under study, else, where that has no run, the simplest baseline.
REFERENCES = (REFERENCE, "popularity")
DIFFERENCE = ["diff", "diff_ci_low", "diff_ci_high"]


def licensed(dataset: str) -> bool:
    """Whether the data set's licence lets its texts (names, descriptions, addresses) be shown."""
    return bool(load([f"dataset={dataset}"]).dataset.licence != "none stated")


@dataclass(frozen=True)
class Results:
    """The reported results of one data set: protocols with runs in the study's order, and five tables of the report.

    `titles` and `families` (kinds) hold every system that is configured or has a run; `applies` says of configured ones
    which protocols they are for.
    """

    dataset: str
    title: str
    protocols: list[str]
    titles: dict[str, str]
    families: dict[str, str]
    applies: dict[str, list[str]]
    metrics: pd.DataFrame
    overall: pd.DataFrame
    significance: pd.DataFrame
    comparisons: pd.DataFrame  # with other references than T2MRec
    costs: pd.DataFrame

    @classmethod
    def load(cls, dataset: str) -> Results:
        """Read the tables of the report stage."""
        tables = GroupTables(dataset, "report")
        present = set(tables["overall"]["protocol"])
        about, settings = load([f"dataset={dataset}"]).dataset, sound_systems()
        protocols = [name for name in ORDER if name in present]
        names = dict.fromkeys((*settings, *tables["overall"]["system"]))
        return cls(
            dataset=dataset,
            title=about.title,
            protocols=[*protocols, *sorted(present - set(protocols))],
            titles={name: str(settings[name].title) if name in settings else name for name in names},
            families={name: str(settings[name].family) if name in settings else "other" for name in names},
            applies={name: list(system.protocols) for name, system in settings.items()},
            metrics=tables["metrics"],
            overall=tables["overall"],
            significance=tables["significance"],
            comparisons=tables["comparisons"],
            costs=tables["runs"],
        )

    def caption(self, protocol: str) -> str:
        """Question, data set, protocol, number of test tasks and profile, for tables and figures."""
        runs = self.costs[self.costs["protocol"] == protocol]
        title = load([f"protocol={protocol}"]).protocol.title.lower()
        text = f"{QUESTION}. Data: {self.title}. Protocol: {protocol} ({title})"
        if runs.empty:
            return f"{text}. No system has a run yet."
        profiles = ", ".join(sorted(runs["profile"].unique()))
        return f"{text}, {int(runs['tasks'].max()):,} test tasks. Profile: {profiles}."

    def systems(self, protocol: str, metric: str = "ndcg@10") -> list[str]:
        """The systems that ran under a protocol, best mean first."""
        rows = self.metrics[self.metrics["protocol"] == protocol]
        means = rows[name_metrics(rows) == metric].groupby("system")["value"].mean()
        return [str(name) for name in means.sort_values(ascending=False, kind="stable").index]

    def not_converged(self) -> set[tuple[str, str]]:
        """The runs (protocol, system) of which most seeds were best on validation when training ended."""
        late = self.costs[2 * self.costs["not_converged"] > self.costs["seeds"]]
        return set(zip(late["protocol"], late["system"], strict=True))

    def per_task(self, protocol: str, system: str) -> pd.DataFrame:
        """One row per task, metrics averaged over seeds; index task_id."""
        return read_row(self.dataset, protocol, system).per_task.drop(columns="seed").groupby("task_id").mean()

    def value(self, protocol: str, system: str, metric: str) -> float:
        """Mean over seeds of a metric such as ``ndcg@10``."""
        rows = self.overall[(self.overall["protocol"] == protocol) & (self.overall["system"] == system)]
        return float(rows.loc[name_metrics(rows) == metric, "mean"].iloc[0])


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
