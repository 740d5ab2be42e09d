"""Asking a language model for the order of candidate pools, and what becomes of a bad answer."""

from __future__ import annotations

import math
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tqdm import tqdm

from study.data.dataset import Dataset, IntArray
from study.errors import StudyError
from study.llm.client import KINDS, Client, EndpointError
from study.reranking.contract import Rules
from study.reranking.language_model import prompt

FORMS = ("json_schema", "json_object", "text")
# How endpoints refuse a form of output that they do not know.
UNKNOWN_FORM = frozenset({400, 422, 501})


@dataclass(frozen=True)
class Question:
    """What decides the answers.

    Attributes:
        model: the endpoint's name of the model.
        rules: length and membership of an answer.
        forms: ways to hold the model to the output's form, tried in this order until the endpoint accepts one.
        temperature: 0 decodes deterministically; None sends none, for models that refuse the setting.
        tokens: longest reply.
        longest: characters of a text field in the prompt.
    """

    model: str
    rules: Rules = field(default_factory=Rules)
    forms: tuple[str, ...] = FORMS
    temperature: float | None = 0.0
    tokens: int = 1000
    longest: int = 600

    def __post_init__(self) -> None:
        if not self.forms or not set(self.forms) <= set(FORMS):
            problem = f"{list(self.forms)} are no forms of output"
            raise StudyError(problem, column="system.model.question.forms", fix=f"one or more of: {', '.join(FORMS)}")


class LanguageModelReranker:
    """Re-orders pools by a language model (eq. 23); a `study.t2mrec.fusion.Reranker`.

    Attributes:
        faults: how often the order before was used, by reason: a fault of `study.reranking.contract.FAULTS` or a kind
            of `study.llm.client.KINDS`.
        answered: how many answers counted.
        last_failure: what the endpoint's last failure was; empty where there was none.
    """

    def __init__(self, client: Client, question: Question) -> None:
        self.client, self.question = client, question
        self.faults: Counter[str] = Counter()
        self.answered, self.last_failure = 0, ""
        self._form, self._lock = 0, threading.Lock()

    def __call__(self, data: Dataset, task: int, pool: IntArray) -> IntArray:
        """The order of `pool` for the task row `task`: the model's, or the one before where its answer does not count.

        Raises:
            StudyError: the mode is ``replay`` and the reply was never recorded.
        """
        ids = [int(number) for number in data.servers["id"].to_numpy()[pool]]
        try:
            answer = self._ask(data, task, pool, ids)
            fault = self.question.rules.fault(answer, ids)
        except EndpointError as error:
            if error.kind == "no_record":
                raise
            answer, fault, self.last_failure = [], error.kind, error.reason
        with self._lock:
            if fault is not None:
                self.faults[fault] += 1
                return pool
            self.answered += 1
        place = dict(zip(ids, pool, strict=True))
        return np.array([place[number] for number in self.question.rules.order(answer, ids)], dtype=np.int64)

    def many(
        self, data: Dataset, tasks: IntArray, pools: Sequence[IntArray], *, most: float = math.inf
    ) -> list[IntArray]:
        """The orders of several tasks' pools; as many are asked for at a time as the client allows.

        Args:
            most: failures of the endpoint after which it is not asked any more; the other pools stay as they are.
        """
        before = self.failures()

        def order(task: int, pool: IntArray) -> IntArray:
            return pool if self.failures() - before > most else self(data, int(task), pool)

        with ThreadPoolExecutor(self.client.concurrency) as threads:
            asked = threads.map(order, tasks, pools)
            return list(
                tqdm(
                    asked,
                    total=len(tasks),
                    desc=self.question.model,
                    unit="task",
                    leave=False,
                    disable=not sys.stderr.isatty(),
                )
            )

    def failures(self) -> int:
        """For how many tasks the endpoint gave no reply."""
        return sum(self.faults[kind] for kind in KINDS)

    def report(self) -> dict[str, Any]:
        """Counts for a run's record: answers, fallbacks by reason, requests and tokens, and refused parameters."""
        usage = self.client.usage
        return {
            "answered": self.answered,
            "fallbacks": dict(sorted(self.faults.items())),
            "requests": usage.asked,
            "replayed": usage.replayed,
            "attempts": usage.attempts,
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "adapted": dict(sorted(self.client.adapted.items())),
        }

    def _ask(self, data: Dataset, task: int, pool: IntArray, ids: list[int]) -> Any:
        """The identifiers that the model names; None for an answer of another form."""
        question, row = self.question, data.tasks.iloc[task].to_dict()
        k = min(question.rules.k, len(ids))
        asked = prompt.messages(
            row, data.servers.iloc[pool], k=k, substitutions=question.rules.substitutions, longest=question.longest
        )
        options: dict[str, Any] = {"max_tokens": question.tokens}
        if question.temperature is not None:
            options["temperature"] = question.temperature
        number = int(row["id"])
        # Recorded replies are looked for under every form: the endpoint's known form is not known when replaying.
        replaying = self.client.mode == "replay"
        failure: EndpointError | None = None
        for place in range(0 if replaying else self._form, len(question.forms)):
            form = prompt.response_format(question.forms[place], number, ids, k)
            try:
                text = self.client.chat(question.model, asked, **options, **form)
            except EndpointError as error:
                if failure is None or error.kind != "no_record":
                    failure = error
                if not replaying and error.status not in UNKNOWN_FORM:
                    raise
                continue
            with self._lock:
                self._form = place
            return prompt.read_answer(text, number)
        assert failure is not None
        raise failure
