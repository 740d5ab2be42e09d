"""What the pages with tables show: the verdicts, the leaderboards, the systems, the judged topics."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd

from study.analysis.audit.verdicts import Verdicts
from study.analysis.framework import load_settings
from study.analysis.report.results import Results
from study.analysis.report.tables import named
from study.base import paths
from study.base.files import read_csv
from study.base.registry import system_file
from study.config.compose import sound_systems
from study.data import dataset as datasets
from study.judging import store

SHOWN = ("ndcg@10", "recall@10", "precision@10")  # measures of a row on a leaderboard
ANY_LISTS = "any lists of up to 100"  # labels of feasibility.csv
GRADES = (2, 1)  # that are listed; servers of grade 0 are only counted


@dataclass(frozen=True)
class Cell:
    """A cell of a table: its text, the page it leads to, and the number that it is sorted by, if it is one."""

    text: str
    href: str = ""
    order: float | None = None


@dataclass(frozen=True)
class Table:
    """A table that a reader may sort and filter. `choices`: columns with few values, chosen from a list."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    choices: Sequence[str] = ()


@dataclass(frozen=True)
class SystemPage:
    """All that the study knows about a system. `document`: docstrings of its module and class."""

    name: str
    title: str
    family: str
    reference: str
    settings: str
    document: str
    scores: Table
    judged: Table
    costs: Table


@dataclass(frozen=True)
class Topic:
    """A judged topic: grade -> ids of its servers. `text`: of the task, where it was asked for."""

    number: int
    part: str
    subcategory: str
    judged: int
    servers: Mapping[int, Sequence[int]]
    text: str = ""
    names: Mapping[int, str] = field(default_factory=dict)


def number(value: float, digits: int = 3) -> Cell:
    """A number, empty where there is none."""
    missing = value is None or (isinstance(value, float) and math.isnan(value))
    return Cell("") if missing else Cell(f"{value:,.{digits}f}", order=float(value))


def interval(low: float, high: float) -> Cell:
    """A 95 % interval, sorted by its lower end."""
    return Cell("") if pd.isna(low) else Cell(f"[{low:.3f}, {high:.3f}]", order=float(low))


def of_system(name: str, titles: Mapping[str, str]) -> Cell:
    """A system's title; it leads to its page where it has one."""
    return Cell(titles[name], f"system-{name}.html") if name in titles else Cell(name)


def verdicts(dataset: str) -> Table | None:
    """Every printed cell under the protocol that the paper states; None where the audit has not been made."""
    folder = paths.results(dataset) / "audit"
    if not (folder / "verdicts.csv").exists() or not (folder / "feasibility.csv").exists():
        return None
    cells, possible = read_csv(folder / "verdicts.csv"), read_csv(folder / "feasibility.csv")
    cells = cells[cells["table"].isin(["table3", "table4"])]
    whole = possible[possible["cells"] == "all eight cells"]
    yes = {tuple(at): "yes" if value else "no" for *at, value in whole[["row", "labels", "possible"]].to_numpy()}
    elsewhere = cells[cells["verdict"] == "reproduced"].groupby(["place", "row", "metric", "k"])["protocol"].agg(list)
    titles = {name: str(system.title) for name, system in sound_systems().items()}
    rows = []
    for row in cells[cells["protocol"] == load_settings(Verdicts).stated_protocol].to_dict("records"):
        at = (row["place"], row["row"], row["metric"], row["k"])
        rows.append(
            (
                Cell(row["place"]),
                Cell(row["row"]),
                Cell(f"{row['metric']}@{row['k']:.0f}"),
                number(row["paper"], 4),
                number(row["ours"], 4),
                interval(row["ci_low"], row["ci_high"]),
                number(row["diff"], 4),
                Cell(row["verdict"]),
                Cell("" if pd.isna(row["reason"]) else _titled(row["reason"], titles)),
                *(Cell(yes[row["row"], labels]) for labels in (ANY_LISTS, "task split")),
                Cell(", ".join(elsewhere.get(at, []))),
                of_system(row["system"], titles) if isinstance(row["system"], str) else Cell(""),
            )
        )
    columns = ["table", "row", "metric", "paper", "ours", "95 % interval", "difference", "verdict", "cause"]
    columns += ["possible with any lists", "possible with the released labels", "reproduced under", "our system"]
    return Table(columns, rows, ("table", "row", "metric", "verdict"))


def _titled(reason: str, titles: Mapping[str, str]) -> str:
    """A reason that begins with a system's name, with its title instead."""
    name, space, rest = reason.partition(" ")
    return f"{titles.get(name, name)}{space}{rest}"


def by_labels(results: Results) -> dict[str, Table]:
    """Protocol -> every system that ran under it, best NDCG@10 first."""
    overall = results.overall.assign(name=named(results.overall))
    tested = results.significance.reindex(
        columns=["protocol", "metric", "system", "diff", "diff_ci_low", "diff_ci_high"]
    )
    found = {}
    for protocol in results.protocols:
        own = overall[overall["protocol"] == protocol]
        measured = {(row["system"], row["name"]): row for row in own.to_dict("records")}
        gains = tested[(tested["protocol"] == protocol) & (tested["metric"] == SHOWN[0])].to_dict("records")
        gain = {row["system"]: (row["diff"], row["diff_ci_low"], row["diff_ci_high"]) for row in gains}
        rows = []
        for rank, system in enumerate(results.systems(protocol), 1):
            cells = [measured[system, name] for name in SHOWN]
            diff, *ends = gain.get(system, (math.nan,) * 3)
            rows.append(
                (
                    Cell(str(rank), order=rank),
                    of_system(system, results.titles),
                    Cell(results.families[system]),
                    *(number(cell["mean"], 4) for cell in cells),
                    number(cells[0]["sd"], 4),
                    number(diff),
                    interval(*ends),
                    number(cells[0]["n_seeds"], 0),
                )
            )
        columns = ("rank", "system", "family", *SHOWN, "sd over seeds", "minus T2MRec", "95 % interval", "seeds")
        found[protocol] = Table(columns, rows, ("family",))
    return found


def judged_scores(dataset: str) -> pd.DataFrame:
    """Scores on the judged topics, empty where there are none: columns of judged/tables/scores.csv."""
    path = paths.results(dataset) / "judged" / "tables" / "scores.csv"
    columns = ["system", "part", "metric", "n", "mean", "ci_low", "ci_high", "unjudged", "comparable"]
    return read_csv(path) if path.exists() else pd.DataFrame(columns=columns)


def by_usefulness(dataset: str, titles: Mapping[str, str]) -> dict[str, Table]:
    """Part of the judged topics -> every scored system, best NDCG@10 first."""
    scores = judged_scores(dataset)
    scores = scores[scores["metric"] == SHOWN[0]].sort_values("mean", ascending=False, kind="stable")
    columns = ("rank", "system", "ndcg@10", "95 % interval", "topics", "unjudged of the first ten", "comparable")
    found = {}
    for part, rows in scores.groupby("part", sort=False):
        cells = [
            (
                Cell(str(rank), order=rank),
                of_system(row["system"], titles),
                number(row["mean"]),
                interval(row["ci_low"], row["ci_high"]),
                number(row["n"], 0),
                number(row["unjudged"]),
                Cell("yes" if row["comparable"] else "no"),
            )
            for rank, row in enumerate(rows.to_dict("records"), 1)
        ]
        found[str(part)] = Table(columns, cells, ("comparable",))
    return found


def systems(results: Results) -> list[SystemPage]:
    """One page for every configured system, by name."""
    scores = judged_scores(results.dataset)
    scores = scores[scores["metric"].isin(["ndcg@10", "precision@5"])]
    overall = results.overall.assign(name=named(results.overall))
    measures = list(dict.fromkeys(overall["name"]))
    found = []
    for name, system in sorted(sound_systems().items()):
        own = overall[overall["system"] == name].pivot_table(index="protocol", columns="name", values="mean")
        own = own.reindex(columns=measures)
        judged = scores[scores["system"] == name]
        costs = results.costs[results.costs["system"] == name]
        found.append(
            SystemPage(
                name=name,
                title=str(system.title),
                family=str(system.family),
                reference=str(system.reference or ""),
                settings=system_file(name).read_text(encoding="utf-8"),
                document=_document(str(system.model["_target_"])),
                scores=_plain(own.reset_index(), 4),
                judged=_plain(judged[["part", "metric", "n", "mean", "ci_low", "ci_high", "unjudged"]]),
                costs=_plain(costs.drop(columns=["system", "commit", "dirty"])),
            )
        )
    return found


def _document(target: str) -> str:
    """The docstrings of a class and of its module, read without importing them."""
    module, _, name = target.rpartition(".")
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        return ""
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    nodes: list[ast.Module | ast.ClassDef] = [tree]
    nodes += (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    return "\n\n".join(filter(None, (ast.get_docstring(node) for node in nodes)))


def _plain(frame: pd.DataFrame, digits: int = 3) -> Table:
    """A data frame as it is."""

    def cell(value: Any) -> Cell:
        if isinstance(value, float):
            return number(value, 0 if value.is_integer() and abs(value) > 1 else digits)
        return Cell("" if pd.isna(value) else str(value))

    rows = [tuple(map(cell, row)) for row in frame.astype(object).itertuples(index=False)]
    return Table([str(name).replace("_", " ") for name in frame.columns], rows)


def topics(dataset: str, texts: bool) -> list[Topic]:
    """The judged topics with the grades of their servers; empty where nothing is judged.

    `texts`: with the names of tasks and servers, from the prepared data of this machine.
    """
    if not (paths.results(dataset) / "judged" / "judgements.csv").exists():
        return []
    tables = {name: store.read_table(dataset, name) for name in ("topics", "judgements")}
    judged = tables["judgements"].groupby("task_id")
    tasks: Mapping[int, str] = {}
    servers: Mapping[int, str] = {}
    if texts:
        data = datasets.load(dataset)
        tasks, servers = (dict(frame.set_index("id")["name"]) for frame in (data.tasks, data.servers))
    found = []
    for task, part, subcategory in tables["topics"][["task_id", "part", "subcategory"]].itertuples(index=False):
        graded = judged.get_group(task)
        useful = {grade: sorted(graded.loc[graded["final"] == grade, "server_id"]) for grade in GRADES}
        names = {server: servers[server] for listed in useful.values() for server in listed if server in servers}
        found.append(Topic(task, part, subcategory, len(graded), useful, tasks.get(task, ""), names))
    return found
