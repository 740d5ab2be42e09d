"""T2MRec with the paper's last stage: a language model re-orders the pool (eq. 23)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from study.data.dataset import Dataset, IntArray
from study.data.splits import Split
from study.errors import StudyError
from study.reranking.language_model import endpoint
from study.reranking.language_model.reranker import LanguageModelReranker, Question
from study.reranking.system import RerankedT2MRec
from study.t2mrec.fusion import Reranker
from study.t2mrec.settings import Lexical, Scoring, Towers, Training

NAME = "t2mrec_llm"


class T2MRecWithLanguageModel(RerankedT2MRec):
    """T2MRec and a language model over its pool.

    Args:
        question: what is asked.
        endpoint: a file of ``conf/llm``.
        tolerated: share of a batch's tasks that may be left in the order before because the endpoint failed; above it
            there is no result, since the row would mostly show T2MRec alone. Bad answers are no failure of the
            endpoint and always count.
    """

    def __init__(
        self,
        lexical: Lexical,
        towers: Towers,
        training: Training,
        scoring: Scoring,
        question: Question,
        endpoint: str,
        tolerated: float,
        reranker: Reranker | None = None,
    ) -> None:
        super().__init__(lexical, towers, training, scoring, reranker, rules=question.rules)
        self.question, self.endpoint, self.tolerated = question, endpoint, tolerated

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Train T2MRec; the language model learns nothing.

        Raises:
            StudyError: there is neither a recorded reply nor leave to ask an endpoint.
        """
        chosen, place = endpoint.read(self.endpoint), endpoint.cassette(data.name, NAME)
        reason = endpoint.not_run(data.name, NAME)
        if chosen.mode == "replay" and reason is not None:
            raise StudyError(reason, file=place, fix="name an endpoint in conf/llm and set T2M_LLM_MODE=record")
        self.language_model = LanguageModelReranker(chosen.client(place), self.question)
        super().fit(data, split, seed=seed, workdir=workdir)

    def rerank(self, tasks: IntArray, pools: Sequence[IntArray]) -> list[IntArray]:
        """The model's orders, each the order before where its answer does not count.

        Raises:
            StudyError: the endpoint failed for more tasks than tolerated.
        """
        before, most = self.language_model.failures(), self.tolerated * len(tasks)
        orders = self.language_model.many(self.data, tasks, pools, most=most)
        failed = self.language_model.failures() - before
        if failed > most:
            raise StudyError(
                f"not run: the endpoint failed for {failed} of {len(tasks)} tasks, after which it was not asked any "
                f"more; the last time: {self.language_model.last_failure}",
                fix="see that it answers, then run again: in the mode `record` what it answered is kept",
            )
        return orders

    def report(self) -> dict[str, Any]:
        """Counts for the run's record, with what the tokens cost at the prices of ``conf/llm``."""
        chosen = endpoint.read(self.endpoint)
        cost = self.language_model.client.usage.cost(chosen.prompt_price, chosen.completion_price)
        return self.language_model.report() | {"cost": round(cost, 6), "invalid": self.invalid_rerankings}
