"""Test tasks with a near-copy in training: a task with nearly the same label list or nearly the same text.

Labels decide which test tasks have one, so such tasks are easier even for systems that cannot copy. The excess is a
system's difference between the two groups of tasks minus that of systems that read no label; it may have other reasons
than copying.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from sklearn.feature_extraction.text import TfidfVectorizer

from study.analysis.framework import Context, Tables, analysis
from study.config.compose import choices
from study.data.dataset import Dataset
from study.data.splits import WORD, Split
from study.evaluation.metrics import Float64Array
from study.evaluation.statistics import FEW_RESAMPLES, difference_interval, mean_interval, share_interval
from study.runner.row_store import read_per_task

KINDS = ("same_labels", "near_labels", "same_text", "near_text", "any_near_duplicate")


@dataclass(frozen=True)
class Leakage:
    """Near-duplicates of test tasks in training."""

    protocols: list[str]
    near_labels: float
    near_text: float
    metrics: list[str]
    reference: str
    seed: int


def near_duplicates(data: Dataset, split: Split, *, near_labels: float, near_text: float) -> pd.DataFrame:
    """For every test task, whether training holds a near-copy of it: 0 or 1 for each of `KINDS`.

    label_overlap: the largest share of its test labels that one training list holds. text_similarity: the largest
    cosine of the TF-IDF of name and description. Near means at least `near_labels` or `near_text`.
    """
    test, train = split.tasks("test"), split.tasks("train")
    overlap = largest_of_rows(split.test[test] @ split.train[train].T) / np.diff(split.test.indptr)[test]
    sets, train_sets = (
        [frozenset(row.indices.tolist()) for row in lists] for lists in (split.test[test], split.train[train])
    )
    texts = np.array(data.task_texts(("name", "description")), dtype=object)
    vectors = TfidfVectorizer(sublinear_tf=True, token_pattern=WORD).fit_transform(texts)
    similarity = largest_of_rows(vectors[test] @ vectors[train].T)
    frame = pd.DataFrame({"task_id": data.tasks["id"].to_numpy()[test], "label_overlap": overlap})
    frame = frame.assign(text_similarity=similarity, same_labels=pd.Series(sets).isin(set(train_sets)))
    frame["near_labels"] = overlap >= near_labels - 1e-9
    frame["same_text"] = np.isin(texts[test], texts[train])
    frame["near_text"] = similarity >= near_text - 1e-9
    frame["any_near_duplicate"] = frame[list(KINDS[:-1])].any(axis=1)
    return frame.astype(dict.fromkeys(KINDS, "int8"))


def largest_of_rows(matrix: sp.csr_matrix) -> Float64Array:
    """The largest entry of each row, 0 for an empty one."""
    return np.asarray(matrix.max(axis=1).toarray(), dtype=np.float64).ravel()


def share_table(near: pd.DataFrame) -> pd.DataFrame:
    """How many test tasks have a near-copy: protocol, kind, tasks, n, share, ci_low, ci_high (95 %, Wilson)."""
    rows = [
        (protocol, kind, int(flag.sum()), len(flag), *share_interval(int(flag.sum()), len(flag)))
        for protocol, frame in near.groupby("protocol", sort=False)
        for kind, flag in frame[list(KINDS)].items()
    ]
    return pd.DataFrame(rows, columns=["protocol", "kind", "tasks", "n", "share", "ci_low", "ci_high"])


def copying_table(
    scores: Mapping[str, pd.DataFrame], near: pd.DataFrame, metrics: list[str], *, seed: int, reference: str
) -> pd.DataFrame:
    """How every system's score differs between test tasks with and without a near-copy in training.

    One row per system, metric and kind. Every mean has _low and _high (95 %, over tasks). diff: the mean of the tasks
    with a near-copy minus that of the others. excess_<reference>: how much larger diff is than that of a system
    that cannot copy, on the tasks that both were asked; NaN where it has not run.
    """
    draws: Any = {"seed": seed, "resamples": FEW_RESAMPLES}
    flags, rows = near.set_index("task_id") == 1, []
    for (system, frame), metric, kind in product(scores.items(), metrics, KINDS):
        values = frame[metric].dropna()
        base = scores[reference][metric] if reference in scores else pd.Series(dtype=float)
        has, other = groups(values, flags[kind])
        row: dict[str, Any] = {"system": system, "metric": metric, "kind": kind, "n": len(values)}
        row |= {"n_duplicate": len(has)} | mean_interval(values, **draws, prefix="mean_")
        for name, part in (("mean_duplicate", has), ("mean_other", other)):
            row |= mean_interval(part, **draws, name=name, prefix=f"{name}_")
        for name, series in (("diff", values), (f"excess_{reference}", (values - base).dropna())):
            has, other = groups(series, flags[kind])
            low, high = difference_interval(has, other, **draws)
            diff = has.mean() - other.mean() if len(has) and len(other) else np.nan
            row |= {name: diff, f"{name}_ci_low": low, f"{name}_ci_high": high}
        rows.append(row)
    return pd.DataFrame(rows)


def groups(values: pd.Series, flag: pd.Series) -> tuple[Float64Array, Float64Array]:
    """The values of the tasks that have a flag, and of the others; both have tasks as their index."""
    has = flag.loc[values.index].to_numpy()
    every = values.to_numpy(np.float64)
    return every[has], every[~has]


@analysis("audit", packed=("copying",))
def leakage(study: Context) -> Tables:
    """Do test tasks have near-copies in training, and how much of a score rests on them?

    Tables: leakage_tasks, leakage and (where a system ran) copying.
    """
    settings = study.settings(Leakage)
    near, copying = [], []
    for protocol in [name for name in settings.protocols if name in study.config.dataset.protocols]:
        least = {"near_labels": settings.near_labels, "near_text": settings.near_text}
        near.append(near_duplicates(study.data, study.split(protocol), **least).assign(protocol=protocol))
        frames = read_per_task(study.dataset, protocol, sorted(choices("system")))
        scores = {name: frame.drop(columns="seed").groupby("task_id").mean() for name, frame in frames.items()}
        about: Any = {"seed": settings.seed, "reference": settings.reference}
        copying.append(copying_table(scores, near[-1], settings.metrics, **about).assign(protocol=protocol))
    tasks, copied = pd.concat(near), pd.concat(copying)
    tables = {"leakage_tasks": tasks, "leakage": share_table(tasks)}
    return tables | ({"copying": copied} if len(copied) else {})
