"""How far the servers that a task lists stand out from other servers, by distances in any space."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from numpy.typing import NDArray

from study.base import paths
from study.base.settings import read_keys
from study.data.dataset import FloatArray, IntArray
from study.data.splits import Split
from study.evaluation.statistics import auc


def embedding_settings() -> dict[str, Any]:
    """``conf/analysis/embedding.yaml``, which explains its keys."""
    return read_keys(paths.conf() / "analysis" / "embedding.yaml", ("seed", "parts", "depth", "projection"))


def listed(relevant: sp.csr_matrix, tasks: IntArray) -> tuple[IntArray, NDArray[np.bool_]]:
    """The servers that any of the tasks lists, ascending, shape (n,), and who lists whom, shape (len(tasks), n)."""
    part = relevant[tasks]
    servers = np.unique(part.indices).astype(np.int64)
    return servers, (part[:, servers] != 0).toarray()


def all_distances(tasks: FloatArray | sp.csr_matrix, servers: FloatArray | sp.csr_matrix) -> FloatArray:
    """1 - cosine of every task and every server, both unit vectors, dense or CSR: shape (n_tasks, n_servers)."""
    product: Any = tasks @ servers.T
    return np.asarray(1 - (product.toarray() if sp.issparse(product) else product), dtype=np.float32)


def separation(distance: FloatArray, relevant: NDArray[np.bool_], *, depth: int) -> pd.DataFrame:
    """How far a task's labelled servers stand out from the others: one row per task with matched (mean distance of
    labelled servers), ratio (median distance of labelled servers over that of the others), auc (probability that a
    labelled server is nearer than another one, ties count half) and recall (share of the labelled servers among the
    `depth` nearest).

    `distance`: of tasks and servers, shape (n_tasks, n_servers). `relevant`: whether the task lists the server, same
    shape; every task lists some servers and not all.
    """
    rows = []
    for values, own in zip(distance, relevant, strict=True):
        near, far = values[own], values[~own]
        row = {"matched": near.mean(), "ratio": np.median(near) / np.median(far), "auc": auc(far, near)}
        nearest = np.argsort(values, kind="stable")[:depth]
        rows.append(row | {"recall": own[nearest].sum() / own.sum()})
    return pd.DataFrame(rows)


def mean_separation(
    tasks: FloatArray | sp.csr_matrix,
    servers: FloatArray | sp.csr_matrix,
    split: Split,
    part: str = "test",
    *,
    depth: int,
) -> dict[str, float]:
    """Means over the tasks of a part of their `separation` by 1 - cosine, among the servers that any of them lists.

    `tasks`, `servers`: unit vectors of all, shapes (n_tasks, d) and (n_servers, d), dense or CSR.
    """
    rows = split.tasks(part)
    columns, related = listed(split.part(part), rows)
    means = separation(all_distances(tasks[rows], servers[columns]), related, depth=depth).mean()
    return {str(name): float(value) for name, value in means.items()}
