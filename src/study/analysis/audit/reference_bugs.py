"""What faults of reference programs give: a published method beside its row with the fault, drawn from their runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from omegaconf import DictConfig

from study import paths
from study.config.reader import read_settings
from study.config.schema import require_choice
from study.errors import StudyError
from study.evaluation import per_task
from study.evaluation.records import read_record, record
from study.evaluation.significance import bootstrap_interval, paired
from study.files import write_csv, write_json
from study.runner.rows import Outputs

RAN, NOT_RUN = "run", "not run"
COLUMNS = (
    "row",
    "system",
    "protocol",
    "fault",
    "state",
    "metric",
    "seeds",
    "n",
    "without",
    "with_fault",
    "difference",
    "low",
    "high",
    "least",
    "most",
    "unmoved",
    "no_server",
)
ABOUT = ("system", "protocol", "fault")


@dataclass(frozen=True)
class Faults:
    """``conf/audit/faults.yaml``, where every key is explained."""

    metric: str
    resamples: int
    seed: int
    rows: dict[str, dict[str, str]]


def read(path: Path | None = None) -> Faults:
    """The settings.

    Raises:
        StudyError: the file cannot be read, has other keys, or names a system or protocol that is not configured.
    """
    path = path or paths.conf() / "audit" / "faults.yaml"
    settings = read_settings(Faults, path)
    for row, about in settings.rows.items():
        if set(about) != set(ABOUT):
            raise StudyError(
                f"a row states {', '.join(sorted(about))}",
                file=path,
                column=f"rows.{row}",
                fix=f"its keys are: {', '.join(ABOUT)}",
            )
        for name in (row, about["system"]):
            require_choice("system", name)
        require_choice("protocol", about["protocol"])
    return settings


def answers_of_no_server(seeds: list[dict[str, Any]]) -> float:
    """The share of a generative method's answers that name no server, over all seeds; NaN for other methods.

    Args:
        seeds: the facts of a record's seeds.
    """
    said = [facts.get("report", {}) for facts in seeds]
    written = sum(report.get("answers", 0) for report in said)
    return sum(report.get("answers_of_no_server", 0) for report in said) / written if written else np.nan


def faults(dataset: str, settings: Faults) -> pd.DataFrame:
    """One row per fault; a pair of which a run is missing says so and has no number.

    Both sides are compared at the seeds that both have, so that no other seed's luck stands in the difference; where
    the fault is one of the search alone, both trainings are the same computation.

    Returns: columns row, system, protocol, fault, state, metric, seeds (how many both have), n (tasks), without and
        with_fault (means over tasks of the means over those seeds), difference (with the fault - without) with its 95 %
        interval over tasks (low, high), the least and the most of it in a single seed (least, most), unmoved (share of
        the tasks and seeds whose value is the same), no_server (share of the faulty row's answers that name no server).

    Raises:
        StudyError: the two runs of a pair share no seed, or were asked different tasks.
    """
    found = []
    for row, about in settings.rows.items():
        entry: dict[str, Any] = {"row": row, **about, "state": NOT_RUN, "metric": settings.metric}
        outputs = [Outputs.of(dataset, about["protocol"], name) for name in (row, about["system"])]
        if all(each.record.exists() and each.per_task.exists() for each in outputs):
            faulty, sound = (per_task.read(each.per_task) for each in outputs)
            shared = sorted(set(faulty["seed"]) & set(sound["seed"]))
            if not shared:
                raise StudyError(
                    f"no seed of {row} is a seed of {about['system']}",
                    file=outputs[0].per_task,
                    column="seed",
                    fix="run both with a common seed",
                )
            faulty, sound = (frame[frame["seed"].isin(shared)] for frame in (faulty, sound))
            pairs = paired(faulty, sound, settings.metric)
            gap = (pairs["system"] - pairs["reference"]).to_numpy()
            low, high = bootstrap_interval(gap, seed=settings.seed, resamples=settings.resamples)
            by_seed = faulty.merge(sound, on=["task_id", "seed"], suffixes=("", "_sound"), validate="one_to_one")
            moved = by_seed[settings.metric] - by_seed[f"{settings.metric}_sound"]
            of_seed = moved.groupby(by_seed["seed"]).mean()
            entry |= {
                "state": RAN,
                "seeds": len(shared),
                "n": len(pairs),
                "without": pairs["reference"].mean(),
                "with_fault": pairs["system"].mean(),
                "difference": gap.mean(),
                "low": low,
                "high": high,
                "least": of_seed.min(),
                "most": of_seed.max(),
                "unmoved": float((moved == 0).mean()),
                "no_server": answers_of_no_server(read_record(outputs[0].record)["seeds"]),
            }
        found.append(entry)
    return pd.DataFrame(found, columns=COLUMNS).astype({"seeds": "Int64", "n": "Int64"})


def compute(config: DictConfig) -> list[Path]:
    """Write faults.csv."""
    settings, dataset = read(), str(config.dataset.name)
    path = paths.results(dataset) / "audit" / "faults.csv"
    write_csv(path, faults(dataset, settings))
    write_json(path.with_suffix(".json"), record(dataset=dataset, settings=vars(settings)))
    return [path]
