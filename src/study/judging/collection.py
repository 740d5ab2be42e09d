"""The judged collection in memory, and rankings looked up in it. Built from committed files alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import scipy.sparse as sp

from study.data.dataset import IntArray
from study.errors import StudyError
from study.judging import store
from study.judging.measures import UNFILLED, UNJUDGED, GradeArray

DEPTH = 10


@dataclass(frozen=True)
class Collection:
    """Grades by topic and server.

    Attributes:
        topics: columns task_id, part, subcategory; one row per topic.
        servers: ids of the judged servers, ascending, shape (n_servers,).
        grades: final grades, shape (n_topics, n_servers), `UNJUDGED` where nobody read the pair.
        readings: first and second grades, shape (2, n_topics, n_servers).
    """

    topics: pd.DataFrame
    servers: IntArray
    grades: GradeArray
    readings: GradeArray

    @classmethod
    def of(cls, topics: pd.DataFrame, judgements: pd.DataFrame) -> Collection:
        """Lay out the rows of ``judgements.csv``, which all have a final grade."""
        row = pd.Index(topics["task_id"]).get_indexer(pd.Index(judgements["task_id"]))
        if (row < 0).any():
            raise StudyError("a judged task is not a topic", row=int((row < 0).argmax()), column="task_id")
        servers, column = np.unique(judgements["server_id"].to_numpy(np.int64), return_inverse=True)
        laid = np.full((3, len(topics), len(servers)), UNJUDGED, dtype=np.int8)
        for layer, name in enumerate(("final", "grade_1", "grade_2")):
            laid[layer, row, column] = judgements[name].to_numpy(np.int8)
        return cls(topics.reset_index(drop=True), servers, laid[0], laid[1:])

    @classmethod
    def load(cls, dataset: str) -> Collection:
        """Read the committed collection of a data set."""
        return cls.of(store.read(dataset, "topics"), store.final(dataset))

    def part(self, name: str) -> Collection:
        """The topics of one part (valid or test)."""
        kept = (self.topics["part"] == name).to_numpy()
        return Collection(
            self.topics[kept].reset_index(drop=True), self.servers, self.grades[kept], self.readings[:, kept]
        )

    def relevant(self, rows: IntArray) -> sp.csr_matrix:
        """Gains for `study.evaluation.metrics`, shape (len(rows), n_servers + DEPTH).

        The last columns stand for unjudged servers, see `look_up`.
        """
        return sp.csr_matrix(np.pad(np.maximum(self.grades[rows], 0), ((0, 0), (0, DEPTH))).astype(np.float32))

    def look_up(self, run: pd.DataFrame) -> tuple[IntArray, IntArray, GradeArray]:
        """A run (task_id, rank, server_id; one seed) as rows of topics, ranked columns, and the grades of the places.

        Gaps in the ranks close. Servers that nobody judged for any topic get columns behind those of the judged ones.

        Returns: topic rows (b,), ranked columns (b, DEPTH) with -1 where unfilled, and grades (b, DEPTH).
        """
        kept = run[run["task_id"].isin(self.topics["task_id"])].sort_values(["task_id", "rank"])
        place = kept.groupby("task_id").cumcount().to_numpy()
        kept, place = kept[place < DEPTH], place[place < DEPTH]
        topic = pd.Index(self.topics["task_id"]).get_indexer(pd.Index(kept["task_id"]))
        rows, line = np.unique(topic, return_inverse=True)
        column = pd.Index(self.servers).get_indexer(pd.Index(kept["server_id"]))
        ranked = np.full((len(rows), DEPTH), -1, dtype=np.int64)
        ranked[line, place] = np.where(column >= 0, column, len(self.servers) + place)
        padded = np.pad(self.grades, ((0, 0), (0, DEPTH)), constant_values=UNJUDGED)
        found = padded[rows[:, None], ranked]
        return rows.astype(np.int64), ranked, np.where(ranked >= 0, found, UNFILLED).astype(np.int8)
