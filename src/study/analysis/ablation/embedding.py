"""Distances of tasks and servers before and after the towers (paper, Figure 6), and the authors' 2-D points.

A distance is 1 - cosine, in the input space (TF-IDF, eq. 4-5) and in the embedding space (eq. 6-7). That matched pairs
come closer says little by itself: a tower may bring *all* pairs closer. So every matched pair stands beside a
mismatched one, the same task with a server that it does not list.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from study.data.dataset import FloatArray, IntArray
from study.errors import StudyError
from study.evaluation.separation import listed
from study.evaluation.significance import (
    RESAMPLES,
    TIE_DECIMALS,
    bootstrap_interval,
    holm,
    randomisation,
    rank_biserial,
    wilcoxon,
)

LEVELS = ("category", "subcategory")
# What is compared between spaces of different shape: ranks within a task, free of any scale of distance.
COMPARED = ("recall", "auc")
PER_GROUP = 2000  # draws of a randomisation test for every group: the smallest corrected p-value is 1 / PER_GROUP
DIFFERENCE = ["plane", "measure", "n", "authors", "ours", "difference", "ci_low", "ci_high", "higher", "equal", "lower"]
DIFFERENCE += ["rank_biserial", "wilcoxon_p", "randomisation_p"]
POINTS_COLUMNS = ["panel", "x", "y", "kind"]
# The authors' names of their two panels.
PANELS = {"Input Space": "input", "Learned Shared Space": "embedded"}


def cosine_distance(
    tasks: FloatArray | sp.csr_matrix, servers: FloatArray | sp.csr_matrix, rows: IntArray, columns: IntArray
) -> FloatArray:
    """1 - cosine of the pairs (rows[i], columns[i]) of unit vectors.

    Args:
        tasks, servers: shapes (n_tasks, d) and (n_servers, d), dense or CSR, rows of length 1.
        rows, columns: shape (n_pairs,).

    Returns: shape (n_pairs,), float32.
    """
    left: Any = tasks[rows]
    right: Any = servers[columns]
    product = left.multiply(right).sum(axis=1) if sp.issparse(left) else np.einsum("ij,ij->i", left, right)
    return (1 - np.asarray(product).ravel()).astype(np.float32)


def mismatched(relevant: sp.csr_matrix, rows: IntArray, *, seed: int) -> IntArray:
    """For every task of `rows` a server that it does not list, drawn from those that any task of `rows` lists.

    Drawing from listed servers keeps what a server is listed for at all (language, popularity) out of the comparison.

    Args:
        relevant: shape (n_tasks, n_servers); the tasks' rows hold all servers listed in their part.
        rows: task rows, repeated as often as servers are wanted.

    Returns: server rows, shape (len(rows),).
    """
    pool = np.unique(relevant[np.unique(rows)].indices)
    rng = np.random.default_rng(seed)
    drawn = rng.choice(pool, len(rows))
    for _ in range(1000):
        wrong = np.flatnonzero(np.asarray(relevant[rows, drawn]).ravel() != 0)
        if not len(wrong):
            return drawn.astype(np.int64)
        drawn[wrong] = rng.choice(pool, len(wrong))
    raise ValueError("a task lists every server of its part, so none is left that it does not list")


def per_task(pairs: pd.DataFrame) -> pd.DataFrame:
    """Mean distances of every task; the pairs of one task are not independent, so tests count tasks.

    Args:
        pairs: columns part, task_id, input, embedded, input_other, embedded_other.
    """
    columns = ["input", "embedded", "input_other", "embedded_other"]
    return pairs.groupby(["part", "task_id"], sort=True)[columns].mean().reset_index()


def group_tests(tasks: pd.DataFrame, groups: pd.DataFrame, *, seed: int) -> pd.DataFrame:
    """Whether matched pairs came closer, per part and group of tasks, as the paper tests it and beyond.

    Args:
        tasks: from `per_task`.
        groups: columns task_id and the levels category and subcategory.
        seed: of the bootstrap.

    Returns: one row per level, group (``all`` first) and part: n (tasks), input and embedded (mean distances),
        reduction = input - embedded with its 95 % bootstrap interval (low, high), effect (matched-pairs rank-biserial),
        p and p_holm (paired one-sided Wilcoxon signed-rank test that distances fell; Holm over all groups and parts of
        a level); reduction_other, the same for mismatched pairs; beyond = reduction - reduction_other with beyond_low,
        beyond_high, beyond_p and beyond_p_holm, which asks whether matched pairs came closer than pairs in general.
        Beside each p-value that of the paired randomisation test, corrected in the same way: randomisation_p(_holm),
        beyond_randomisation_p(_holm).
    """
    known = tasks.merge(groups, on="task_id", validate="many_to_one")
    tables = []
    for level in ("all", *LEVELS):
        rows = []
        keys = ["part"] if level == "all" else ["part", level]
        groups_of = known.groupby(keys, sort=True)
        draws = max(RESAMPLES, PER_GROUP * groups_of.ngroups)
        for key, part in groups_of:
            name = "all" if level == "all" else str(key[1])
            rows.append({"level": level, "group": name, "part": str(key[0]), **_tested(part, seed=seed, draws=draws)})
        table = pd.DataFrame(rows)
        for column in ("p", "beyond_p", "randomisation_p", "beyond_randomisation_p"):
            table[f"{column}_holm"] = holm(table[column].to_numpy())
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def _tested(part: pd.DataFrame, *, seed: int, draws: int) -> dict[str, Any]:
    """The measures and tests of one group of tasks, see `group_tests`."""
    reduction = (part["input"] - part["embedded"]).to_numpy(np.float64)
    other = (part["input_other"] - part["embedded_other"]).to_numpy(np.float64)
    beyond, found = reduction - other, {"n": len(part), **dict(part[["input", "embedded"]].mean())}
    found["reduction"] = float(reduction.mean())
    found["low"], found["high"] = bootstrap_interval(reduction, seed=seed)
    found |= {"effect": rank_biserial(reduction), "p": wilcoxon(reduction, "greater")}
    found |= {"reduction_other": float(other.mean()), "beyond": float(beyond.mean())}
    found["beyond_low"], found["beyond_high"] = bootstrap_interval(beyond, seed=seed)
    found |= {"beyond_effect": rank_biserial(beyond), "beyond_p": wilcoxon(beyond, "greater")}
    found["randomisation_p"] = randomisation(reduction, "greater", seed=seed, resamples=draws)
    found["beyond_randomisation_p"] = randomisation(beyond, "greater", seed=seed, resamples=draws)
    return found


def difference_table(theirs: pd.DataFrame, ours: dict[bool, pd.DataFrame], *, seed: int) -> pd.DataFrame:
    """How much further the authors' points separate listed servers than ours, the same task on both sides.

    Args:
        theirs: from `separation`, of the authors' plane.
        ours: the same tasks in the same order: True -> in our plane, False -> in all dimensions.
        seed: of the bootstrap and of the randomisation test.

    Returns: one row per space of ours and measure of `COMPARED`: plane, measure, n (tasks), authors and ours (means),
        difference (authors minus ours) with its 95 % bootstrap interval, higher, equal and lower (shares of the tasks),
        rank_biserial, and one-sided p-values (greater) of Wilcoxon's signed-rank and the paired randomisation test,
        corrected by Holm over all rows.
    """
    rows = []
    for plane, own in ours.items():
        for measure in COMPARED:
            exact = theirs[measure].to_numpy(np.float64) - own[measure].to_numpy(np.float64)
            rounded = exact.round(TIE_DECIMALS)
            low, high = bootstrap_interval(exact, seed=seed)
            shares = (rounded > 0).mean(), (rounded == 0).mean(), (rounded < 0).mean()
            p_values = wilcoxon(rounded, "greater"), randomisation(rounded, "greater", seed=seed)
            means = theirs[measure].mean(), own[measure].mean(), exact.mean(), low, high
            rows.append((plane, measure, len(exact), *means, *shares, rank_biserial(rounded), *p_values))
    table = pd.DataFrame(rows, columns=DIFFERENCE)
    for test in ("wilcoxon_p", "randomisation_p"):
        table[f"{test}_holm"] = holm(table[test].to_numpy())
    return table


def summary(tasks: pd.DataFrame, *, seed: int) -> dict[str, float]:
    """Means over tasks with 95 % bootstrap intervals.

    Args:
        tasks: from `separation`.

    Returns: n, and for every column its mean, ``<column>_low`` and ``<column>_high``.
    """
    found: dict[str, float] = {"n": len(tasks)}
    for name, values in tasks.items():
        low, high = bootstrap_interval(values.to_numpy(np.float64), seed=seed)
        found |= {str(name): float(values.mean()), f"{name}_low": low, f"{name}_high": high}
    return found


@dataclass(frozen=True)
class Points:
    """Tasks and servers in the plane.

    Attributes:
        tasks: shape (n_tasks, 2), in the order asked for.
        servers: shape (n_servers, 2), the servers listed by these tasks, by row number.
        agreement: share of the released pairs whose server lies where the same server lies in other pairs.
    """

    tasks: NDArray[np.float64]
    servers: NDArray[np.float64]
    agreement: float = 1.0

    def distance(self) -> FloatArray:
        """Euclidean distances, shape (n_tasks, n_servers)."""
        return np.asarray(cdist(self.tasks, self.servers), dtype=np.float32)


def released(path: Path, relevant: sp.csr_matrix, tasks: IntArray, server_ids: IntArray) -> dict[str, Points]:
    """The authors' points, each attached to its task and server.

    The file names no task and no server, but its pairs are those of the given tasks in file order, servers by id: the
    runs of equal task points are as long as the tasks' lists, and a server lies in one place in nearly all its pairs
    (`Points.agreement`).

    Args:
        path: ``T2MRec/task_mcp_embedding.csv`` of the release: columns panel, x, y, kind; task and server alternate.
        relevant: shape (n_tasks, n_servers).
        tasks: the test tasks' rows, ascending.
        server_ids: shape (n_servers,).

    Returns: the panels ``input`` and ``embedded``.

    Raises:
        StudyError: the file is not of this form, or its pairs are not those of the tasks.
    """
    fix = "fetch the data set again"
    if not path.exists():
        raise StudyError("the authors' points are missing", file=path, fix=fix)
    frame = pd.read_csv(path)
    if list(frame.columns) != POINTS_COLUMNS or set(frame["panel"]) != set(PANELS):
        raise StudyError(f"expected the columns {POINTS_COLUMNS} and the panels {list(PANELS)}", file=path, fix=fix)
    servers, related = listed(relevant, tasks)
    by_id = np.argsort(server_ids[servers])
    place = by_id[np.nonzero(related[:, by_id])[1]]  # task by task, servers by id: the order of the pairs
    lengths = related.sum(axis=1)
    found = {}
    for panel, name in PANELS.items():
        own = frame[frame["panel"] == panel]
        left, right = own.iloc[0::2], own.iloc[1::2]
        if len(left) != len(place) or set(left["kind"]) != {"task"} or set(right["kind"]) != {"matched_mcp"}:
            raise StudyError(f"{len(left)} pairs in {panel!r}, the tasks have {len(place)}", file=path, fix=fix)
        points, partners = left[["x", "y"]].to_numpy(), right[["x", "y"]].to_numpy()
        starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        if not np.allclose(points, np.repeat(points[starts], lengths, axis=0)):
            raise StudyError("the runs of task points are not the tasks' lists", file=path, fix=fix)
        at = pd.DataFrame(partners).groupby(place).median().to_numpy()
        same = np.abs(partners - at[place]).max(axis=1) < 1e-3
        found[name] = Points(points[starts], at, float(same.mean()))
    return found


def project(
    vectors: FloatArray | sp.csr_matrix, *, perplexity: float, components: int, iterations: int, seed: int
) -> NDArray[np.float64]:
    """t-SNE into the plane (van der Maaten and Hinton 2008), sparse vectors through a truncated SVD first.

    The authors do not say how they projected; the shape of their panels is t-SNE's.

    Args:
        vectors: shape (n, d).
    """
    from sklearn.decomposition import TruncatedSVD
    from sklearn.manifold import TSNE

    dense: Any = vectors
    if sp.issparse(vectors):
        fewer = min(components, min(vectors.shape) - 1)
        dense = TruncatedSVD(fewer, random_state=seed).fit_transform(vectors)
    tsne = TSNE(2, perplexity=min(perplexity, (len(dense) - 1) / 3), max_iter=iterations, random_state=seed, n_jobs=1)
    return np.asarray(tsne.fit_transform(np.asarray(dense, dtype=np.float32)), dtype=np.float64)
