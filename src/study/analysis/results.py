"""Reading what the stages wrote, in the form that notebooks and figures need."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pandas as pd
import yaml

from study import paths
from study.analysis import tables
from study.evaluation import per_task
from study.evaluation.significance import bootstrap_interval
from study.pipeline.report import CEILINGS, system_settings

QUESTION = "Question: fitting the released labels"
# Protocols in the order of the study's argument; others follow by name.
ORDER = ("cold", "cold_grouped", "warm", "loo")


def _title(group: str, name: str) -> str:
    return str(yaml.safe_load((paths.conf() / group / f"{name}.yaml").read_text(encoding="utf-8"))["title"])


def licensed(dataset: str) -> bool:
    """Whether the data set's licence lets its texts (names, descriptions, addresses) be shown."""
    content = yaml.safe_load((paths.conf() / "dataset" / f"{dataset}.yaml").read_text(encoding="utf-8"))
    return bool(content["licence"] != "none stated")


@dataclass(frozen=True)
class Results:
    """The reported results of one data set.

    Attributes:
        dataset: its name; `title` is how it is printed.
        protocols: protocols with runs, in the study's order.
        titles: system -> how it is printed.
        families: system -> kind of system.
        metrics, overall, significance, costs: the tables metrics.csv, overall.csv, significance.csv and runs.csv.
    """

    dataset: str
    title: str
    protocols: list[str]
    titles: dict[str, str]
    families: dict[str, str]
    metrics: pd.DataFrame
    overall: pd.DataFrame
    significance: pd.DataFrame
    costs: pd.DataFrame

    @classmethod
    def load(cls, dataset: str) -> Results:
        """Read the tables of the report stage.

        Raises:
            StudyError: `study report` has not run.
        """
        metrics, overall, significance, costs = (
            tables.read(paths.tables(dataset) / f"{name}.csv")
            for name in ("metrics", "overall", "significance", "runs")
        )
        settings = system_settings()
        names = list(overall["system"].unique())
        present = set(overall["protocol"])
        known = [name for name in ORDER if name in present]
        return cls(
            dataset=dataset,
            title=_title("dataset", dataset),
            protocols=[*known, *sorted(present - set(known))],
            titles={name: str(settings[name].title) if name in settings else name for name in names},
            families={name: str(settings[name].family) if name in settings else "other" for name in names},
            metrics=metrics,
            overall=overall,
            significance=significance,
            costs=costs,
        )

    def caption(self, protocol: str) -> str:
        """Question, data set, protocol, number of test tasks and profile, for tables and figures."""
        runs = self.costs[self.costs["protocol"] == protocol]
        profiles = ", ".join(sorted(runs["profile"].unique()))
        return (
            f"{QUESTION}. Data: {self.title}. Protocol: {protocol} ({_title('protocol', protocol).lower()}), "
            f"{int(runs['tasks'].max()):,} test tasks. Profile: {profiles}."
        )

    def systems(self, protocol: str, metric: str = "ndcg@10") -> list[str]:
        """The systems that ran under a protocol, best mean first."""
        means = self.metrics[self.metrics["protocol"] == protocol].assign(name=named)
        ranked = (
            means[means["name"] == metric].groupby("system")["value"].mean().sort_values(ascending=False, kind="stable")
        )
        return [str(name) for name in ranked.index]

    def is_ceiling(self, system: str) -> bool:
        """Whether a system reads the answers."""
        return self.families[system] in CEILINGS

    def per_task(self, protocol: str, system: str) -> pd.DataFrame:
        """One row per task, metrics averaged over seeds; index task_id."""
        path = paths.results(self.dataset) / "per_task" / protocol / f"{system}.csv.gz"
        return per_task.read(path).drop(columns="seed").groupby("task_id").mean()

    def value(self, protocol: str, system: str, metric: str) -> float:
        """Mean over seeds of a metric such as ``ndcg@10``."""
        rows = self.overall[(self.overall["protocol"] == protocol) & (self.overall["system"] == system)]
        return float(rows.loc[named(rows) == metric, "mean"].iloc[0])

    def cost_table(self, protocol: str) -> pd.DataFrame:
        """What each system's runs took, best NDCG@10 first (means over seeds).

        Returns: columns system, title, family, quality (NDCG@10), seconds_fit, milliseconds_per_task, peak_memory_mib,
            parameters, seeds, tasks, tie_rate (share of the tasks whose top ten a tie decides).
        """
        order = self.systems(protocol)
        rows = self.costs[self.costs["protocol"] == protocol].set_index("system").loc[order].reset_index()
        return rows.assign(
            title=rows["system"].map(self.titles),
            family=rows["system"].map(self.families),
            quality=[self.value(protocol, system, "ndcg@10") for system in order],
            milliseconds_per_task=1000 * rows["seconds_score"] / rows["tasks"],
        )

    def machines(self) -> list[str]:
        """The machines that the runs were made on."""
        found = set()
        for path in sorted((paths.results(self.dataset) / "records").glob("*/*.json")):
            hardware = json.loads(path.read_text(encoding="utf-8"))["hardware"]
            found.add(
                f"{hardware['processor']}, {hardware['cores']} cores, accelerator: {hardware['accelerator'] or 'none'}"
            )
        return sorted(found)

    def summary(self, protocol: str, metric: str, *, resamples: int = 2_000) -> pd.DataFrame:
        """One row per system, best first: mean, spread over seeds, and uncertainty over tasks.

        Returns: columns system, title, family, mean, sd (over seeds, NaN for one seed), low, high (95 % percentile
            bootstrap interval over tasks of the seed-averaged values).
        """
        rows = self.overall[(self.overall["protocol"] == protocol)]
        rows = rows[named(rows) == metric].set_index("system")
        lines = []
        for system in self.systems(protocol, metric):
            values = self.per_task(protocol, system)[metric].dropna().to_numpy(np.float64)
            low, high = bootstrap_interval(values, seed=0, resamples=resamples)
            lines.append({
                "system": system, "title": self.titles[system], "family": self.families[system],
                "mean": rows.loc[system, "mean"], "sd": rows.loc[system, "sd"], "low": low, "high": high,
            })  # fmt: skip
        return pd.DataFrame(lines)


def named(rows: pd.DataFrame) -> pd.Series:
    """``metric@k`` of each row of a table with columns metric and k."""
    return rows["metric"] + "@" + rows["k"].astype(str)
