"""The parts of `study usefulness run`: each reads its settings and writes tables with their records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from study import paths
from study.analysis.usefulness import (
    calibration,
    choosing,
    curves,
    known_items,
    open_catalogue,
    other_requests,
    pareto,
)
from study.config.reader import read_settings
from study.data import dataset as datasets
from study.evaluation.records import record
from study.files import write_csv, write_json
from study.judging.pools import load_split
from study.runner.inputs import load_inputs

DATASET = "task2mcp"
Found = Iterator[tuple[str, pd.DataFrame, dict[str, Any]]]  # file name, table, facts for its record


def conf(name: str) -> Path:
    """A file of settings."""
    return paths.conf() / "usefulness" / f"{name}.yaml"


def choose() -> Found:
    """Score the variants of `field_dense` on the judged validation topics."""
    settings = read_settings(choosing.Choice, conf("choice"))
    table = choosing.choice_table(DATASET, settings)
    yield "choice", table, {"part": settings.part, "compared": settings.compared}


def compare() -> Found:
    """Compare `field_dense` with every judged system on the test topics, and `field_dense_mpnet` on the fresh ones.

    Each was frozen before its answers on these topics were judged.
    """
    for part, system in (("test", "field_dense"), ("fresh", "field_dense_mpnet")):
        yield f"judged_{part}", choosing.against(DATASET, system, part), {"part": part, "system": system}


def transferred() -> Found:
    """Rank the servers of LiveMCPBench and MCP-tools without any tuning there."""
    settings = read_settings(other_requests.Transfer, conf("transfer"))
    yield "transfer", other_requests.transfer_table(settings), {"system": settings.system, "metric": settings.metric}


def navigate() -> Found:
    """Ask navigational queries: how often a server that bears the name comes first."""
    settings = read_settings(other_requests.Navigational, conf("navigational"))
    found = other_requests.navigational_table(settings, datasets.load(DATASET))
    asked = found[found["kind"] == "all"].groupby("form", sort=False)["requests"].first()
    yield "navigational_queries", found, {"target": settings.top1, "requests": asked.to_dict()}


def find_known() -> Found:
    """Ask names of servers and tools, and requests written for one server each: is it found?"""
    settings = read_settings(known_items.KnownItems, conf("known_items"))
    yield "known_items", known_items.known_items_table(settings, datasets.load(DATASET)), {"settings": asdict(settings)}


def search_open() -> Found:
    """Score methods of search over the open catalogue by its judgements; count the tokens that a client saves."""
    facts = {"settings": asdict(open_catalogue.Settings.read())}
    yield "open", open_catalogue.judged(), facts
    yield "open_tokens", open_catalogue.tokens(), facts


def calibrate() -> Found:
    """Fit the chance that the first answer is useful on validation topics; measure it on test topics."""
    settings = read_settings(calibration.Calibration, conf("calibration"))
    asked = calibration.confidence(DATASET, settings.system)
    yield "confidence", asked, {"system": settings.system}
    for name, frame in calibration.calibration_tables(asked, settings).items():
        yield name, frame, {"settings": asdict(settings)}


def steps() -> Found:
    """Add one idea at a time up to `field_dense`; teach T2MRec's architecture by something else than the labels."""
    settings = read_settings(choosing.Steps, conf("steps"))
    values = {part: choosing.judged_values(DATASET, part) for part in ("valid", "test")}
    frames = [
        choosing.one_at_a_time(own, settings.steps, settings.metrics, seed=settings.seed).assign(part=part)
        for part, own in values.items()
    ]
    facts = {"settings": asdict(settings)}
    yield "steps", pd.concat(frames, ignore_index=True), facts
    yield "supervision", choosing.supervision(values, settings.supervision, seed=settings.seed), facts


def time_requests() -> Found:
    """Time single requests, one after another, on one thread (run it on a quiet machine)."""
    settings = read_settings(pareto.Latency, conf("latency"))
    found = pareto.latency_table(*load_split(DATASET), settings)
    yield "latency", found, {"settings": asdict(settings), "threads": 1}


def weigh_costs() -> Found:
    """Put quality by labels and by judgements beside training seconds and latency."""
    yield "pareto", pareto.pareto_table(DATASET), {}


def learn_from_less() -> Found:
    """Fit the labels from fewer training tasks (minutes; goes on where it was stopped)."""
    settings = read_settings(curves.Curves, conf("curves"))
    _, split = load_inputs(DATASET, settings.protocol)
    fits, tasks = curves.curve_fits(DATASET, settings), len(split.tasks("train"))
    yield "curves", curves.curve_table(fits, tasks, seed=settings.seed), {"settings": asdict(settings)}


def label_steps() -> Found:
    """Add one idea at a time up to `label_ranker`, on validation tasks (minutes; goes on where it was stopped)."""
    settings = read_settings(curves.LabelSteps, conf("label_steps"))
    table = curves.label_step_table(curves.label_step_fits(DATASET, settings), seed=settings.seed)
    yield "label_steps", table, {"settings": asdict(settings)}


PARTS: dict[str, Callable[[], Found]] = {
    "choose": choose,
    "compare": compare,
    "transfer": transferred,
    "navigational": navigate,
    "known_items": find_known,
    "open": search_open,
    "calibration": calibrate,
    "steps": steps,
    "pareto": weigh_costs,
    "curves": learn_from_less,
    "label_steps": label_steps,
    "latency": time_requests,
}


def run_part(name: str) -> Iterator[pd.DataFrame]:
    """Compute a part and write its tables and records; yields each table once it is written."""
    for file, table, facts in PARTS[name]():
        place = paths.results(DATASET) / "usefulness" / f"{file}.csv"
        write_csv(place, table)
        write_json(place.with_suffix(".json"), record(dataset=DATASET, result=file, **facts))
        yield table
