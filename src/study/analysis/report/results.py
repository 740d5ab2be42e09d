"""Reading what the stages wrote, in the form that notebooks and figures need."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from study import paths
from study.analysis.report import tables
from study.analysis.report.runs import APART, ORACLE
from study.analysis.report.tables import named
from study.config.compose import load, sound_systems
from study.config.reader import read_settings
from study.config.registry import left_out, parents
from study.runner.row_store import read_records, read_row

QUESTION = "Question: fitting the released labels"
# Protocols in the order of the study's argument; others follow by name.
ORDER = ("cold", "cold_grouped", "warm", "loo")
# The name of a system with the values that a search chose is its own name and this.
TUNED_SUFFIX = "_tuned"
LONG_SUFFIX = "_long"  # with more epochs, at its own settings or tuned
TRANSFER = "_transfer"  # a system that ranks for new tasks through a base, whose settings its file repeats


def lineage(name: str) -> list[str]:
    """A system, then what it is made from: the base that a transfer ranks through, and whose settings it builds on.
    Each once, the nearest first; the last is the method that all its variants share."""
    return list(dict.fromkeys((name, name.removesuffix(TRANSFER), *parents(name))))


def licensed(dataset: str) -> bool:
    """Whether the data set's licence lets its texts (names, descriptions, addresses) be shown."""
    return bool(load([f"dataset={dataset}"]).dataset.licence != "none stated")


@dataclass(frozen=True)
class Headline:
    """``conf/analysis/headline.yaml``, where every key is explained."""

    systems: list[str]
    most: int


@dataclass(frozen=True)
class Results:
    """The reported results of one data set: protocols with runs in the study's order, and four tables of the report.

    `titles` and `families` (kinds) hold every system that is configured or has a run; `applies` says of configured ones
    which protocols they are for; `planned` are those that the data set does not leave out.
    """

    dataset: str
    title: str
    protocols: list[str]
    titles: dict[str, str]
    families: dict[str, str]
    applies: dict[str, list[str]]
    planned: list[str]
    metrics: pd.DataFrame
    overall: pd.DataFrame
    significance: pd.DataFrame
    comparisons: pd.DataFrame  # with other references than T2MRec
    costs: pd.DataFrame

    @classmethod
    def load(cls, dataset: str) -> Results:
        """Read the tables of the report stage."""
        metrics, overall, significance, comparisons, costs = (
            tables.read(paths.tables(dataset) / name)
            for name in ("metrics.csv.xz", "overall.csv", "significance.csv", "comparisons.csv", "runs.csv")
        )
        settings = sound_systems()
        names = [*settings, *(name for name in overall["system"].unique() if name not in settings)]
        about, present = load([f"dataset={dataset}"]).dataset, set(overall["protocol"])
        known, patterns = [name for name in ORDER if name in present], list(about.get("leave_out", []))
        return cls(
            dataset=dataset,
            title=about.title,
            protocols=[*known, *sorted(present - set(known))],
            titles={name: str(settings[name].title) if name in settings else name for name in names},
            families={name: str(settings[name].family) if name in settings else "other" for name in names},
            applies={name: list(system.protocols) for name, system in settings.items()},
            planned=[name for name, system in settings.items() if not left_out(name, system.family, patterns)],
            metrics=metrics,
            overall=overall,
            significance=significance,
            comparisons=comparisons,
            costs=costs,
        )

    def caption(self, protocol: str) -> str:
        """Question, data set, protocol, number of test tasks and profile, for tables and figures."""
        runs = self.costs[self.costs["protocol"] == protocol]
        title = load([f"protocol={protocol}"]).protocol.title.lower()
        shown = f"{QUESTION}. Data: {self.title}. Protocol: {protocol} ({title})"
        if runs.empty:
            return f"{shown}. No system has a run yet."
        profiles = ", ".join(sorted(runs["profile"].unique()))
        return f"{shown}, {int(runs['tasks'].max()):,} test tasks. Profile: {profiles}."

    def systems(self, protocol: str, metric: str = "ndcg@10") -> list[str]:
        """The systems that ran under a protocol, best mean first."""
        rows = self.metrics[self.metrics["protocol"] == protocol]
        means = rows[named(rows) == metric].groupby("system")["value"].mean()
        return [str(name) for name in means.sort_values(ascending=False, kind="stable").index]

    def headline(self, protocol: str) -> list[str]:
        """The few systems that figures of a protocol show (``conf/analysis/headline.yaml``), best mean first. Others
        take the places that are free."""
        chosen = read_settings(Headline, paths.conf() / "analysis" / "headline.yaml")
        ran = self.systems(protocol)
        named = [name for name in chosen.systems if name in ran]
        few = [*named, *(name for name in ran if name not in named)][: chosen.most]
        return [name for name in ran if name in few]

    def is_oracle(self, system: str) -> bool:
        """Whether a system reads the answers."""
        return self.families[system] == ORACLE

    def apart(self) -> list[str]:
        """The rows that stand for no system, oracles and reference bugs: shown, never best, tested or ranked."""
        return [name for name, family in self.families.items() if family in APART]

    def absent(self, protocol: str) -> tuple[list[str], list[str]]:
        """The systems of the plan that have not run under a protocol, and those that it is not for.
        Those of `not_asked` are left out."""
        ran, aside = set(self.systems(protocol)), set(self.not_asked(protocol))
        missing = [name for name in self.planned if name not in ran]
        return (
            [name for name in missing if protocol in self.applies[name]],
            [name for name in missing if protocol not in self.applies[name] and name not in aside],
        )

    def not_asked(self, protocol: str) -> list[str]:
        """The systems of the plan that a protocol leaves out although it is for the method that they build on: they
        answer a question that is asked under other protocols, or carry values chosen there."""
        ran = set(self.systems(protocol))
        return [
            name
            for name in self.planned
            if name not in ran
            and protocol not in self.applies[name]
            and any(protocol in self.applies.get(other, ()) for other in lineage(name)[1:])
        ]

    def left_out(self) -> list[str]:
        """The configured systems that the data set leaves out and that have no run under any protocol."""
        ran = set(self.overall["system"])
        return [name for name in self.applies if name not in ran and name not in self.planned]

    def remarked(self, protocol: str, *, sized: bool = True) -> dict[str, str]:
        """The titles for a figure (`sized`) or a table, see `tables.remarked`."""
        return tables.remarked(self.titles, self.costs, protocol, sized=sized)

    def rising(self) -> set[tuple[str, str]]:
        """The runs (protocol, system) that `tables.still_rising` names."""
        return set(
            self.costs[tables.still_rising(self.costs)][["protocol", "system"]].itertuples(index=False, name=None)
        )

    def marks(self, protocol: str) -> dict[tuple[str, str], str]:
        """(system, metric) -> arrow where a system differs significantly from T2MRec, see `tables.marks`."""
        return tables.marks(self.significance[self.significance["protocol"] == protocol])

    def per_task(self, protocol: str, system: str) -> pd.DataFrame:
        """One row per task, metrics averaged over seeds; index task_id."""
        return read_row(self.dataset, protocol, system).per_task.drop(columns="seed").groupby("task_id").mean()

    def value(self, protocol: str, system: str, metric: str) -> float:
        """Mean over seeds of a metric such as ``ndcg@10``."""
        rows = self.overall[(self.overall["protocol"] == protocol) & (self.overall["system"] == system)]
        return float(rows.loc[named(rows) == metric, "mean"].iloc[0])

    def cost_table(self, protocol: str) -> pd.DataFrame:
        """What each system's runs took (means over seeds), best NDCG@10 first. Returns: the columns of runs.csv
        (parameters that are not counted are NA), title, family, quality (NDCG@10) and milliseconds_per_task."""
        order = self.systems(protocol)
        rows = self.costs[self.costs["protocol"] == protocol].set_index("system").loc[order].reset_index()
        return rows.assign(
            title=rows["system"].map(self.titles),
            family=rows["system"].map(self.families),
            quality=[self.value(protocol, system, "ndcg@10") for system in order],
            parameters=rows["parameters"].astype("Int64"),
            milliseconds_per_task=1000 * rows["seconds_score"] / rows["tasks"],
        )

    def machines(self) -> list[str]:
        """The machines that the runs were made on."""
        parts = [record["hardware"] for record in read_records(self.dataset).values()]
        text = "{processor}, {cores} cores, accelerator: {accelerator}".format
        return sorted({text(**part | {"accelerator": part["accelerator"] or "none"}) for part in parts})

    def summary(self, protocol: str, metric: str) -> pd.DataFrame:
        """One row per system, best first: mean, spread over seeds, and uncertainty over tasks.

        Returns: columns system, title, family, mean, sd (over seeds, NaN for one seed), ci_low, ci_high (95 %
        percentile bootstrap interval over tasks of the seed-averaged values).
        """
        rows = self.overall[(self.overall["protocol"] == protocol)]
        rows = rows[named(rows) == metric].set_index("system")
        rows = rows.loc[self.systems(protocol, metric), ["mean", "sd", "ci_low", "ci_high"]].reset_index()
        titles = self.remarked(protocol)
        rows.insert(1, "title", rows["system"].map(titles))
        rows.insert(2, "family", rows["system"].map(self.families))
        return rows
