"""`study best`: the choice on validation topics, the lexical probe, and other people's benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import typer
import yaml

from study import paths
from study.errors import StudyError

app = typer.Typer(no_args_is_help=True, help="The recommender for usefulness: choose, compare, probes, transfer.")
DATASET = "task2mcp"


def settings(name: str, keys: set[str]) -> dict[str, Any]:
    """``conf/best/<name>.yaml``, read strictly.

    Raises:
        StudyError: the file cannot be read, or its keys are not `keys`.
    """
    path = paths.conf() / "best" / f"{name}.yaml"
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise StudyError(f"cannot be read ({error})", file=path, fix="restore it from git") from error
    if not isinstance(found, dict) or set(found) != keys:
        raise StudyError("its keys are not those that are read", file=path, fix=f"its keys: {', '.join(sorted(keys))}")
    return found


def place(name: str) -> Path:
    """A result file."""
    return paths.results(DATASET) / "best" / name


def save(name: str, frame: pd.DataFrame, **facts: Any) -> None:
    """Write a table and its record, and print the table."""
    from study.evaluation.records import record
    from study.files import write_csv, write_json

    write_csv(place(f"{name}.csv"), frame)
    write_json(place(f"{name}.json"), record(dataset=DATASET, result=name, **facts))
    typer.echo(frame.to_string(index=False, float_format="{:.3f}".format))


@app.command()
def choose() -> None:
    """Score the variants of conf/best/choice.yaml on the judged validation topics."""
    from baselines.useful.choosing import table

    chosen = settings("choice", {"part", "compared", "variants"})
    save("choice", table(DATASET, chosen), part=chosen["part"], compared=chosen["compared"])


@app.command()
def compare() -> None:
    """Compare `best` with every judged system on the test topics, whose answers were judged after it was frozen."""
    from baselines.useful.choosing import against

    save("judged_test", against(DATASET, "best", "test"), part="test", system="best")


@app.command()
def probes() -> None:
    """Ask for products by name and count how often a server of that product comes first."""
    from baselines.useful import probes as probe
    from study.data import dataset as datasets
    from study.evaluation.ranking import tie_order

    chosen = settings("probes", {"seed", "requests", "top1", "systems", "kinds"})
    data = datasets.load(DATASET)
    asked = probe.draw(chosen, data.servers)
    rows = []
    for name in chosen["systems"]:
        good = probe.answered(probe.scores(name, data, asked), asked, tie_order(data.n_servers, 0))
        by_kind = {kind: good[[p.kind == kind for p in asked]] for kind in ("all", *chosen["kinds"])} | {"all": good}
        rows += [{"system": name, "kind": kind, "requests": len(values), "top1": float(np.mean(values))}
                 for kind, values in by_kind.items() if len(values)]  # fmt: skip
    save("probes", pd.DataFrame(rows), goal=chosen["top1"], requests=len(asked))


@app.command()
def transfer() -> None:
    """Rank the servers of LiveMCPBench and MCP-tools without any tuning there."""
    from baselines.useful import transfer as other
    from study.evaluation.significance import bootstrap_interval

    chosen = settings("transfer", {"systems", "system", "metric", "seed"})
    metric, rows = chosen["metric"], []
    for setting, tables in other.run(tuple(chosen["systems"]), seed=chosen["seed"]).items():
        reference = tables[chosen["system"]][metric].to_numpy(np.float64)
        for name, frame in tables.items():
            difference = reference - frame[metric].to_numpy(np.float64)
            low, high = bootstrap_interval(difference, seed=chosen["seed"])
            means = frame[["ndcg@5", "ndcg@10", "recall@10", "hit_rate@1"]].mean().to_dict()
            rows.append({"setting": setting, "system": name, "queries": len(frame), **means,
                         "best_minus_it": difference.mean(), "low": low, "high": high})  # fmt: skip
    save("transfer", pd.DataFrame(rows), system=chosen["system"], metric=metric)
