"""Table 3 row by row: how near a run comes under each protocol.

The run is one of the row's own method where that ran, else one of another system of the protocol grid. It is compared
by the paper's definitions of the eight columns and by the nearest of the metric definitions of the grid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from study.analysis.audit import protocols
from study.analysis.audit.consistency import CELLS, IDEAL
from study.analysis.audit.protocols import Definition, Measured, Protocols, distance, printed_form
from study.analysis.audit.verdicts import Verdicts, why_not, within
from study.analysis.framework import Context, Tables, analysis
from study.analysis.report import paper
from study.analysis.report.results import LONG_SUFFIX, TUNED_SUFFIX
from study.config.compose import load, sound_systems
from study.evaluation.metrics import Float64Array
from study.evaluation.per_task import KEYS
from study.evaluation.runs import CUTOFFS
from study.evaluation.statistics import percentile_limits
from study.runner.row_store import read_per_task

# One method: at its default settings, with tuned values, and either with more epochs.
ENDINGS = ("", TUNED_SUFFIX, LONG_SUFFIX, TUNED_SUFFIX + LONG_SUFFIX)
SAME, STAND_IN, OTHER, NONE = "same", "stand-in", "other", "none"
Candidate = tuple[str, int, pd.Series]  # a run whose means may be those of a printed row: system, seed, its means
SAME_DISTANCE = 1e-6  # per-task files keep six digits, so a smaller difference says nothing
COLUMNS = ["row", "source", "protocol", "title", "choice", "counterpart", "system", "seed", "definition", "distance"]
COUNTS = ["seed", "cells_within", "cells_within_relative", "cells_within_both", "compared"]
COLUMNS += ["largest", "largest_cell", *COUNTS[1:], "nearest", "reason"]
CHOICES = ("as defined", "nearest definition")


def definition_means(frame: pd.DataFrame) -> pd.Series:
    """Means over tasks of the measures of every metric definition, from the per-task rows of one seed.

    A task with H hits among k places and n relevant servers has P = H / k and R = H / n, so H / min(k, n) is the larger
    of P and R, and NDCG over what was found is NDCG times the ideal DCG of min(k, n) servers over that of H.
    """
    table, means = frame.drop(columns=KEYS).dropna(), dict[str, float]()
    for k in CUTOFFS:
        precision, recall = (table[f"{name}@{k}"].to_numpy(np.float64) for name in ("precision", "recall"))
        hits = np.rint(k * precision).astype(np.int64)
        relevant = np.rint(np.divide(hits, recall, out=np.ones(len(hits)), where=recall > 0)).astype(np.int64)
        ndcg_found = table[f"ndcg@{k}"] * IDEAL[np.minimum(k, relevant)] / IDEAL[hits]
        means |= {f"{name}@{k}": table[f"{name}@{k}"].mean() for name in ("recall", "precision", "f1", "ndcg")}
        means |= {f"recall_capped@{k}": np.maximum(precision, recall).mean(), f"hit_rate@{k}": (hits > 0).mean()}
        means[f"ndcg_found@{k}"] = ndcg_found.mean()
    return pd.Series(means)


def study_runs(dataset: str, protocol: str, system: str) -> list[Candidate]:
    """Every seed of a method under one of the study's protocols."""
    frames = read_per_task(dataset, protocol, [system + ending for ending in ENDINGS] if system else [])
    return [
        (name, int(str(seed)), definition_means(part))
        for name, frame in frames.items()
        for seed, part in frame.groupby("seed")
    ]


def nearest(
    means: Sequence[pd.Series], printed: Float64Array, definitions: Mapping[str, Definition], equal: float = 0.0
) -> tuple[int, str, Float64Array]:
    """The index of the run and the metric definition of least `distance` to a printed row, shape (8,), and its cells.
    Of those nearer than `equal` to it, it is the first: the paper's own definition has precedence."""
    tried = [
        (index, title, printed_form(mean, definition))
        for index, mean in enumerate(means)
        for title, definition in definitions.items()
    ]
    gaps = distance(np.array([values for *_, values in tried]), printed)
    return tried[int(np.argmax(gaps <= gaps.min() + equal))]


def difference(values: Float64Array, printed: Float64Array, chosen: Verdicts) -> dict[str, Any]:
    """How far eight cells are from the printed ones: distance, the largest difference, cells within the absolute
    tolerance, the relative one and both."""
    off = np.abs(values - printed)
    absolute, relative = within(off, chosen.tolerance), within(off, chosen.relative_tolerance * printed)
    line: dict[str, Any] = {"distance": float(distance(values, printed)), "largest": float(off.max())}
    line |= {"largest_cell": CELLS[int(off.argmax())], "cells_within": int(absolute.sum())}
    return line | {"cells_within_relative": int(relative.sum()), "cells_within_both": int((absolute & relative).sum())}


def distances(dataset: str, own_protocols: Sequence[str], grid: Protocols, chosen: Verdicts) -> pd.DataFrame:
    """rq1.csv: per row of Table 3, protocol and choice of the metric definition, the nearest run.

    source is `study` or `grid`; counterpart says whose run it is: of the same method, of the stand-in that the paper's
    file names, of another system, or none. `nearest` marks the least distance over all protocols, once among the runs
    of a row's own method (or its stand-in) and once among those of other systems.
    """
    every = paper.load()
    printed, rows_of = every[every["table"] == "table3"].drop_duplicates("printed"), paper.wide(every, "table3")
    protocols_of = {name: about.protocols for name, about in sound_systems().items()}
    places = [("study", name, str(load([f"protocol={name}"]).protocol.title)) for name in own_protocols]
    places += [("grid", variant.name, variant.title) for variant in grid.variants]
    fits = protocols.protocol_fits(dataset).load()
    fits = fits[fits["system"].isin(grid.systems) & fits["seed"].isin(grid.seeds)]
    shared: dict[str, list[Candidate]] = {variant.name: [] for variant in grid.variants}
    for (variant, system, seed), rows in fits.groupby(["protocol", "system", "seed"], sort=False):
        shared.setdefault(str(variant), []).append((str(system), int(str(seed)), rows.set_index("measure")["mean"]))
    cold = {item.name for item in grid.variants if item.split == "cold" and item.training == "train"}
    definitions = dict(grid.metric_definitions)
    first, lines = dict(list(definitions.items())[:1]), []
    for row, (source, protocol, title) in product(printed.to_dict("records"), places):
        system, cells = row["own"], rows_of.loc[row["printed"]].to_numpy(np.float64)
        runs = study_runs(dataset, protocol, system) if source == "study" else shared[protocol]
        itself = [run for run in runs if source == "study" or run[0] == system]
        line = {"row": row["printed"], "source": source, "protocol": protocol, "title": title}
        line |= {"reason": row["differs"], "counterpart": SAME if row["system"] else STAND_IN}
        if not itself:
            missing = "not in the grid of protocols"
            if source == "study" or system in grid.systems:
                missing = why_not(system, "cold" if protocol in cold else protocol, protocols_of)[1]
            line |= {"reason": missing, "counterpart": OTHER if runs else NONE}
        for choice, tried in zip(CHOICES, (first, definitions), strict=True):
            lines.append(line | {"choice": choice})
            if candidates := itself or runs:
                index, definition, values = nearest([run[2] for run in candidates], cells, tried, SAME_DISTANCE)
                run = dict(zip(("system", "seed"), candidates[index], strict=False))
                run |= {"definition": definition, "compared": len(candidates) * len(tried)}
                lines[-1] |= run | difference(values, cells, chosen)
    table = pd.DataFrame(lines).reindex(columns=COLUMNS).astype(dict.fromkeys(COUNTS, "Int64"))
    ran = table.dropna(subset=["distance"])
    least = ran.groupby(["row", "choice", ran["counterpart"] == OTHER])["distance"].idxmin()
    return table.assign(nearest=table.index.isin(least))


def infer(rows: pd.DataFrame, measured: Sequence[Measured], grid: Protocols, chosen: Verdicts) -> pd.DataFrame:
    """protocol_inference.csv: the nearest protocol and metric definition of each printed row, among the runs of the
    grid of its own system and among those of others.

    `rows` is in the form of `printed_rows`. `compared` counts combinations of protocol, system and definition; `gives`:
    all eight cells are within the absolute tolerance. The interval of the distance is over tasks.
    """
    definitions, lines = grid.metric_definitions, []
    for row, question in product(rows.to_dict("records"), ("own system", "other systems")):
        printed = np.array([row[name] for name in CELLS], dtype=np.float64)
        runs = [run for run in measured if (run.system == row["own"]) == (question == "own system")]
        if runs:
            index, definition, values = nearest([run.mean for run in runs], printed, definitions)
            run, about = runs[index], difference(values, printed, chosen)
            low, high = percentile_limits(distance(printed_form(run.draws, definitions[definition]), printed))
            line = {"table": row["table"], "row": row["row"], "question": question, "variant": run.variant}
            line |= {"title": run.title, "system": run.system, "definition": definition}
            line |= {"distance": about["distance"], "ci_low": low, "ci_high": high, "largest": about["largest"]}
            line |= {"cells_within": about["cells_within"], "gives": about["cells_within"] == len(CELLS)}
            lines.append(line | {"compared": len(runs) * len(definitions)})
    return pd.DataFrame(lines)


@analysis("audit")
def rq1(study: Context) -> Tables:
    """Which protocol gives the printed rows? Reads what `audit/protocols` ran. Tables: rq1, protocol_inference."""
    if not paper.describes(study.dataset):
        return {}
    names, grid, chosen = list(study.config.dataset.protocols), study.settings(Protocols), study.settings(Verdicts)
    inferred = infer(paper.printed_rows(), protocols.cells(study.dataset, grid), grid, chosen)
    return {"rq1": distances(study.dataset, names, grid, chosen), "protocol_inference": inferred}
