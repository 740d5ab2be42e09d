"""Small data sets made in memory, and the configured systems."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import scipy.sparse as sp
from omegaconf import OmegaConf

from study.config import compose as config
from study.config.registry import system_settings as settings
from study.data.dataset import SERVER_FIELDS, TASK_FIELDS, Dataset, relevance_from_lists
from study.data.splits import Split
from study.evaluation.ranking import mask_known, tie_order, top_k
from study.evaluation.system import Ranker

N_TASKS, N_SERVERS, LABELS = 40, 30, 10
# Systems that read the answers on purpose declare this family and are left out of the leak tests.
CEILING = "ceiling"
WORDS = (
    ("database", "query", "index", "storage", "record", "column", "schema", "cursor", "backup", "replica"),
    ("image", "camera", "pixel", "colour", "contrast", "shadow", "texture", "polygon", "lighting", "render"),
)


def table(rows: list[dict[str, str]], columns: tuple[str, ...]) -> pd.DataFrame:
    frame = pd.DataFrame(rows).reindex(columns=list(dict.fromkeys(["id", *columns])), fill_value="").astype(str)
    frame["id"] = np.arange(1, len(frame) + 1)
    return frame


def make_dataset(tasks: list[dict[str, str]], servers: list[dict[str, str]], lists: list[list[int]]) -> Dataset:
    """A data set from partial rows (absent fields are empty) and server row numbers per task."""
    rows = tuple(np.array(row, dtype=np.int64) for row in lists)
    return Dataset(
        "toy",
        table(servers, (*SERVER_FIELDS, "url", "official", "origin", "license", "stars_count")),
        table(tasks, (*TASK_FIELDS, "subcategory")),
        relevance_from_lists(rows, len(servers)),
        rows,
    )


def block_dataset(seed: int = 0) -> Dataset:
    """2 x 2 blocks: each half of the tasks lists servers of its half alone and shares its words."""
    rng = np.random.default_rng(seed)
    tasks, servers, lists = [], [], []
    for block, words in enumerate(WORDS):
        first = block * N_SERVERS // 2
        for _ in range(N_SERVERS // 2):
            chosen = rng.choice(words, 4, replace=False)
            servers.append({"name": chosen[0], "description": " ".join(chosen), "language": "Python"})
        for number in range(N_TASKS // 2):
            chosen = rng.choice(words, 4, replace=False)
            tasks.append(
                {
                    "name": f"{chosen[0]} {chosen[1]}",
                    "description": " ".join(chosen),
                    "language": "Python",
                    "category": ("work", "play")[number % 2],
                    "subcategory": f"sub{block}",
                    "theme": f"theme{block}{number % 3}",
                }
            )
            lists.append([int(row) for row in first + rng.choice(N_SERVERS // 2, LABELS, replace=False)])
    return make_dataset(tasks, servers, lists)


def copy_dataset(seed: int = 0) -> tuple[Dataset, Split]:
    """Tasks 20-39 repeat text, attributes and labels of tasks 0-19, and only the latter are training tasks."""
    rng = np.random.default_rng(seed)
    words = np.array([word for block in WORDS for word in block])
    tasks, lists = [], []
    for number in range(N_TASKS // 2):
        text = " ".join(rng.choice(words, 6, replace=False))
        attributes = {"language": "Go", "category": "work", "subcategory": f"s{number % 4}", "theme": f"t{number % 7}"}
        tasks.append({"name": text, "description": f"unique{number} {text}", **attributes})
        lists.append([int(row) for row in rng.choice(N_SERVERS, LABELS, replace=False)])
    servers = [{"name": f"server {word}", "description": word} for word in rng.choice(words, N_SERVERS)]
    data = make_dataset(tasks * 2, servers, lists * 2)
    part = np.arange(N_TASKS) // (N_TASKS // 2)
    split = Split("cold", rows_of(data, part == 0), rows_of(data, part == 2), rows_of(data, part == 1), cold=True)
    return data, split


def rows_of(data: Dataset, chosen: np.ndarray) -> sp.csr_matrix:
    """The relevance matrix with all other rows emptied."""
    return sp.csr_matrix(sp.diags_array(chosen.astype(np.float32)) @ data.relevance)


def ask(system: object, split: Split, part: str) -> np.ndarray:
    """Everything that a fitted system says about the tasks of `part`: scores, or ranked rows and their scores."""
    tasks = split.tasks(part)
    said = [system.score(tasks)] if hasattr(system, "score") else []
    if isinstance(system, Ranker):
        said += system.rank(tasks, 10, split.known(part))
    return np.concatenate(said, axis=1)


def scores(system: object, data: Dataset, split: Split, part: str, workdir: Path, *, seed: int = 1) -> np.ndarray:
    """Fit, then ask."""
    system.fit(data, split, seed=seed, workdir=workdir)
    return ask(system, split, part)


def top10(system: object, data: Dataset, split: Split, part: str = "test", *, seed: int = 1) -> np.ndarray:
    """The ten best servers that are not known, for each task of `part`."""
    tasks = split.tasks(part)
    known = mask_known(system.score(tasks).copy(), tasks, split.known(part))
    return top_k(known, 10, tie_order(data.n_servers, seed))[0]


def recall10(ranked: np.ndarray, split: Split, part: str = "test") -> np.ndarray:
    """Recall@10 of each task of `part`."""
    wanted = split.part(part)[split.tasks(part)]
    hits = [np.isin(row, wanted[[number]].indices).sum() for number, row in enumerate(ranked)]
    return np.array(hits) / np.diff(wanted.indptr)


def build(name: str, **model: object) -> object:
    """The system of ``conf/system/<name>.yaml`` at the smallest size, with changed constructor arguments."""
    changes = [f"system.model.{key}={value}" for key, value in model.items()]
    resolved = config.plain(config.load([f"system={name}", "profile=smoke", *changes]))
    return config.build_system(OmegaConf.create(resolved).system)


def ranked_systems() -> list[str]:
    """Every system in ``conf/system``, so that later systems join by themselves; left out are ceilings, which read the
    answers, systems that start a process per fit (``subprocess``) and those that ask a language model, which have
    tests of their own.
    """
    systems = {name: settings(name) for name in config.choices("system")}
    return [
        name
        for name, own in systems.items()
        if own.get("family") != CEILING and not own.get("subprocess", False) and "endpoint" not in own.model
    ]


def with_other_answers(data: Dataset, split: Split, parts: tuple[str, ...], seed: int = 7) -> tuple[Dataset, Split]:
    """The same training interactions, but random other servers wherever `parts` had labels (in the data set, too)."""
    rng = np.random.default_rng(seed)
    answers = {name: split.part(name).tolil() for name in ("train", "valid", "test")}
    lists = [row.copy() for row in data.lists]
    for task in range(data.n_tasks):
        for name in parts:
            old = set(split.part(name)[[task]].indices)
            places = np.flatnonzero(np.isin(lists[task], list(old)))
            free = np.setdiff1d(np.arange(data.n_servers), data.lists[task])
            free = np.setdiff1d(free, lists[task])
            lists[task][places] = rng.choice(free, len(places), replace=False)
            answers[name][task] = 0
            answers[name][task, lists[task][places]] = 1
    changed = replace(data, lists=tuple(lists), relevance=relevance_from_lists(tuple(lists), data.n_servers))
    matrices = {name: sp.csr_matrix(matrix, dtype=np.float32) for name, matrix in answers.items()}
    return changed, replace(split, **matrices)
