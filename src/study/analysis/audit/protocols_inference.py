"""Which protocol, if any, gives the published rows: distances between what was measured and what was printed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from omegaconf import DictConfig

from study.analysis.audit.paper_cells import described, folder, printed_rows
from study.analysis.audit.protocols_settings import Grid, read
from study.analysis.audit.verdicts import BORDER
from study.analysis.report.tables import PAPER_METRICS
from study.errors import StudyError
from study.evaluation.records import record
from study.evaluation.runs import CUTOFFS
from study.files import write_csv, write_json

Float64Array = NDArray[np.float64]
CELLS = list(PAPER_METRICS)
MEND = "remove the file and run: study audit protocols"


@dataclass(frozen=True)
class Measured:
    """One protocol and system of the grid as run.

    Attributes:
        variant, title, system: which.
        seeds, tasks: how many.
        measures: names like ``recall_capped@5``.
        mean: over tasks and seeds, shape (measures,).
        draws: normal draws of the mean over tasks, shape (draws, measures); their spread is the uncertainty.
    """

    variant: str
    title: str
    system: str
    seeds: int
    tasks: int
    measures: list[str]
    mean: Float64Array
    draws: Float64Array


def printed_form(means: Float64Array, names: list[str], reading: Mapping[str, str]) -> Float64Array:
    """The eight columns of the paper's tables under one reading of the measures.

    Args:
        means: means of measures, shape (..., len(names)).
        names: like ``recall_capped@5``, in the order of the last axis.

    Returns: shape (..., 8), in `PAPER_METRICS` order.
    """
    at = {name: means[..., place] for place, name in enumerate(names)}
    columns: dict[str, Float64Array] = {}
    for k in CUTOFFS:
        precision, recall = at[f"precision@{k}"], at[f"{reading['recall']}@{k}"]
        total = precision + recall
        harmonic = np.divide(2 * precision * recall, total, out=np.zeros_like(total), where=total > 0)
        columns |= {
            f"recall@{k}": recall,
            f"precision@{k}": precision,
            f"ndcg@{k}": at[f"{reading['ndcg']}@{k}"],
            f"f1@{k}": harmonic if reading["f1"] == "of_means" else at[f"f1@{k}"],
        }
    return np.stack([columns[name] for name in CELLS], axis=-1)


def distance(measured: Float64Array, printed: Float64Array) -> Float64Array:
    """Root mean square difference of the eight cells (the Euclidean norm over the square root of 8), shape (...)."""
    result: Float64Array = np.sqrt(np.mean((measured - printed) ** 2, axis=-1))
    return result


def cells(dataset: str, grid: Grid) -> list[Measured]:
    """The protocols and systems of the grid that have been run, in its order."""
    found: list[Measured] = []
    for variant in grid.variants:
        for system in grid.systems:
            kept = []
            for seed in grid.seeds:
                path = folder(dataset) / "protocols" / variant.name / f"{system}-{seed}.json"
                if path.exists():
                    kept.append(read_cell(path))
            if not kept:
                continue
            mean = np.mean([part["mean"] for part in kept], axis=0)
            # The seeds ask the same tasks, so averaging them does not make the tasks more.
            covariance = np.mean([part["covariance"] for part in kept], axis=0)
            rng = np.random.default_rng([grid.seed, len(found)])
            draws = rng.multivariate_normal(mean, covariance, size=grid.draws, method="eigh", check_valid="ignore")
            found.append(
                Measured(
                    variant.name,
                    variant.title,
                    system,
                    len(kept),
                    int(kept[0]["tasks"]),
                    list(kept[0]["measures"]),
                    mean,
                    draws,
                )
            )
    return found


def read_cell(path: Path) -> dict[str, Any]:
    """One cell's file.

    Raises:
        StudyError: it cannot be read.
    """
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StudyError("not readable as JSON", file=path, fix=MEND) from error
    missing = {"mean", "covariance", "measures", "tasks"} - set(content)
    if missing:
        raise StudyError("not a cell of the protocol grid", file=path, column=min(missing), fix=MEND)
    return content


def interval(values: Float64Array, level: float) -> tuple[float, float]:
    """The central interval of draws."""
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def measured_table(found: list[Measured], level: float) -> pd.DataFrame:
    """What every cell of the grid gives: variant, title, system, seeds, tasks, measure, k, value, low, high."""
    lines = []
    for cell in found:
        about = (cell.variant, cell.title, cell.system, cell.seeds, cell.tasks)
        for place, name in enumerate(cell.measures):
            measure, k = name.split("@")
            low, high = interval(cell.draws[:, place], level)
            lines.append((*about, measure, int(k), float(cell.mean[place]), low, high))
    columns = ["variant", "title", "system", "seeds", "tasks", "measure", "k", "value", "low", "high"]
    return pd.DataFrame(lines, columns=columns)


def infer(rows: pd.DataFrame, found: list[Measured], grid: Grid) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Distances of printed rows to everything measured, and the nearest protocol of each row.

    Args:
        rows: columns table, row, own (its system in the study, or empty) and the eight cells.
        found: from `cells`.

    Returns: two tables.
        distances: per row, protocol and system the first reading (the paper's definitions) and the nearest one, with
            the interval of the distance over tasks and the largest difference of a cell.
        inference: per row the nearest protocol among runs of its own system and among all runs. `compared` counts the
            combinations of protocol, system and reading that were tried, `share` is the share of the draws in which
            the same protocol is nearest, `gives` says whether all eight cells are within the tolerance, `trivial`
            whether zeros would be as well.
    """
    distances, inference = [], []
    for row in rows.to_dict("records"):
        printed = np.array([row[name] for name in CELLS], dtype=np.float64)
        lines, drawn = [], []
        for cell in found:
            options = []
            for reading, columns in grid.readings.items():
                value = printed_form(cell.mean, cell.measures, columns)
                options.append((float(distance(value, printed)), reading, value))
            chosen = min(options, key=lambda option: option[0])
            for number, (gap, reading, value) in enumerate([options[0], chosen]):
                spread = distance(printed_form(cell.draws, cell.measures, grid.readings[reading]), printed)
                low, high = interval(spread, grid.level)
                lines.append(
                    {
                        "table": row["table"],
                        "row": row["row"],
                        "variant": cell.variant,
                        "title": cell.title,
                        "system": cell.system,
                        "choice": ("as defined", "nearest reading")[number],
                        "reading": reading,
                        "distance": gap,
                        "low": low,
                        "high": high,
                        "largest": float(np.abs(value - printed).max()),
                        "cells_within": int((np.abs(value - printed) <= grid.tolerance + BORDER).sum()),
                        "trivial": bool((printed <= grid.tolerance).all()),
                    }
                )
            drawn.append(spread)
        distances += lines
        for question, kept in (
            ("own system", [i for i, cell in enumerate(found) if cell.system == row["own"]]),
            ("any system", list(range(len(found)))),
        ):
            if kept:
                inference.append(
                    nearest([lines[2 * i + 1] for i in kept], np.array([drawn[i] for i in kept]), question, grid)
                )
    return pd.DataFrame(distances), pd.DataFrame(inference)


def nearest(lines: list[dict[str, Any]], draws: Float64Array, question: str, grid: Grid) -> dict[str, Any]:
    """The line of the nearest protocol, with how sure it is and which one comes next.

    Args:
        lines: one per protocol and system, from `infer`.
        draws: distances of the draws, shape (len(lines), draws).
    """
    gaps = np.array([line["distance"] for line in lines], dtype=np.float64)
    order = np.argsort(gaps, kind="stable")
    best = lines[order[0]]
    second = lines[order[1]] if len(order) > 1 else None
    return {
        "table": best["table"],
        "row": best["row"],
        "question": question,
        "variant": best["variant"],
        "title": best["title"],
        "system": best["system"],
        "reading": best["reading"],
        "distance": best["distance"],
        "low": best["low"],
        "high": best["high"],
        "largest": best["largest"],
        "cells_within": best["cells_within"],
        "gives": bool(best["largest"] <= grid.tolerance + BORDER),
        "trivial": best["trivial"],
        "compared": len(lines) * len(grid.readings),
        "share": float((draws.argmin(axis=0) == order[0]).mean()),
        "next_variant": second["variant"] if second else "",
        "next_system": second["system"] if second else "",
        "next_distance": second["distance"] if second else float("nan"),
    }


def compute(config: DictConfig) -> list[Path]:
    """Write protocol_cells.csv.xz, and for the data set that the paper describes protocol_distances.csv.xz (every row
    of the paper beside every cell; both are packed) and protocol_inference.csv, with one record.

    Raises:
        StudyError: no cell of the grid has been run.
    """
    dataset, grid = config.dataset.name, read()
    found = cells(dataset, grid)
    if not found:
        raise StudyError(
            "no cell of the protocol grid has been run",
            file=folder(dataset) / "protocols",
            fix=f"run: study audit protocols dataset={dataset}",
        )
    written = {folder(dataset) / "protocol_cells.csv.xz": measured_table(found, grid.level)}
    if described(dataset):
        distances, inference = infer(printed_rows(), found, grid)
        written[folder(dataset) / "protocol_distances.csv.xz"] = distances
        written[folder(dataset) / "protocol_inference.csv"] = inference
    for path, table in written.items():
        write_csv(path, table)
    write_json(folder(dataset) / "protocol_cells.json", record(dataset=dataset, settings=asdict(grid)))
    return list(written)
