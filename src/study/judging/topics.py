"""Which tasks are judged: drawn by seed from the parts of the authors' split, evenly over the subcategories."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from study import paths
from study.data import dataset as datasets
from study.data import split_files
from study.data.splits import PARTS, Split
from study.errors import StudyError
from study.files import write_csv
from study.judging import settings, store


def allocate(available: dict[str, int], total: int, rng: np.random.Generator) -> dict[str, int]:
    """How many topics each stratum gives: as equal as supply allows, the remainder to random strata.

    Args:
        available: tasks per stratum.

    Raises:
        StudyError: fewer tasks than topics.
    """
    if sum(available.values()) < total:
        raise StudyError(
            f"{total} topics asked for, the part has {sum(available.values())} tasks",
            file=paths.conf() / "judging" / "topics.yaml",
            fix="ask for fewer topics",
        )
    given = dict.fromkeys(sorted(available), 0)
    while (left := total - sum(given.values())) > 0:
        open_strata = [name for name, count in given.items() if count < available[name]]
        fewest = min(given[name] for name in open_strata)
        lowest = [name for name in open_strata if given[name] == fewest]
        for place in rng.permutation(len(lowest))[:left]:
            given[lowest[place]] += 1
    return given


def draw(data: datasets.Dataset, split: Split, *, parts: dict[str, int], seed: int) -> pd.DataFrame:
    """Draw topics from each part, stratified by subcategory; each part has a random stream of its own.

    Returns: columns task_id, part, subcategory, ordered by part and task_id.
    """
    rows = []
    for part, total in parts.items():
        rng = np.random.default_rng([seed, PARTS[part]])
        tasks = data.tasks.iloc[split.tasks(part)]
        strata = {str(name): group["id"].to_numpy() for name, group in tasks.groupby("subcategory_clean")}
        for name, count in allocate({name: len(ids) for name, ids in strata.items()}, total, rng).items():
            rows += [(int(task), part, name) for task in rng.choice(strata[name], count, replace=False)]
    table = pd.DataFrame(rows, columns=store.COLUMNS["topics"])
    return table.sort_values(["part", "task_id"], ascending=[False, True], ignore_index=True)


def load_split(dataset: str) -> tuple[datasets.Dataset, Split]:
    """The prepared data set and the split that the topics come from."""
    data = datasets.load(dataset)
    protocol = settings.read(settings.Topics).protocol
    return data, split_files.load(paths.splits(dataset) / f"{protocol}.parquet", data)


def make(dataset: str) -> Path:
    """Draw the topics of a data set and write ``topics.csv``; the same settings give the same file.

    Raises:
        StudyError: pairs were judged for other topics.
    """
    chosen = settings.read(settings.Topics)
    table = draw(*load_split(dataset), parts=chosen.parts, seed=chosen.seed)
    judged = set(store.read_if_there(dataset, "judgements")["task_id"])
    if judged - set(table["task_id"]):
        raise StudyError(
            "pairs of topics outside this draw were judged",
            file=store.file(dataset, "topics"),
            fix="undo the change of conf/judging/topics.yaml",
        )
    write_csv(store.file(dataset, "topics"), table)
    return store.file(dataset, "topics")
