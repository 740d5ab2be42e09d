"""Figure 6 computed from the saved model: distances, tests, 2-D points. Trains nothing."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from omegaconf import DictConfig, OmegaConf
from tqdm import tqdm

from study import paths
from study.analysis.ablation.embedding import (
    LEVELS,
    Points,
    cosine_distance,
    difference_table,
    group_tests,
    mismatched,
    per_task,
    project,
    released,
    summary,
)
from study.config.compose import plain
from study.data.dataset import Dataset, FloatArray, IntArray
from study.data.splits import Split
from study.evaluation.records import record
from study.evaluation.separation import all_distances, listed, separation
from study.files import sha256, write_csv, write_json, write_parquet
from study.recommend.saved import folder_of
from study.recommend.t2mrec import Recommender
from study.runner.inputs import load_inputs
from study.runner.processes import limit_threads
from study.t2mrec.inference import embed

RELEASED = "T2MRec/task_mcp_embedding.csv"


@dataclass(frozen=True)
class Spaces:
    """Unit vectors of all tasks and servers, in the input space and in the embedding space."""

    input: tuple[sp.csr_matrix, sp.csr_matrix]
    embedded: tuple[FloatArray, FloatArray]


def spaces(model: Recommender, data: Dataset) -> Spaces:
    """Both spaces of a saved model."""
    tasks, servers = (model.vectorizer.transform(texts) for texts in (data.task_texts(), data.server_texts()))
    return Spaces((tasks, servers), (embed(model.task_tower, tasks), model.server_embeddings))


def pair_table(found: Spaces, data: Dataset, split: Split, part: str, *, seed: int) -> pd.DataFrame:
    """Every matched pair of a part beside a mismatched one.

    Returns: columns part, task_id, server_id, shared (terms that task and server have in common), input, embedded,
        input_other, embedded_other.
    """
    relevant, tasks = split.part(part), split.tasks(part)
    places, columns = relevant[tasks].nonzero()
    rows = tasks[places]
    others = mismatched(relevant, rows, seed=seed)
    table: dict[str, Any] = {
        "part": part,
        "task_id": data.tasks["id"].to_numpy()[rows],
        "server_id": data.servers["id"].to_numpy()[columns],
        "shared": found.input[0][rows].multiply(found.input[1][columns]).getnnz(axis=1),
    }
    for suffix, chosen in (("", columns), ("_other", others)):
        for name, (left, right) in (("input", found.input), ("embedded", found.embedded)):
            table[name + suffix] = cosine_distance(left, right, rows, chosen)
    return pd.DataFrame(table)


def shown_tasks(split: Split, *, seed: int) -> dict[str, IntArray]:
    """The tasks of the 2-D panels: the test tasks, and as many training tasks, drawn by `seed`; rows ascending."""
    test = split.tasks("test")
    return {"test": test, "train": np.sort(np.random.default_rng(seed).permutation(split.tasks("train"))[: len(test)])}


def separations(
    found: Spaces, data: Dataset, split: Split, settings: dict[str, Any], cache: Path
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """How far listed servers stand out: the authors' points, ours in the plane, and ours in all dimensions.

    Returns: columns source, space, plane (whether in two dimensions), part, agreement, then `summary`; our points:
        part, space, kind, id, x, y; and `difference_table` after training, without rows where the authors' points are
        missing.
    """
    seed, parts = settings["seed"], shown_tasks(split, seed=settings["seed"])
    rows, drawn = [], []
    after: dict[tuple[str, bool], pd.DataFrame] = {}  # of the test tasks, in the embedding space

    def add(source: str, space: str, plane: bool, part: str, distance: FloatArray, agreement: float = 1.0) -> None:
        _, related = listed(split.part(part), parts[part])
        tasks = separation(distance, related, depth=settings["depth"])
        where = {"source": source, "space": space, "plane": plane, "part": part, "agreement": agreement}
        rows.append(where | summary(tasks, seed=seed))
        if (space, part) == ("embedded", "test"):
            after[source, plane] = tasks

    path = paths.raw(data.name) / RELEASED
    if path.exists():
        for space, points in released(path, split.test, parts["test"], data.servers["id"].to_numpy()).items():
            add("authors", space, True, "test", points.distance(), points.agreement)
    bar = tqdm(
        [(part, space) for part in parts for space in ("input", "embedded")],
        desc="project",
        unit="panel",
        disable=not sys.stderr.isatty(),
    )
    for part, space in bar:
        left, right = found.input if space == "input" else found.embedded
        servers, _ = listed(split.part(part), parts[part])
        tasks, partners = left[parts[part]], right[servers]
        add("ours", space, False, part, all_distances(tasks, partners))
        points = _panel(cache / f"{part}-{space}.parquet", tasks, partners, settings)
        add("ours", space, True, part, points.distance())
        for kind, ids, at in (
            ("task", data.tasks["id"].to_numpy()[parts[part]], points.tasks),
            ("server", data.servers["id"].to_numpy()[servers], points.servers),
        ):
            table = pd.DataFrame(at, columns=["x", "y"]).assign(part=part, space=space, kind=kind, id=ids)
            drawn.append(table[["part", "space", "kind", "id", "x", "y"]])
    ours = {plane: after["ours", plane] for plane in (True, False)}
    theirs = after.get(("authors", True), pd.DataFrame())
    compared = difference_table(theirs, ours if len(theirs) else {}, seed=seed)
    return pd.DataFrame(rows), pd.concat(drawn, ignore_index=True), compared


def _panel(path: Path, tasks: Any, servers: Any, settings: dict[str, Any]) -> Points:
    """Our points of one panel; a projection takes a minute, so it is kept."""
    if not path.exists():
        stacked = sp.vstack([tasks, servers], format="csr") if sp.issparse(tasks) else np.vstack([tasks, servers])
        points = project(stacked, **settings["projection"], seed=settings["seed"])
        write_parquet(path, pd.DataFrame(points, columns=["x", "y"]))
    points = pd.read_parquet(path).to_numpy()
    return Points(points[: tasks.shape[0]], points[tasks.shape[0] :])


def compute(config: DictConfig) -> list[Path]:
    """Write pairs, groups, separation, points, difference and record.json into results/<dataset>/embedding.

    Raises:
        StudyError: no saved model (`study export` makes it), or it was trained on another split.
    """
    dataset = config.dataset.name
    settings = plain(OmegaConf.load(paths.conf() / "analysis" / "embedding.yaml"))
    model_file = folder_of(dataset, "t2mrec") / "model.safetensors"
    model = Recommender.load(folder_of(dataset, "t2mrec"))
    limit_threads(config.profile.threads)
    data, split = load_inputs(config.dataset.name, config.protocol.name)
    found = spaces(model, data)
    folder = paths.results(dataset) / "embedding"
    pairs = pd.concat([pair_table(found, data, split, part, seed=settings["seed"]) for part in settings["parts"]])
    groups = pd.DataFrame({"task_id": data.tasks["id"]} | {level: data.tasks[f"{level}_clean"] for level in LEVELS})
    tests = group_tests(per_task(pairs), groups, seed=settings["seed"])
    cache = paths.cache() / "embedding" / dataset / sha256(model_file)[:16]
    compared, points, beyond = separations(found, data, split, settings, cache)
    files = {
        "pairs.csv.xz": pairs,
        "groups.csv": tests,
        "separation.csv": compared,
        "points.csv.xz": points,
        "difference.csv": beyond,
    }
    for name, table in files.items():
        write_csv(folder / name, table, decimals=4 if name.endswith(".xz") else 6)
    write_json(
        folder / "record.json",
        record(dataset=dataset, protocol=split.protocol, settings=settings, model=sha256(model_file), seed=model.seed),
    )
    return [folder / name for name in files]
