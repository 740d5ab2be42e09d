"""Another opinion of a saved model's first servers: `study recommend --rerank llm` asks a language model for grades,
`--rerank distilled` a small model that learned them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pandas as pd
from tqdm import tqdm

from study.advisor.arrays import FloatArray
from study.advisor.encoders.sentence import DIMENSION
from study.advisor.llm import grades
from study.advisor.llm.client import Client
from study.advisor.llm.settings import connect
from study.advisor.saved.contract import Recommendation, SavedModel, rounded
from study.base.errors import StudyError

if TYPE_CHECKING:
    from study.advisor.saved.field_dense import SavedFieldDense
    from study.advisor.saved.student import Student

DEPTH = 20  # servers that are graded
LONGEST = 400  # characters of a server's description and of the request that a language model reads


@dataclass
class Grader:
    """Grades servers one by one."""

    # Of a grade beside the score: the best on the validation topics (usefulness/graded.csv).
    weight: ClassVar[float] = 8.0
    part: ClassVar[str] = "language model"  # what the grade's part of a score is called
    client: Client  # of an endpoint that gives log probabilities
    model: str  # its name there; without meaning for a local model

    @classmethod
    def configured(cls) -> Grader:
        """The model of `study.advisor.llm.settings.connect`; nothing is recorded."""
        return cls(*connect())

    @property
    def named(self) -> str:
        """The models that answered."""
        return ", ".join(sorted(self.client.usage.models)) or self.model

    def grades(self, task: str, servers: Sequence[Recommendation]) -> dict[int, float]:
        """The expected grade of each server by id, from 0 to 1: the mean of the digits' values, weighted by
        probability. Raises StudyError: no reply, or one without log probabilities of a digit."""
        grade_by_id = {}
        for server in tqdm(servers, desc="grade", unit="server", leave=False, disable=None):
            fields = {"name": server.name, "description": server.description, "language": server.language or ""}
            body = grades.question(self.model, {"task": task}, fields, LONGEST)
            grade = grades.expected_grade(self.client.post("chat/completions", body))
            if grade is None:
                reason = "the reply has no log probability of 0, 1 or 2"
                raise StudyError(reason, file=self.client.base_url, fix="use another endpoint or model")
            grade_by_id[server.server_id] = grade / 2
        return grade_by_id


@dataclass
class DistilledGrader:
    """Grades servers together, by `study.advisor.saved.student` and the vectors that a saved model keeps."""

    weight: ClassVar[float] = 1.0  # usefulness/distilled.csv
    part: ClassVar[str] = "distilled model"
    named: ClassVar[str] = "distilled linear model"
    student: Student
    model: SavedFieldDense

    @classmethod
    def load(cls, dataset: str, model: SavedModel) -> DistilledGrader:
        """Raises StudyError: none was trained, or the model keeps no such vectors."""
        from study.advisor.saved.field_dense import SavedFieldDense
        from study.advisor.saved.student import FIELDS, Student, file_of

        if not isinstance(model, SavedFieldDense) or not set(FIELDS) <= model.system.fields.keys():
            reason = f"{model.title} keeps no vectors of {' and '.join(FIELDS)}, which the distilled model reads"
            raise StudyError(reason, column="--rerank", fix="leave out --system, or use --system field_dense")
        return cls(Student.load(file_of(dataset)), model)

    def grades(self, task: str, servers: Sequence[Recommendation]) -> dict[int, float]:
        """The scores, from 0 for the least to 1 for the best of these servers."""
        ids = [item.server_id for item in servers]
        rows = pd.Index(self.model.servers["id"]).get_indexer(pd.Index(ids))
        fields = {name: vectors[rows] for name, vectors in self.model.system.fields.items()}
        request = self.model.vector(task) if self.student.asks else np.zeros((1, DIMENSION), dtype=np.float32)
        scores = self.student.scores(request, fields)
        return dict(zip(ids, scaled(scores).tolist(), strict=True))


def graded(grader: Grader | DistilledGrader, task: str, servers: Sequence[Recommendation]) -> list[Recommendation]:
    """`servers` (best first) with the first `DEPTH` by weight x grade + score, the score scaled to 0 ... 1."""
    first, rest, grades_by_id = servers[:DEPTH], servers[DEPTH:], grader.grades(task, servers[:DEPTH])
    scored = []
    for item, score in zip(first, scaled(np.array([item.score for item in first])), strict=True):
        parts = {"ranker": float(score), grader.part: grader.weight * grades_by_id[item.server_id]}
        scored.append(replace(item, score=round(sum(parts.values()), 6), parts=rounded(parts)))
    # Sorting is stable, so equal sums keep the ranker's order.
    ordered = [*sorted(scored, key=lambda item: -item.score), *rest]
    return [replace(item, rank=rank) for rank, item in enumerate(ordered, start=1)]


def scaled(scores: FloatArray) -> FloatArray:
    """From 0 for the least to 1 for the greatest; 0 where all are equal, and for none."""
    if not len(scores) or scores.min() == scores.max():
        return np.zeros_like(scores)
    values: FloatArray = (scores - scores.min()) / (scores.max() - scores.min())
    return values
