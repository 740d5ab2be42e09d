"""Distances of tasks and servers before and after the towers (paper, Figure 6), and what they say.

A distance is 1 - cosine, in the input space (TF-IDF, eq. 4-5) and in the embedding space (eq. 6-7). That matched pairs
come closer says little by itself: a tower may bring *all* pairs closer. So every matched pair stands beside a
mismatched one, the same task with a server that it does not list.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp

from study.data.dataset import FloatArray, IntArray
from study.evaluation.multiplicity import holm
from study.evaluation.significance import (
    RESAMPLES,
    TIE_DECIMALS,
    bootstrap_interval,
    randomisation,
    rank_biserial,
    wilcoxon,
)

LEVELS = ("category", "subcategory")
# What is compared between spaces of different shape: ranks within a task, free of any scale of distance.
COMPARED = ("recall", "auc")
PER_GROUP = 2000  # draws of a randomisation test for every group: the smallest corrected p-value is 1 / PER_GROUP


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
    low, high = bootstrap_interval(reduction, seed=seed)
    beyond_low, beyond_high = bootstrap_interval(reduction - other, seed=seed)
    return {
        "n": len(part),
        "input": float(part["input"].mean()),
        "embedded": float(part["embedded"].mean()),
        "reduction": float(reduction.mean()),
        "low": low,
        "high": high,
        "effect": rank_biserial(reduction),
        "p": wilcoxon(reduction, "greater"),
        "reduction_other": float(other.mean()),
        "beyond": float((reduction - other).mean()),
        "beyond_low": beyond_low,
        "beyond_high": beyond_high,
        "beyond_effect": rank_biserial(reduction - other),
        "beyond_p": wilcoxon(reduction - other, "greater"),
        "randomisation_p": randomisation(reduction, "greater", seed=seed, resamples=draws),
        "beyond_randomisation_p": randomisation(reduction - other, "greater", seed=seed, resamples=draws),
    }


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
            rows.append(
                {
                    "plane": plane,
                    "measure": measure,
                    "n": len(exact),
                    "authors": float(theirs[measure].mean()),
                    "ours": float(own[measure].mean()),
                    "difference": float(exact.mean()),
                    "ci_low": low,
                    "ci_high": high,
                    "higher": float((rounded > 0).mean()),
                    "equal": float((rounded == 0).mean()),
                    "lower": float((rounded < 0).mean()),
                    "rank_biserial": rank_biserial(rounded),
                    "wilcoxon_p": wilcoxon(rounded, "greater"),
                    "randomisation_p": randomisation(rounded, "greater", seed=seed),
                }
            )
    table = pd.DataFrame(rows)
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
