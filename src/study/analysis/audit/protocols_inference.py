"""Which protocol, if any, gives the published rows: distances between what was measured and what was printed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from omegaconf import DictConfig

from study.analysis.audit.settings import Definition, Protocols, read
from study.analysis.audit.tables import Fits, described, printed_rows, write_tables
from study.analysis.audit.verdicts import BORDER
from study.errors import StudyError
from study.evaluation.metrics import PAPER_METRICS
from study.evaluation.runs import CUTOFFS

Float64Array = NDArray[np.float64]
CELLS = list(PAPER_METRICS)


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


def printed_form(means: Float64Array, names: list[str], definition: Definition) -> Float64Array:
    """The eight columns of the paper's tables under one definition of the metrics.

    Args:
        means: means of measures, shape (..., len(names)).
        names: like ``recall_capped@5``, in the order of the last axis.

    Returns: shape (..., 8), in `PAPER_METRICS` order.
    """
    at = {name: means[..., place] for place, name in enumerate(names)}
    columns: dict[str, Float64Array] = {}
    for k in CUTOFFS:
        precision, recall = at[f"precision@{k}"], at[f"{definition.recall}@{k}"]
        total = precision + recall
        harmonic = np.divide(2 * precision * recall, total, out=np.zeros_like(total), where=total > 0)
        columns |= {
            f"recall@{k}": recall,
            f"precision@{k}": precision,
            f"ndcg@{k}": at[f"{definition.ndcg}@{k}"],
            f"f1@{k}": harmonic if definition.f1 == "of_means" else at[f"f1@{k}"],
        }
    return np.stack([columns[name] for name in CELLS], axis=-1)


def distance(measured: Float64Array, printed: Float64Array) -> Float64Array:
    """Root mean square difference of the eight cells (the Euclidean norm over the square root of 8), shape (...)."""
    result: Float64Array = np.sqrt(np.mean((measured - printed) ** 2, axis=-1))
    return result


def protocol_fits(dataset: str) -> Fits:
    """The finished cells of the grid: a row per measure with its mean over tasks and the covariance of the means."""
    return Fits(dataset, "protocol_fits", ("protocol", "system", "seed", "settings"))


def cells(dataset: str, grid: Protocols) -> list[Measured]:
    """The protocols and systems of the grid that have been run, in its order.

    Raises:
        StudyError: the table of fits is damaged.
    """
    found: list[Measured] = []
    known = protocol_fits(dataset).known()
    if missing := {"mean", "measure", "tasks"} - set(known) if len(known) else set():
        fix, path = "remove the file and run: study audit run --part protocols", protocol_fits(dataset).path
        raise StudyError("not the cells of the protocol grid", file=path, column=min(missing), fix=fix)
    of_cell = dict(list(known.groupby(["protocol", "system"], sort=False)))
    for variant in grid.variants:
        for system in grid.systems:
            rows = of_cell.get((variant.name, system), known[:0])
            kept = [part for seed, part in rows.groupby("seed", sort=False) if seed in grid.seeds]
            if not kept:
                continue
            mean = np.mean([part["mean"].to_numpy() for part in kept], axis=0)
            # The seeds ask the same tasks, so averaging them does not make the tasks more.
            measures = list(kept[0]["measure"])
            columns = [f"covariance {name}" for name in measures]
            covariance = np.mean([part[columns].to_numpy() for part in kept], axis=0)
            rng = np.random.default_rng([grid.seed, len(found)])
            draws = rng.multivariate_normal(mean, covariance, size=grid.draws, method="eigh", check_valid="ignore")
            about = (variant.name, variant.title, system, len(kept), int(kept[0]["tasks"].iloc[0]))
            found.append(Measured(*about, measures, mean, draws))
    return found


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


def infer(rows: pd.DataFrame, found: list[Measured], grid: Protocols) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Distances of printed rows to everything measured, and the nearest protocol of each row.

    Args:
        rows: columns table, row, own (its system in the study, or empty) and the eight cells.
        found: from `cells`.

    Returns: two tables.
        distances: per row, protocol and system the first metric definition (the paper's) and the nearest one, with the
            interval of the distance over tasks and the largest difference of a cell.
        inference: per row the nearest protocol among runs of its own system and among all runs. `compared` counts the
            combinations of protocol, system and definition that were tried, `share` is the share of the draws in which
            the same protocol is nearest, `gives` says whether all eight cells are within the tolerance, `trivial`
            whether zeros would be as well.
    """
    distances, inference = [], []
    for row in rows.to_dict("records"):
        printed = np.array([row[name] for name in CELLS], dtype=np.float64)
        lines, drawn = [], []
        for cell in found:
            options = []
            for title, columns in grid.metric_definitions.items():
                value = printed_form(cell.mean, cell.measures, columns)
                options.append((float(distance(value, printed)), title, value))
            chosen = min(options, key=lambda option: option[0])
            for choice, (gap, title, value) in (("as defined", options[0]), ("nearest definition", chosen)):
                spread = distance(printed_form(cell.draws, cell.measures, grid.metric_definitions[title]), printed)
                low, high = interval(spread, grid.level)
                off = np.abs(value - printed)
                line = {"table": row["table"], "row": row["row"], "variant": cell.variant, "title": cell.title}
                line |= {"system": cell.system, "choice": choice, "definition": title, "distance": gap}
                line |= {"low": low, "high": high, "largest": float(off.max())}
                line |= {"cells_within": int((off <= grid.tolerance + BORDER).sum())}
                lines.append(line | {"trivial": bool((printed <= grid.tolerance).all())})
            drawn.append(spread)
        distances += lines
        own = [i for i, cell in enumerate(found) if cell.system == row["own"]]
        for question, kept in (("own system", own), ("any system", list(range(len(found))))):
            if kept:
                best = [lines[2 * i + 1] for i in kept]
                inference.append(nearest(best, np.array([drawn[i] for i in kept]), question, grid))
    return pd.DataFrame(distances), pd.DataFrame(inference)


def nearest(lines: list[dict[str, Any]], draws: Float64Array, question: str, grid: Protocols) -> dict[str, Any]:
    """The line of the nearest protocol, with how sure it is and which one comes next.

    Args:
        lines: one per protocol and system, from `infer`.
        draws: distances of the draws, shape (len(lines), draws).
    """
    gaps = np.array([line["distance"] for line in lines], dtype=np.float64)
    order = np.argsort(gaps, kind="stable")
    best, second = lines[order[0]], lines[order[1]] if len(order) > 1 else {}
    found = {"table": best["table"], "row": best["row"], "question": question}
    for name in ("variant", "title", "system", "definition", "distance", "low", "high", "largest", "cells_within"):
        found[name] = best[name]
    return found | {
        "gives": bool(best["largest"] <= grid.tolerance + BORDER),
        "trivial": best["trivial"],
        "compared": len(lines) * len(grid.metric_definitions),
        "share": float((draws.argmin(axis=0) == order[0]).mean()),
        "next_variant": second.get("variant", ""),
        "next_system": second.get("system", ""),
        "next_distance": second.get("distance", float("nan")),
    }


def compute(config: DictConfig) -> list[Path]:
    """Write protocol_cells.csv.xz, and for the data set that the paper describes protocol_distances.csv.xz (every row
    of the paper beside every cell) and protocol_inference.csv.

    Raises:
        StudyError: no cell of the grid has been run.
    """
    dataset, grid = config.dataset.name, read(Protocols)
    found = cells(dataset, grid)
    if not found:
        path, fix = protocol_fits(dataset).path, f"run: study audit run --part protocols dataset={dataset}"
        raise StudyError("no cell of the protocol grid has been run", file=path, fix=fix)
    tables = {"protocol_cells": measured_table(found, grid.level)}
    if described(dataset):
        tables["protocol_distances"], tables["protocol_inference"] = infer(printed_rows(), found, grid)
    return write_tables(dataset, tables, "protocol_cells", grid)
