"""Result files of MCP-Flow and the tables made from them.

``per_task/<split>_<pool>/<system>.csv.xz`` holds the ranking measures of the right tool, ``calls/...`` of the same name
Tool, Param and AST. Bright Data has four of five instructions, so that means over instructions are mostly means over
one server: every table also gives the mean over tools, and intervals and tests take tools as their units.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from study import paths
from study.errors import StudyError
from study.evaluation import per_task
from study.evaluation.significance import bootstrap_interval, compare_all
from study.files import write_csv, write_json, write_text
from study.tools import results
from study.tools.catalogues.catalog import ToolCatalog
from study.tools.catalogues.queries import QuerySet
from study.tools.flow.settings import Flow

CATALOGUE = "mcpflow"
MEASURES = ("tool", "param", "ast")


def save(
    protocol: str,
    system: str,
    answers: pd.DataFrame,
    size: int,
    inputs: tuple[ToolCatalog, QuerySet],
    record: dict[str, object],
) -> None:
    """Write the files of one system under one protocol.

    Args:
        answers: columns task_id, seed, rank, unit, server, tool, param, ast.
        size: candidates, of which `rank` is one.
        inputs: the catalogue and the instructions.
    """
    rank = answers["rank"]
    ranking = pd.DataFrame({"hit_rate@1": rank == 1, "hit_rate@5": rank <= 5, f"mrr@{size}": 1 / rank}).astype(float)
    whole = per_task.check(pd.concat([answers[per_task.KEYS], ranking], axis=1))
    write_csv(folder("calls") / protocol / f"{system}.csv.xz", answers.drop(columns="rank"))
    results.save(CATALOGUE, protocol, system, whole, inputs, origins=False, candidates=size, **record)
    seeds = sorted(set(answers["seed"].tolist()))
    path = folder("records") / protocol / f"{system}.json"
    write_json(path, results.read_record(CATALOGUE, protocol, system) | {"seeds": [{"seed": seed} for seed in seeds]})


def folder(kind: str) -> Path:
    """A folder of MCP-Flow's results."""
    return paths.results(CATALOGUE) / kind


def collect() -> dict[str, dict[str, pd.DataFrame]]:
    """The calls of every protocol and system."""
    found: dict[str, dict[str, pd.DataFrame]] = {}
    for path in sorted(folder("calls").glob("*/*.csv.xz")):
        system = path.name.removesuffix(".csv.xz")
        if not (folder("records") / path.parent.name / f"{system}.json").exists():
            raise StudyError(
                "a file of calls has no record beside it", file=path, fix="study tools run --catalogue mcpflow"
            )
        found.setdefault(path.parent.name, {})[system] = pd.read_csv(path)
    if not found:
        raise StudyError("there are no runs", file=folder("calls"), fix="run: study tools run --catalogue mcpflow")
    return found


def by_unit(answers: pd.DataFrame, unit: str) -> pd.DataFrame:
    """Means per tool (``unit``) or ``server`` over its instructions and seeds; index the unit, columns `MEASURES`."""
    return answers.groupby(unit, sort=True)[list(MEASURES)].mean()


def summary(protocol: str, system: str, answers: pd.DataFrame) -> dict[str, object]:
    """One line of flow_calls.csv: means in percent, as the paper prints them."""
    split, _, pool = protocol.rpartition("_")
    tools, servers = by_unit(answers, "unit"), by_unit(answers, "server")
    line: dict[str, object] = {
        "split": split,
        "pool": pool,
        "system": system,
        "instructions": answers["task_id"].nunique(),
        "tools": len(tools),
        "servers": len(servers),
        "seeds": answers["seed"].nunique(),
    }
    for measure in MEASURES:
        low, high = bootstrap_interval(tools[measure].to_numpy(np.float64), seed=results.SEED)
        line |= {
            measure: 100 * answers[measure].mean(),
            f"{measure}_by_tool": 100 * tools[measure].mean(),
            f"{measure}_low": 100 * low,
            f"{measure}_high": 100 * high,
            f"{measure}_by_server": 100 * servers[measure].mean(),
        }
    return line


def compared(protocol: str, runs: dict[str, pd.DataFrame], reference: str) -> pd.DataFrame:
    """Every system against the reference, paired over tools; Tool, Param and AST are one family."""
    # The three measures are hits of one answer, and the comparison knows hits by this name.
    as_hits = {"tool": "hit_rate@1", "param": "hit_rate@2", "ast": "hit_rate@3"}
    frames = {}
    for name, answers in runs.items():
        units = by_unit(answers, "unit").rename(columns=as_hits).reset_index(names="task_id")
        frames[name] = units.assign(seed=results.SEED)
    table = compare_all(frames, reference, list(as_hits.values()), results.SEED)
    names = {hit: measure for measure, hit in as_hits.items()}
    return table.assign(metric=table["metric"].map(names), unit="tool", protocol=protocol)


def report(flow: Flow) -> Path:
    """Redo metrics.csv.xz, significance.csv, flow_calls.csv and overall.md from the runs; runs nothing.

    Returns: the folder of the tables.
    """
    target = results.report(CATALOGUE, {})
    runs = collect()
    lines = [summary(at, name, answers) for at, own in runs.items() for name, answers in own.items()]
    write_csv(target / "flow_calls.csv", pd.DataFrame(lines))
    rows = pd.read_csv(target / "metrics.csv.xz")
    rows = rows[rows["metric"] != "completeness"]
    added = [rows]
    for at, own in runs.items():
        for name, answers in own.items():
            size = results.read_record(CATALOGUE, at, name)["candidates"]
            means = answers.groupby("seed", as_index=False)[list(MEASURES)].mean().melt("seed", var_name="metric")
            cell = {"dataset": CATALOGUE, "protocol": at, "system": name, "profile": results.PROFILE, "k": size}
            added.append(means.assign(**cell)[rows.columns])
    write_csv(target / "metrics.csv.xz", pd.concat(added))
    pairs = [
        compared(at, runs[at], reference)
        for split, (reference, pool) in flow.references.items()
        if reference in runs.get(at := f"{split}_{pool}", {}) and len(runs[at]) > 1
    ]
    if pairs:
        write_csv(target / "significance.csv", pd.concat(pairs))
    write_csv(target / "flow_not_run.csv", pd.DataFrame(flow.not_run))
    skipped = "\n".join(f"- {item['what']}: {item['reason']}." for item in flow.not_run)
    text = (target / "overall.md").read_text(encoding="utf-8")
    write_text(target / "overall.md", f"{text}\n### Not run\n\n{skipped}\n")
    return target
