"""The 2-D points behind the paper's Figure 6 as the authors released them, and ours, projected in the same way."""

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

COLUMNS = ["panel", "x", "y", "kind"]
# The authors' names of their two panels.
PANELS = {"Input Space": "input", "Learned Shared Space": "embedded"}


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
    if list(frame.columns) != COLUMNS or set(frame["panel"]) != set(PANELS):
        raise StudyError(f"expected the columns {COLUMNS} and the panels {list(PANELS)}", file=path, fix=fix)
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
