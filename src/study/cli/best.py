"""`study best`: the choice on validation topics, the lexical probe, and other people's benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import typer

from study import paths
from study.config.reader import read_keys

app = typer.Typer(no_args_is_help=True, help="The recommender for usefulness: choose, compare, probes, transfer.")
DATASET = "task2mcp"


def settings(name: str, keys: set[str]) -> dict[str, Any]:
    """``conf/best/<name>.yaml``, whose keys must be exactly `keys` (`study.config.reader.read_keys`)."""
    return read_keys(paths.conf() / "best" / f"{name}.yaml", sorted(keys))


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
    from study.analysis.usefulness.choosing import table

    chosen = settings("choice", {"part", "compared", "variants"})
    save("choice", table(DATASET, chosen), part=chosen["part"], compared=chosen["compared"])


@app.command()
def compare() -> None:
    """Compare `best` with every judged system on the test topics, whose answers were judged after it was frozen."""
    from study.analysis.usefulness.choosing import against

    save("judged_test", against(DATASET, "best", "test"), part="test", system="best")


@app.command()
def probes() -> None:
    """Count how often a server of the word in a request comes first, where it is the tool and where it is not."""
    from study.analysis.usefulness import navigational as probe
    from study.data import dataset as datasets

    chosen = settings("probes", probe.KEYS)
    found = probe.table(chosen, datasets.load(DATASET))
    asked = found[found["kind"] == "all"].groupby("form", sort=False)["requests"].first()
    save("probes", found, goal=chosen["top1"], requests=asked.to_dict())


@app.command()
def transfer() -> None:
    """Rank the servers of LiveMCPBench and MCP-tools without any tuning there."""
    from study.analysis.usefulness import transfer as other
    from study.evaluation.significance import bootstrap_interval

    chosen = settings("transfer", {"systems", "system", "metric", "seed"})
    metric, rows = chosen["metric"], []
    for setting, tables in other.run(tuple(chosen["systems"]), seed=chosen["seed"]).items():
        reference = tables[chosen["system"]][metric].to_numpy(np.float64)
        for name, frame in tables.items():
            difference = reference - frame[metric].to_numpy(np.float64)
            low, high = bootstrap_interval(difference, seed=chosen["seed"])
            means = frame[["ndcg@5", "ndcg@10", "recall@10", "hit_rate@1"]].mean().to_dict()
            rows.append(
                {
                    "setting": setting,
                    "system": name,
                    "queries": len(frame),
                    **means,
                    "best_minus_it": difference.mean(),
                    "low": low,
                    "high": high,
                }
            )
    save("transfer", pd.DataFrame(rows), system=chosen["system"], metric=metric)
