"""What bugs of reference programs give: a published method beside its row with the bug, drawn from their runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from omegaconf import DictConfig

from study.analysis.audit.settings import ReferenceBugs, read
from study.analysis.audit.tables import write_tables
from study.errors import StudyError
from study.evaluation import per_task
from study.evaluation.records import read_record
from study.evaluation.significance import bootstrap_interval, paired
from study.runner.outputs import Outputs

RAN, NOT_RUN = "run", "not run"
COLUMNS = ["row", "system", "protocol", "bug", "state", "metric", "seeds", "n", "without", "with_bug", "difference"]
COLUMNS += ["low", "high", "least", "most", "unmoved", "no_server"]


def answers_of_no_server(seeds: list[dict[str, Any]]) -> float:
    """The share of a generative method's answers that name no server, over all seeds; NaN for other methods.

    Args:
        seeds: the facts of a record's seeds.
    """
    said = [facts.get("report", {}) for facts in seeds]
    written = sum(report.get("answers", 0) for report in said)
    return sum(report.get("answers_of_no_server", 0) for report in said) / written if written else np.nan


def bug_table(dataset: str, settings: ReferenceBugs) -> pd.DataFrame:
    """One row per bug; a pair of which a run is missing says so and has no number.

    Both sides are compared at the seeds that both have, so that no other seed's luck stands in the difference; where
    the bug is one of the search alone, both trainings are the same computation.

    Returns: columns row, system, protocol, bug, state, metric, seeds (how many both have), n (tasks), without and
        with_bug (means over tasks of the means over those seeds), difference (with the bug - without) with its 95 %
        interval over tasks (low, high), the least and the most of it in a single seed (least, most), unmoved (share of
        the tasks and seeds whose value is the same), no_server (share of the row's answers that name no server).

    Raises:
        StudyError: the two runs of a pair share no seed, or were asked different tasks.
    """
    found = []
    for row, about in settings.rows.items():
        entry: dict[str, Any] = {"row": row, **vars(about), "state": NOT_RUN, "metric": settings.metric}
        outputs = [Outputs.of(dataset, about.protocol, name) for name in (row, about.system)]
        if all(each.record.exists() and each.per_task.exists() for each in outputs):
            faulty, sound = (per_task.read(each.per_task) for each in outputs)
            shared = sorted(set(faulty["seed"]) & set(sound["seed"]))
            if not shared:
                said, fix = f"no seed of {row} is a seed of {about.system}", "run both with a common seed"
                raise StudyError(said, file=outputs[0].per_task, column="seed", fix=fix)
            faulty, sound = (frame[frame["seed"].isin(shared)] for frame in (faulty, sound))
            pairs = paired(faulty, sound, settings.metric)
            gap = (pairs["system"] - pairs["reference"]).to_numpy()
            low, high = bootstrap_interval(gap, seed=settings.seed, resamples=settings.resamples)
            by_seed = faulty.merge(sound, on=["task_id", "seed"], suffixes=("", "_sound"), validate="one_to_one")
            moved = by_seed[settings.metric] - by_seed[f"{settings.metric}_sound"]
            of_seed = moved.groupby(by_seed["seed"]).mean()
            entry |= {"state": RAN, "seeds": len(shared), "n": len(pairs), "without": pairs["reference"].mean()}
            entry |= {"with_bug": pairs["system"].mean(), "difference": gap.mean(), "low": low, "high": high}
            entry |= {"least": of_seed.min(), "most": of_seed.max(), "unmoved": float((moved == 0).mean())}
            entry["no_server"] = answers_of_no_server(read_record(outputs[0].record)["seeds"])
        found.append(entry)
    return pd.DataFrame(found, columns=COLUMNS).astype({"seeds": "Int64", "n": "Int64"})


def compute(config: DictConfig) -> list[Path]:
    """Write reference_bugs.csv."""
    settings, dataset = read(ReferenceBugs), str(config.dataset.name)
    return write_tables(dataset, {"reference_bugs": bug_table(dataset, settings)}, "reference_bugs", settings)
