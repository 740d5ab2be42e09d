"""Distances of tasks and servers before and after the towers (paper, Figure 6), and the authors' 2-D points.

A distance is 1 - cosine, in the input space (TF-IDF, eq. 4-5) and in the embedding space (eq. 6-7). A tower may bring
*all* pairs closer, so every matched pair stands beside a mismatched one of the same task.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from study.advisor.retrieval.towers import embed
from study.advisor.saved.saved import folder_of
from study.advisor.saved.t2mrec import Recommender
from study.analysis.framework import Context, Tables, analysis
from study.base import paths
from study.base.errors import StudyError, UnavailableError
from study.base.files import read_csv, sha256
from study.data.dataset import Dataset, FloatArray, IntArray
from study.data.splits import Split
from study.evaluation import statistics
from study.evaluation.records import read_record
from study.evaluation.separation import all_distances, embedding_settings, listed, separation
from study.runner.processes import limit_threads
from study.search.export import export, model_key

RELEASED = "T2MRec/task_mcp_embedding.csv"
LEVELS = ("category", "subcategory")
# What is compared between spaces of different shape: ranks within a task, free of any scale of distance.
COMPARED = ("recall", "auc")
PER_GROUP = 2000  # draws of a randomisation test for every group: the smallest corrected p-value is 1 / PER_GROUP
DIFFERENCE = ["plane", "measure", "n", "authors", "ours", "diff", "diff_ci_low", "diff_ci_high"]
DIFFERENCE += ["higher", "equal", "lower", "rank_biserial", "wilcoxon_p", "randomisation_p"]
POINTS_COLUMNS = ["panel", "x", "y", "kind"]
# The authors' names of their two panels.
PANELS = {"Input Space": "input", "Learned Shared Space": "embedded"}
# Space -> unit vectors of all tasks and of all servers, shapes (n_tasks, d) and (n_servers, d), dense or CSR.
Spaces = dict[str, tuple[Any, Any]]


def spaces(model: Recommender, data: Dataset) -> Spaces:
    """The input space and the embedding space of a saved model."""
    parts = [model.vectorizer.transform(texts) for texts in (data.task_texts(), data.server_texts())]
    tasks, servers = (sp.csr_matrix((part.data, (part.rows, part.indices)), (part.n, part.width)) for part in parts)
    return {"input": (tasks, servers), "embedded": (embed(model.task_tower, tasks), model.server_embeddings)}


def cosine_distance(tasks: Any, servers: Any, rows: IntArray, columns: IntArray) -> FloatArray:
    """1 - cosine of the pairs (rows[i], columns[i]) of unit vectors, dense or CSR; shape (n_pairs,), float32."""
    left, right = tasks[rows], servers[columns]
    product = left.multiply(right).sum(axis=1) if sp.issparse(left) else np.einsum("ij,ij->i", left, right)
    return (1 - np.asarray(product).ravel()).astype(np.float32)


def sample_mismatched(relevant: sp.csr_matrix, rows: IntArray, *, seed: int) -> IntArray:
    """For every task of `rows` a server that it does not list, sampled from those that any task of `rows` lists.

    So what a server is listed for at all (language, popularity) stays out of the comparison. `relevant` holds all
    servers listed in the part.
    """
    pool = np.unique(relevant[np.unique(rows)].indices)
    rng = np.random.default_rng(seed)
    sampled = rng.choice(pool, len(rows))
    for _ in range(1000):
        wrong = np.flatnonzero(np.asarray(relevant[rows, sampled]).ravel())
        if not len(wrong):
            return sampled.astype(np.int64)
        sampled[wrong] = rng.choice(pool, len(wrong))
    raise ValueError("a task lists every server of its part, so none is left that it does not list")


def pair_table(vectors: Spaces, data: Dataset, split: Split, part: str, *, seed: int) -> pd.DataFrame:
    """Every matched pair of a part with its distances and the number of shared terms, beside a mismatched one."""
    relevant, tasks = split.part(part), split.tasks(part)
    places, columns = relevant[tasks].nonzero()
    rows = tasks[places]
    task_ids, server_ids = data.tasks["id"].to_numpy()[rows], data.servers["id"].to_numpy()[columns]
    shared = vectors["input"][0][rows].multiply(vectors["input"][1][columns]).getnnz(axis=1)
    table = pd.DataFrame({"part": part, "task_id": task_ids, "server_id": server_ids, "shared": shared})
    for suffix, chosen in (("", columns), ("_other", sample_mismatched(relevant, rows, seed=seed))):
        for name, (left, right) in vectors.items():
            table[name + suffix] = cosine_distance(left, right, rows, chosen)
    return table


def per_task(pairs: pd.DataFrame) -> pd.DataFrame:
    """Mean distances of every task; the pairs of one task are not independent, so tests count tasks."""
    columns = ["input", "embedded", "input_other", "embedded_other"]
    return pairs.groupby(["part", "task_id"], sort=True)[columns].mean().reset_index()


def group_tests(tasks: pd.DataFrame, groups: pd.DataFrame, *, seed: int) -> pd.DataFrame:
    """Whether matched pairs came closer, per part and group of tasks, as the paper tests it and beyond.

    `tasks` is from `per_task`, `groups` has the columns task_id and `LEVELS`. reduction = input - embedded with its
    95 % bootstrap interval; p: paired one-sided Wilcoxon test that distances fell, and randomisation_p beside it, each
    with _holm over the groups and parts of a level. beyond = reduction - reduction_other asks whether matched pairs
    came closer than mismatched ones.
    """
    both, tables = tasks.merge(groups, on="task_id", validate="many_to_one").assign(all="all"), []
    for level in ("all", *LEVELS):
        members = both.groupby(["part", level], sort=True)
        draws = max(statistics.RESAMPLES, PER_GROUP * members.ngroups)
        rows = [
            {"level": level, "group": str(group), "part": str(part), **_test_group(frame, seed=seed, draws=draws)}
            for (part, group), frame in members
        ]
        table = pd.DataFrame(rows)
        for column in ("p", "beyond_p", "randomisation_p", "beyond_randomisation_p"):
            table[f"{column}_holm"] = statistics.holm(table[column].to_numpy())
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def _test_group(part: pd.DataFrame, *, seed: int, draws: int) -> dict[str, Any]:
    """The measures and tests of one group of tasks, see `group_tests`."""
    reduction = (part["input"] - part["embedded"]).to_numpy(np.float64)
    other = (part["input_other"] - part["embedded_other"]).to_numpy(np.float64)
    row, last = {"n": len(part), **part[["input", "embedded"]].mean()}, {}
    for prefix, name, values in (("", "reduction", reduction), ("beyond_", "beyond", reduction - other)):
        row |= statistics.mean_interval(values, seed=seed, name=name, prefix=prefix)
        row[f"{prefix}effect"] = statistics.rank_biserial(values)
        row[f"{prefix}p"] = statistics.wilcoxon(values, "greater")
        row |= {} if prefix else {"reduction_other": float(other.mean())}
        p = statistics.randomisation(values, "greater", seed=seed, resamples=draws)
        last[f"{prefix}randomisation_p"] = p
    return row | last


def difference_table(theirs: pd.DataFrame, ours: dict[bool, pd.DataFrame], *, seed: int) -> pd.DataFrame:
    """How much further the authors' points separate labelled servers than ours, the same task on both sides.

    `theirs` and `ours` (True: in our plane, False: in all dimensions) are `separation` of the same tasks. diff =
    authors - ours; higher, equal and lower are shares of the tasks; p-values are one-sided (greater), with _holm over
    all rows.
    """
    rows = []
    for (plane, our_values), measure in product(ours.items(), COMPARED):
        exact = theirs[measure].to_numpy(np.float64) - our_values[measure].to_numpy(np.float64)
        rounded = exact.round(statistics.TIE_DECIMALS)
        low, high = statistics.bootstrap_interval(exact, seed=seed)
        shares = (rounded > 0).mean(), (rounded == 0).mean(), (rounded < 0).mean()
        by_ranks = statistics.rank_biserial(rounded), statistics.wilcoxon(rounded, "greater")
        p = statistics.randomisation(rounded, "greater", seed=seed)
        means = theirs[measure].mean(), our_values[measure].mean(), exact.mean(), low, high
        rows.append((plane, measure, len(exact), *means, *shares, *by_ranks, p))
    table = pd.DataFrame(rows, columns=DIFFERENCE)
    for test in ("wilcoxon_p", "randomisation_p"):
        table[f"{test}_holm"] = statistics.holm(table[test].to_numpy())
    return table


def summary(tasks: pd.DataFrame, *, seed: int) -> dict[str, float]:
    """n, and the mean of every column of `separation` over tasks with _ci_low and _ci_high (95 %, bootstrap)."""
    means: dict[str, float] = {"n": len(tasks)}
    for name, values in tasks.items():
        means |= statistics.mean_interval(values, seed=seed, name=str(name), prefix=f"{name}_")
    return means


@dataclass(frozen=True)
class Points:
    """Tasks and the servers that they list in the plane."""

    tasks: NDArray[np.float64]  # shape (n_tasks, 2), in the order asked for
    servers: NDArray[np.float64]  # shape (n_servers, 2), by row number
    agreement: float = 1.0  # share of the released pairs whose server lies where it lies in other pairs

    def distance(self) -> FloatArray:
        """Euclidean distances, shape (n_tasks, n_servers)."""
        return np.asarray(cdist(self.tasks, self.servers), dtype=np.float32)


def released(path: Path, relevant: sp.csr_matrix, tasks: IntArray, server_ids: IntArray) -> dict[str, Points]:
    """The authors' points, each attached to its task and server: the panels ``input`` and ``embedded``.

    The file names no task and no server, but task and server alternate, and its pairs are those of the given test tasks
    (rows, ascending), servers by id: the runs of equal task points are as long as the tasks' lists, and a server lies
    in one place in nearly all its pairs (`Points.agreement`). A file of another form is a `StudyError`.
    """
    fix = "fetch the data set again"
    frame = read_csv(path, fix=fix)
    if list(frame.columns) != POINTS_COLUMNS or set(frame["panel"]) != set(PANELS):
        raise StudyError(f"expected the columns {POINTS_COLUMNS} and the panels {list(PANELS)}", file=path, fix=fix)
    servers, related = listed(relevant, tasks)
    by_id = np.argsort(server_ids[servers])
    pair_servers = by_id[np.nonzero(related[:, by_id])[1]]  # task by task, servers by id: the order of the pairs
    lengths = related.sum(axis=1)
    starts, panels = np.cumsum(lengths) - lengths, {}
    for panel, name in PANELS.items():
        rows = frame[frame["panel"] == panel]
        left, right = rows.iloc[0::2], rows.iloc[1::2]
        if len(left) != len(pair_servers) or set(left["kind"]) != {"task"} or set(right["kind"]) != {"matched_mcp"}:
            raise StudyError(f"{len(left)} pairs in {panel!r}, the tasks have {len(pair_servers)}", file=path, fix=fix)
        points, partners = left[["x", "y"]].to_numpy(), right[["x", "y"]].to_numpy()
        if not np.allclose(points, np.repeat(points[starts], lengths, axis=0)):
            raise StudyError("the runs of task points are not the tasks' lists", file=path, fix=fix)
        at = pd.DataFrame(partners).groupby(pair_servers).median().to_numpy()
        same = np.abs(partners - at[pair_servers]).max(axis=1) < 1e-3
        panels[name] = Points(points[starts], at, float(same.mean()))
    return panels


def project(vectors: Any, *, perplexity: float, components: int, iterations: int, seed: int) -> NDArray[np.float64]:
    """t-SNE into the plane (van der Maaten and Hinton 2008), sparse vectors through a truncated SVD first. The authors
    do not say how they projected; the shape of their panels is t-SNE's. Vectors have the shape (n, d)."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.manifold import TSNE

    if sp.issparse(vectors):
        vectors = TruncatedSVD(min(components, min(vectors.shape) - 1), random_state=seed).fit_transform(vectors)
    near = min(perplexity, (len(vectors) - 1) / 3)
    tsne = TSNE(2, perplexity=near, max_iter=iterations, random_state=seed, n_jobs=1)
    return np.asarray(tsne.fit_transform(np.asarray(vectors, dtype=np.float32)), dtype=np.float64)


def separations(
    vectors: Spaces, data: Dataset, split: Split, settings: dict[str, Any]
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """How far labelled servers stand out: the authors' points, ours in the plane, and ours in all dimensions.

    Of the test tasks and as many training tasks. Returns `summary` of each, our points, and `difference_table` after
    training, without rows where the authors' points are missing.
    """
    seed, test = settings["seed"], split.tasks("test")
    sampled = np.random.default_rng(seed).permutation(split.tasks("train"))[: len(test)]
    parts, keys = {"test": test, "train": np.sort(sampled)}, ("source", "space", "plane", "part")
    task_ids, server_ids = data.tasks["id"].to_numpy(), data.servers["id"].to_numpy()
    rows, points = [], []
    tables: dict[tuple[str, str, bool, str], pd.DataFrame] = {}

    def measure(*key: Any, distance: FloatArray, agreement: float = 1.0) -> None:
        _, related = listed(split.part(key[-1]), parts[key[-1]])
        tables[key] = separation(distance, related, depth=settings["depth"])
        row = dict(zip(keys, key, strict=True)) | {"agreement": agreement}
        rows.append(row | summary(tables[key], seed=seed))

    if (path := paths.raw(data.name) / RELEASED).exists():
        for space, theirs in released(path, split.test, test, server_ids).items():
            measure("authors", space, True, "test", distance=theirs.distance(), agreement=theirs.agreement)
    for part, space in product(parts, vectors):
        servers, _ = listed(split.part(part), parts[part])
        tasks, partners = vectors[space][0][parts[part]], vectors[space][1][servers]
        measure("ours", space, False, part, distance=all_distances(tasks, partners))
        stacked = sp.vstack([tasks, partners], format="csr") if sp.issparse(tasks) else np.vstack([tasks, partners])
        places = project(stacked, **settings["projection"], seed=seed)
        plane = Points(places[: tasks.shape[0]], places[tasks.shape[0] :])
        measure("ours", space, True, part, distance=plane.distance())
        sides = {"task": (task_ids[parts[part]], plane.tasks), "server": (server_ids[servers], plane.servers)}
        for kind, (ids, at) in sides.items():
            about = {"part": part, "space": space, "kind": kind, "id": ids, "x": at[:, 0], "y": at[:, 1]}
            points.append(pd.DataFrame(about))
    ours = {plane: tables["ours", "embedded", plane, "test"] for plane in (True, False)}
    published = tables.get(("authors", "embedded", True, "test"), pd.DataFrame())
    difference = difference_table(published, {} if published.empty else ours, seed=seed)
    return pd.DataFrame(rows), pd.concat(points, ignore_index=True), difference


def four_digits(table: pd.DataFrame) -> pd.DataFrame:
    """The table with its numbers in four significant digits."""
    kind: Any = "floating"
    return table.assign(**table.select_dtypes(kind).map(lambda value: float(f"{value:.4g}")))


def _saved_model(study: Context) -> Path:
    """The folder of the saved T2MRec of today's settings and data, trained where it is missing.

    Raises UnavailableError: it is missing, and the tables that are there were made of the same training.
    """
    key, folder = model_key(study.config), folder_of(study.dataset, "t2mrec")
    table_record, saved = (
        read_record(path) if path.exists() else {} for path in (study.folder / "distances.json", folder / "record.json")
    )
    # The same training on another processor ends in other last digits, and is no reason for other tables.
    same = saved.get("key") == key and sha256(folder / "model.safetensors") == table_record.get("model")
    if table_record.get("trained") == key and not same:
        fix = f"to compute them again, first: study export dataset={study.dataset}, and remove distances.json"
        raise UnavailableError("the model that they were made of is not saved here", file=folder, fix=fix)
    study.facts["trained"] = key
    return export(study.config)


@analysis("embedding", packed=("pairs", "points"))
def distances(study: Context) -> Tables:
    """Do labelled servers come closer to their tasks by training (Figure 6), and closer than other servers?"""
    folder, settings = _saved_model(study), embedding_settings()
    model, seed = Recommender.load(folder), settings["seed"]
    limit_threads(study.config.profile.threads)
    data, split = study.data, study.split(study.config.protocol.name)
    vectors = spaces(model, data)
    pairs = pd.concat([pair_table(vectors, data, split, part, seed=seed) for part in settings["parts"]])
    groups = pd.DataFrame({"task_id": data.tasks["id"]} | {level: data.tasks[f"{level}_clean"] for level in LEVELS})
    table, points, difference = separations(vectors, data, split, settings)
    about = {"protocol": split.protocol, "settings": settings, "model": sha256(folder / "model.safetensors")}
    study.facts.update(about, seed=model.seed)
    tables = {"pairs": four_digits(pairs), "groups": group_tests(per_task(pairs), groups, seed=seed)}
    return tables | {"separation": table, "points": four_digits(points), "difference": difference}
