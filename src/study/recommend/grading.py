"""A language model's grades over a saved model's first servers: `study recommend --rerank llm`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tqdm import tqdm

from study.errors import StudyError
from study.llm.client import LOCAL, Client
from study.recommend.contract import Recommendation, rounded
from study.reranking import grades
from study.reranking.endpoint import endpoint_settings

DEPTH = 20  # servers that are graded
WEIGHT = 8.0  # of a grade beside the score, both from 0 to 1: the best on the validation topics (usefulness/graded.csv)
LONGEST = 400  # characters of a server's description and of the request
ENDPOINT = "local"  # the file of conf/llm
MODEL = "T2M_LLM_MODEL"  # environment variable: the model's name at an endpoint of one's own


@dataclass
class Grader:
    """Grades servers one by one.

    Attributes:
        client: an endpoint that gives log probabilities.
        model: its name there; without meaning for a local model.
    """

    client: Client
    model: str

    @classmethod
    def configured(cls) -> Grader:
        """The endpoint of ``conf/llm/local.yaml``, or the one that T2M_LLM_URL names; nothing is recorded.

        Raises:
            StudyError: an endpoint of one's own without T2M_LLM_MODEL.
        """
        settings, model = endpoint_settings(ENDPOINT), os.environ.get(MODEL, "")
        if not model and not settings.base_url.startswith(LOCAL):
            raise StudyError("the endpoint's model has no name", file=settings.base_url, fix=f"set {MODEL}")
        return cls(replace(settings, mode="off").client(None), model)

    def grade(self, task: str, server: Recommendation) -> float:
        """The expected grade of a server, from 0 to 1: the mean of the digits' values, weighted by probability.

        Raises:
            StudyError: no reply, or one without log probabilities of a digit.
        """
        shown = {"name": server.name, "description": server.description, "language": server.language or ""}
        body = grades.question(self.model, {"task": task}, shown, LONGEST)
        found = grades.expected_grade(self.client.post("chat/completions", body))
        if found is None:
            reason = "the reply has no log probability of 0, 1 or 2"
            raise StudyError(reason, file=self.client.base_url, fix="use another endpoint or model")
        return found / 2


def rerank(found: Sequence[Recommendation], graded: Mapping[int, float]) -> list[Recommendation]:
    """The graded servers by `WEIGHT` x grade + score, the score scaled to 0 ... 1; the others keep their places after.

    Args:
        found: best first.
        graded: by server id, of the first ones.
    """
    first, rest = found[: len(graded)], found[len(graded) :]
    scores = [item.score for item in first]
    low, spread = min(scores), (max(scores) - min(scores)) or 1.0
    parts = [
        {"ranker": (item.score - low) / spread, "language model": WEIGHT * graded[item.server_id]} for item in first
    ]
    scored = [
        replace(item, score=round(sum(part.values()), 6), parts=rounded(part))
        for item, part in zip(first, parts, strict=True)
    ]
    # Sorting is stable, so equal sums keep the ranker's order.
    ordered = [*sorted(scored, key=lambda item: -item.score), *rest]
    return [replace(item, rank=rank) for rank, item in enumerate(ordered, start=1)]


def graded(grader: Grader, task: str, found: Sequence[Recommendation]) -> list[Recommendation]:
    """`found` with its first `DEPTH` servers graded and put into their new order, with a progress bar."""
    bar = tqdm(found[:DEPTH], desc="grade", unit="server", leave=False, disable=None)
    return rerank(found, {item.server_id: grader.grade(task, item) for item in bar})
