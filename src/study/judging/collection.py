"""The judged collection in memory, rankings looked up in it, and measures that know about unjudged servers.

``grades`` of a ranking holds the grade of each rank, best first, shape (b, k): 0, 1 or 2, `UNJUDGED` where no judge
graded the server, `UNFILLED` where the system named none. NDCG and MRR are those of `study.evaluation.metrics`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd
import scipy.sparse as sp
from numpy.typing import NDArray

from study.base.errors import StudyError, UnavailableError
from study.base.files import sha256
from study.data.dataset import IntArray
from study.evaluation import metrics
from study.judging import store

DEPTH = 10
UNJUDGED, UNFILLED = -1, -2
Float64Array = NDArray[np.float64]
GradeArray = NDArray[np.int8]


@dataclass(frozen=True)
class Collection:
    """Grades by topic and server, with the committed tables that they come from.

    Attributes:
        topics: columns task_id, part, subcategory; one row per topic.
        judgements: columns task_id, server_id, grade_1, grade_2, final, ...; one row per judged pair of a topic.
        servers: ids of the judged servers, ascending, shape (n_servers,).
        grades: final grades, shape (n_topics, n_servers), `UNJUDGED` where nobody read the pair.
        passes: first and second grades, shape (2, n_topics, n_servers).
        dataset: whose committed tables `table` and `runs` read.
    """

    topics: pd.DataFrame
    judgements: pd.DataFrame
    servers: IntArray
    grades: GradeArray
    passes: GradeArray
    dataset: str = ""

    @classmethod
    def of(cls, topics: pd.DataFrame, judgements: pd.DataFrame, dataset: str = "") -> Collection:
        """Lay out the rows of ``judgements.csv``, which all have a final grade."""
        row = pd.Index(topics["task_id"]).get_indexer(pd.Index(judgements["task_id"]))
        if (row < 0).any():
            raise StudyError("a judged task is not a topic", row=int((row < 0).argmax()), column="task_id")
        servers, column = np.unique(judgements["server_id"].to_numpy(np.int64), return_inverse=True)
        grades = np.full((3, len(topics), len(servers)), UNJUDGED, dtype=np.int8)
        for layer, name in enumerate(("final", "grade_1", "grade_2")):
            grades[layer, row, column] = judgements[name].to_numpy(np.int8)
        return cls(topics.reset_index(drop=True), judgements, servers, grades[0], grades[1:], dataset)

    @classmethod
    def load(cls, dataset: str) -> Collection:
        """Read the committed collection of a data set. Raises UnavailableError: it has none."""
        if not store.file(dataset, "topics").exists():
            fix = "take it from git; docs/judged-card.md says how one is made"
            raise UnavailableError(f"{dataset} has no judged collection", file=store.folder(dataset), fix=fix)
        return cls.of(store.read_table(dataset, "topics"), store.final(dataset), dataset)

    def table(self, name: str) -> pd.DataFrame:
        """Another committed table of `store.COLUMNS`; an absent one is empty."""
        return store.read_table_if_there(self.dataset, name)

    @cached_property
    def runs(self) -> dict[str, pd.DataFrame]:
        """The pooled runs by system, columns `store.RUN`."""
        return store.read_runs(self.dataset)

    def part(self, name: str) -> Collection:
        """The topics of one part (valid or test)."""
        chosen = (self.topics["part"] == name).to_numpy()
        topics = self.topics[chosen].reset_index(drop=True)
        judgements = self.judgements[self.judgements["task_id"].isin(topics["task_id"])]
        passes = self.passes[:, chosen]
        return replace(self, topics=topics, judgements=judgements, grades=self.grades[chosen], passes=passes)

    def regraded(self, grades: pd.DataFrame) -> Collection:
        """The same pairs with other final grades (columns task_id, server_id, grade); one without counts as 0."""
        rows = self.judgements.drop(columns="final").merge(grades[[*store.PAIR, "grade"]], on=store.PAIR, how="left")
        return Collection.of(self.topics, rows.assign(final=rows.pop("grade").fillna(0)), self.dataset)

    @cached_property
    def version(self) -> str:
        """Its rounds, and the start of the hash of its grades, such as ``1.6.0+3fa9c2d1``. Every further judgement
        changes it; scores of two versions are not comparable."""
        rounds = int(self.judgements["round"].max())
        return f"1.{rounds - 1}.0+{sha256(store.file(self.dataset, 'judgements'))[:8]}"

    @cached_property
    def gains(self) -> sp.csr_matrix:
        """Gains for `study.evaluation.metrics`, shape (n_topics, n_servers + DEPTH). The last columns stand for
        unjudged servers, see `look_up`."""
        return sp.csr_matrix(np.pad(np.maximum(self.grades, 0), ((0, 0), (0, DEPTH))).astype(np.float32))

    def ndcg(self, run: pd.DataFrame) -> pd.Series:
        """NDCG@10 of a run by task_id, averaged over seeds; NaN for topics without a useful server."""
        ids, values = self.topics["task_id"].to_numpy(), []
        for _, of_seed in run.groupby("seed"):
            rows, ranked, _ = self.look_up(of_seed)
            values.append(pd.Series(metrics.ndcg(ranked, self.gains[rows], DEPTH, graded=True), index=ids[rows]))
        return pd.concat(values).groupby(level=0).mean()

    def look_up(self, run: pd.DataFrame) -> tuple[IntArray, IntArray, GradeArray]:
        """A run (task_id, rank, server_id; one seed) as rows of topics, ranked columns, and the grades of the places.

        Gaps in the ranks close. Servers that nobody judged for any topic get columns behind those of the judged ones.

        Returns: topic rows (b,), ranked columns (b, DEPTH) with -1 where unfilled, and grades (b, DEPTH).
        """
        ranked_rows = run[run["task_id"].isin(self.topics["task_id"])].sort_values(["task_id", "rank"])
        rank = ranked_rows.groupby("task_id").cumcount().to_numpy()
        ranked_rows, rank = ranked_rows[rank < DEPTH], rank[rank < DEPTH]
        topic = pd.Index(self.topics["task_id"]).get_indexer(pd.Index(ranked_rows["task_id"]))
        rows, line = np.unique(topic, return_inverse=True)
        column = pd.Index(self.servers).get_indexer(pd.Index(ranked_rows["server_id"]))
        ranked = np.full((len(rows), DEPTH), -1, dtype=np.int64)
        ranked[line, rank] = np.where(column >= 0, column, len(self.servers) + rank)
        padded = np.pad(self.grades, ((0, 0), (0, DEPTH)), constant_values=UNJUDGED)
        grades = padded[rows[:, None], ranked]
        return rows.astype(np.int64), ranked, np.where(ranked >= 0, grades, UNFILLED).astype(np.int8)


def precision(grades: GradeArray, k: int, *, least: int) -> Float64Array:
    """The share of the first k ranks with a grade of at least `least`, shape (b,); 0 where the pool has none."""
    return np.asarray((grades[:, :k] >= least).sum(axis=1) / k)


def unjudged(grades: GradeArray, k: int) -> Float64Array:
    """The share of the filled ranks among the first k that nobody judged, shape (b,); 0 where none is filled."""
    filled = (grades[:, :k] != UNFILLED).sum(axis=1)
    return np.asarray((grades[:, :k] == UNJUDGED).sum(axis=1) / np.maximum(filled, 1))


def bpref(grades: GradeArray, n_useful: NDArray[np.int64], n_useless: NDArray[np.int64]) -> Float64Array:
    """Preference for useful over useless servers among the judged ones (Buckley and Voorhees 2004; as in trec_eval).

    The mean over the R useful servers of 1 - min(useless ones above it, R) / min(R, N), useful servers that are not
    ranked counting 0. Unjudged servers are skipped, so that being unjudged costs nothing.

    `n_useful`, `n_useless`: R and N, judged servers of the topic with a grade of at least 1, and of 0; shape (b,).
    Returns: shape (b,), NaN where R is 0.
    """
    useful, useless = grades >= 1, grades == 0
    above = np.minimum(useless.cumsum(axis=1), n_useful[:, None])
    bound = np.minimum(n_useful, n_useless)[:, None]
    penalty = np.zeros(grades.shape)
    np.divide(above, bound, out=penalty, where=(above > 0) & (bound > 0))
    gained = ((1 - penalty) * useful).sum(axis=1)
    result = np.full(len(grades), np.nan)
    np.divide(gained, n_useful, out=result, where=n_useful > 0)
    return result


def rbp(grades: GradeArray, p: float) -> tuple[Float64Array, Float64Array]:
    """Rank-biased precision with its residual (Moffat and Zobel 2008); a grade of at least 1 counts.

    A reader looks at the next rank with probability p. The value is a lower bound; value + residual is what it would
    be if every unjudged rank, and every rank below the last one, were useful. Unfilled ranks are useless.

    Returns: value and residual, both of shape (b,).
    """
    weight = (1 - p) * p ** np.arange(grades.shape[1])
    value = (grades >= 1) @ weight
    residual = (grades == UNJUDGED) @ weight + p ** grades.shape[1]
    return np.asarray(value), np.asarray(residual)
