"""Near-duplicates between the test and the training part.

Labels decide which test tasks have a near-duplicate in training, so such tasks are easier even for systems that cannot
copy. The excess is a system's difference between the two groups of tasks minus that of systems that read no label; it
may have other reasons than copying.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from sklearn.feature_extraction.text import TfidfVectorizer

from study.analysis.framework import Context, Tables, analysis
from study.base import paths
from study.base.errors import StudyError
from study.config.compose import choices
from study.data.dataset import Dataset
from study.data.splits import WORD, Split
from study.evaluation.metrics import Float64Array
from study.evaluation.statistics import FEW_RESAMPLES, difference_interval, mean_interval, share_interval
from study.runner.row_store import read_per_task

Frames = dict[str, pd.DataFrame]  # system or protocol -> table of tasks
KINDS = ("same_labels", "near_labels", "same_text", "near_text", "any_near_duplicate")


@dataclass(frozen=True)
class Leakage:
    """Near-duplicates of test tasks in training."""

    protocols: list[str]
    near_labels: float
    near_text: float
    metrics: list[str]
    references: list[str]
    seed: int


def near_duplicates(data: Dataset, split: Split, *, near_labels: float, near_text: float) -> pd.DataFrame:
    """For every test task, whether training holds a near-duplicate of it: 0 or 1 for each of `KINDS`.

    label_overlap: the largest share of its test labels that one training list holds. text_similarity: the largest
    cosine of the TF-IDF of name and description. Near means at least `near_labels` or `near_text`.
    """
    test, train = split.tasks("test"), split.tasks("train")
    shared = sp.csr_matrix(split.test[test] @ split.train[train].T)
    overlap = largest_of_rows(shared) / np.diff(split.test.indptr)[test]
    asked = [frozenset(row.indices.tolist()) for row in split.test[test]]
    known_sets = {frozenset(row.indices.tolist()) for row in split.train[train]}
    texts = data.task_texts(("name", "description"))
    vectors = TfidfVectorizer(sublinear_tf=True, token_pattern=WORD).fit_transform(texts)
    similarity = largest_of_rows(sp.csr_matrix(vectors[test] @ vectors[train].T))
    known_texts = {texts[row] for row in train}
    frame = pd.DataFrame({"task_id": data.tasks["id"].to_numpy()[test], "label_overlap": overlap})
    frame = frame.assign(text_similarity=similarity, same_labels=[key in known_sets for key in asked])
    frame["near_labels"] = overlap >= near_labels - 1e-9
    frame["same_text"] = [texts[row] in known_texts for row in test]
    frame["near_text"] = similarity >= near_text - 1e-9
    frame["any_near_duplicate"] = frame[list(KINDS[:-1])].any(axis=1)
    return frame.astype(dict.fromkeys(KINDS, "int8"))


def largest_of_rows(matrix: sp.csr_matrix) -> Float64Array:
    """The largest entry of each row, 0 for an empty one."""
    return np.asarray(matrix.max(axis=1).toarray(), dtype=np.float64).ravel()


def share_table(found: Frames) -> pd.DataFrame:
    """How many test tasks have a near-duplicate: protocol, kind, tasks, n, share, ci_low, ci_high (95 %, Wilson)."""
    rows = []
    for protocol, frame in found.items():
        for kind in KINDS:
            count = int(frame[kind].sum())
            rows.append((protocol, kind, count, len(frame), *share_interval(count, len(frame))))
    return pd.DataFrame(rows, columns=["protocol", "kind", "tasks", "n", "share", "ci_low", "ci_high"])


def difference(prefix: str, first: Float64Array, second: Float64Array, seed: int) -> dict[str, float]:
    """mean(first) - mean(second) of two groups of tasks under `prefix`, with the 95 % interval over tasks under
    <prefix>_ci_low and <prefix>_ci_high; NaN where a group is empty."""
    both = len(first) > 0 and len(second) > 0
    low, high = difference_interval(first, second, seed=seed, resamples=FEW_RESAMPLES)
    return {
        prefix: float(first.mean() - second.mean()) if both else np.nan,
        f"{prefix}_ci_low": low,
        f"{prefix}_ci_high": high,
    }


def copying_table(
    scores: Frames, found: pd.DataFrame, metrics: list[str], *, seed: int, references: Sequence[str] = ()
) -> pd.DataFrame:
    """How every system's score differs between test tasks with and without a near-duplicate in training.

    One row per system, metric and kind. Every mean has _low and _high (95 %, over tasks). from_duplicates: share of the
    summed score that tasks with a near-duplicate give. lost: share of the mean that goes when only the other tasks are
    asked. excess_<name>: how much larger diff is than that of each of the `references`, systems that cannot copy, on
    the tasks that both were asked; NaN where it has not run.
    """
    flags, rows = found.set_index("task_id") == 1, []
    draws: Any = {"seed": seed, "resamples": FEW_RESAMPLES}
    for system, frame in scores.items():
        if not frame.index.isin(flags.index).all():
            said = f"{system} was scored on tasks that are not test tasks of the split"
            raise StudyError(said, column="task_id", fix="split and run again")
        for metric, kind in product(metrics, KINDS):
            values = frame[metric].dropna()
            with_, without = groups(values, flags[kind])
            every, total = values.to_numpy(np.float64), float(values.sum())
            row: dict[str, Any] = {"system": system, "metric": metric, "kind": kind, "n": len(every)}
            row |= {"n_duplicate": len(with_)} | mean_interval(every, **draws, prefix="mean_")
            for name, part in (("mean_duplicate", with_), ("mean_other", without)):
                row |= mean_interval(part, **draws, name=name, prefix=f"{name}_")
            row |= difference("diff", with_, without, seed)
            row["from_duplicates"] = float(with_.sum()) / total if total else np.nan
            row["lost"] = 1 - row["mean_other"] / row["mean"] if total else np.nan
            for name in references:
                # Without the reference's run, no task is left.
                reference = scores[name][metric] if name in scores else pd.Series(dtype=float)
                with_, without = groups((values - reference).dropna(), flags[kind])
                row |= difference(f"excess_{name}", with_, without, seed)
            rows.append(row)
    return pd.DataFrame(rows)


def groups(values: pd.Series, flag: pd.Series) -> tuple[Float64Array, Float64Array]:
    """The values of the tasks that have a flag, and of the others; both have tasks as their index."""
    has = flag.loc[values.index].to_numpy()
    every = values.to_numpy(np.float64)
    return every[has], every[~has]


def protocol_table(first: Frames, second: Frames, metrics: list[str], *, seed: int) -> pd.DataFrame:
    """Every system under two protocols with different test tasks: means and difference, 95 % intervals over tasks.

    n_first and n_second count tasks; lost = diff / first.
    """
    rows = []
    for system, metric in product(sorted(first.keys() & second.keys()), metrics):
        parts = [frame[metric].dropna().to_numpy(np.float64) for frame in (first[system], second[system])]
        row: dict[str, Any] = {"system": system, "metric": metric}
        for name, part in zip(("first", "second"), parts, strict=True):
            row |= mean_interval(part, seed=seed, resamples=FEW_RESAMPLES, name=name, prefix=f"{name}_")
            row[f"n_{name}"] = len(part)
        row |= difference("diff", parts[0], parts[1], seed)
        rows.append(row | {"lost": row["diff"] / row["first"] if parts[0].any() else np.nan})
    return pd.DataFrame(rows)


@analysis("audit", packed=("copying",))
def leakage(study: Context) -> Tables:
    """Do test tasks have near-duplicates in training, and how much of a score rests on them?

    Tables: leakage_tasks, leakage, copying and (where both protocols ran) grouped.
    """
    settings, dataset = study.settings(Leakage), study.dataset
    found, scores = Frames(), dict[str, Frames]()
    for protocol in settings.protocols:
        if (paths.splits(dataset) / f"{protocol}.parquet").exists():
            near = {"near_labels": settings.near_labels, "near_text": settings.near_text}
            found[protocol] = near_duplicates(study.data, study.split(protocol), **near)
            frames = read_per_task(dataset, protocol, sorted(choices("system")))
            # Averaged over seeds.
            scores[protocol] = {k: v.drop(columns="seed").groupby("task_id").mean() for k, v in frames.items()}
    if not found:
        fix = f"run: study split dataset={dataset}"
        raise StudyError("there is no split to look at", file=paths.splits(dataset), fix=fix)
    tasks = [frame.assign(protocol=name) for name, frame in found.items()]
    tables = {"leakage_tasks": pd.concat(tasks), "leakage": share_table(found)}
    options: dict[str, Any] = {"seed": settings.seed, "references": settings.references}
    if ran := [name for name in found if scores[name]]:
        copying = [copying_table(scores[name], found[name], settings.metrics, **options) for name in ran]
        tables["copying"] = pd.concat([table.assign(protocol=name) for name, table in zip(ran, copying, strict=True)])
    if len(found) > 1:
        a, b = settings.protocols[:2]
        compared = protocol_table(scores[a], scores[b], settings.metrics, seed=settings.seed)
        if len(compared):
            tables["grouped"] = compared.assign(first_protocol=a, second_protocol=b)
    return tables
