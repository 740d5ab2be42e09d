"""T2MRec with the paper's last stage: a language model re-orders the pool (eq. 23); what becomes of a bad answer."""

from __future__ import annotations

import hashlib
import math
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field
from tqdm import tqdm

from study.advisor.llm import grades
from study.advisor.llm.client import KINDS, Client, EndpointError
from study.advisor.llm.settings import endpoint_settings
from study.advisor.retrieval.settings import Group
from study.base.errors import StudyError
from study.data.dataset import Dataset, IntArray
from study.data.splits import Split
from study.reranking import prompt, replies
from study.reranking.pools import PooledT2MRec
from study.reranking.system import RerankedT2MRec, Rules

NAME, DEFAULT = "t2mrec_llm", "rerank"  # the system, and its endpoint
Form = Literal["json_schema", "json_object", "text"]
# How endpoints refuse a form of output that they do not know.
UNKNOWN_FORM = frozenset({400, 422, 501})


@dataclass(frozen=True)
class Question(Group):
    """What decides the answers; ``conf/system/paper/t2mrec.yaml`` explains the settings."""

    model: str
    rules: Rules = field(default_factory=Rules)
    forms: Annotated[Sequence[Form], Field(min_length=1)] = ("json_schema", "json_object", "text")
    temperature: float | None = 0.0
    tokens: int = 1000
    longest: int = 600
    prompt_file: str | None = None
    approach: Literal["listwise", "pointwise"] = "listwise"
    fields: Sequence[str] = prompt.SERVER_CARD
    explanation: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        prompt.read_template(self.prompt_file)
        self.require(set(self.fields) <= {*prompt.SERVER_CARD}, "fields", f"some of: {', '.join(prompt.SERVER_CARD)}")


class LanguageModelReranker:
    """Re-orders pools by a language model (eq. 23).

    Attributes:
        faults: how often the order before was used, by reason: a fault of `study.reranking.system.FAULTS` or a kind
            of `study.advisor.llm.client.KINDS`.
        answered: how many answers counted.
        last_failure: what the endpoint's last failure was; empty where there was none.
    """

    def __init__(self, client: Client, question: Question) -> None:
        self.client, self.question = client, question
        self.template = prompt.read_template(question.prompt_file)
        self.keys = prompt.OWN_KEYS if self.template is None else prompt.PAPER_KEYS
        self.faults: Counter[str] = Counter()
        self.answered, self.last_failure = 0, ""
        self._form, self._lock = 0, threading.Lock()

    def __call__(self, data: Dataset, task: int, pool: IntArray) -> IntArray:
        """The order of `pool` for the task row `task`: the model's, or the one before where its answer does not count.
        Raises StudyError: the mode is ``replay`` and the reply was never recorded."""
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
        row_of = dict(zip(ids, pool, strict=True))
        return np.array([row_of[number] for number in self.question.rules.order(answer, ids)], dtype=np.int64)

    def many(
        self, data: Dataset, tasks: IntArray, pools: Sequence[IntArray], *, most: float = math.inf
    ) -> list[IntArray]:
        """The orders of several tasks' pools; as many are asked for at a time as the client allows. `most`: failures of
        the endpoint after which it is not asked any more; the other pools stay as they are."""
        before = self.failures()

        def order(task: int, pool: IntArray) -> IntArray:
            return pool if self.failures() - before > most else self(data, int(task), pool)

        bar = {"desc": self.question.model, "unit": "task", "leave": False, "disable": not sys.stderr.isatty()}
        with ThreadPoolExecutor(self.client.concurrency) as threads:
            return list(tqdm(threads.map(order, tasks, pools), total=len(tasks), **bar))

    def failures(self) -> int:
        """For how many tasks the endpoint gave no reply."""
        return sum(self.faults[kind] for kind in KINDS)

    def report(self) -> dict[str, Any]:
        """Counts for a run's record: answers, fallbacks by reason, requests and tokens, and refused parameters. The
        hash of a prompt file is among them, since the row's settings hold its name alone."""
        usage = self.client.usage
        counts = {"answered": self.answered, "fallbacks": dict(sorted(self.faults.items())), "requests": usage.requests}
        counts |= {
            name: getattr(usage, name) for name in ("replayed", "attempts", "prompt_tokens", "completion_tokens")
        }
        if self.template is not None:
            counts["prompt_sha256"] = hashlib.sha256(self.template.encode()).hexdigest()
        return counts | {"models": sorted(usage.models), "adapted": dict(sorted(self.client.adapted.items()))}

    def _ask(self, data: Dataset, task: int, pool: IntArray, ids: list[int]) -> Any:
        """The identifiers that the model names; None for an answer of another form."""
        question, row = self.question, data.tasks.iloc[task].to_dict()
        k, substitutions = min(question.rules.k, len(ids)), question.rules.substitutions
        form: dict[str, Any] = {"longest": question.longest, "fields": question.fields, "template": self.template}
        messages = prompt.messages(row, data.servers.iloc[pool], k=k, substitutions=substitutions, **form)
        options: dict[str, Any] = {"max_tokens": question.tokens}
        if question.temperature is not None:
            options["temperature"] = question.temperature
        number = int(row["id"])
        # Recorded replies are looked for under every form: the endpoint's known form is not known when replaying.
        replaying = self.client.mode == "replay"
        failure: EndpointError | None = None
        for index in range(0 if replaying else self._form, len(question.forms)):
            form = prompt.response_format(question.forms[index], number, ids, k, self.keys, question.explanation)
            try:
                text = self.client.chat(question.model, messages, **options, **form)
            except EndpointError as error:
                if failure is None or error.kind != "no_record":
                    failure = error
                if not replaying and error.status not in UNKNOWN_FORM:
                    raise
                continue
            with self._lock:
                self._form = index
            return prompt.read_answer(text, number, self.keys)
        assert failure is not None
        raise failure


def condensed(reply: Any) -> Any:
    """What is kept of a reply: the model's name, the text, the tokens counted, and log probabilities of the digits.

    A reply of another form is kept as it is. None of the kept parts quotes the data set, if the form of output holds
    the text to identifiers.
    """
    try:
        choice = reply["choices"][0]
        reduced: dict[str, Any] = {"message": {"content": choice["message"]["content"]}}
        first = ((choice.get("logprobs") or {}).get("content") or [None])[0]
        if first is not None:
            top = [{"token": t["token"], "logprob": round(t["logprob"], 4)} for t in first["top_logprobs"]]
            top = [entry for entry in top if entry["token"].strip() in grades.DIGITS]
            reduced["logprobs"] = {"content": [{"top_logprobs": top}]}
        usage = {name: reply["usage"][name] for name in ("prompt_tokens", "completion_tokens")}
        return {"model": reply["model"], "choices": [reduced], "usage": usage}
    except (KeyError, IndexError, TypeError, AttributeError):
        return reply


class GradingReranker(LanguageModelReranker):
    """Orders a pool by the expected grade of every candidate, each asked for alone, as far as the rules allow.

    Candidates of equal grade keep their order. One candidate without a grade leaves the whole pool as it was.
    """

    def _ask(self, data: Dataset, task: int, pool: IntArray, ids: list[int]) -> Any:
        """The first k identifiers of that order; None where a grade is missing."""
        question, expected = self.question, list[float]()
        request = data.tasks.iloc[task][list(prompt.TASK_CARD[1:])].to_dict()
        for server in data.servers.iloc[pool][list(question.fields)].to_dict("records"):
            body = grades.question(question.model, request, server, question.longest)
            if (grade := grades.expected_grade(self.client.post("chat/completions", body))) is None:
                return None
            expected.append(grade)
        order = [ids[index] for index in np.argsort(-np.array(expected), kind="stable")]
        return question.rules.within(order, ids)[: question.rules.k]


class T2MRecWithLanguageModel(RerankedT2MRec, PooledT2MRec):
    """T2MRec and a language model over its pool, which is the kept one where there is one (`PooledT2MRec`).

    `endpoint`: a file of ``conf/llm``.
    `tolerated`: share of a batch's tasks that may be left in the order before because the endpoint failed; above it
        there is no result, since the row would mostly show T2MRec alone. Bad answers are no failure of the endpoint and
        always count.
    """

    def __init__(self, *parts: Any, question: Question, endpoint: str, tolerated: float, **named: Any) -> None:
        super().__init__(*parts, rules=question.rules, **named)
        self.question, self.endpoint, self.tolerated = question, endpoint, tolerated
        # Replies of one endpoint do not make a row of another one's model.
        self.name = NAME if endpoint == DEFAULT else f"{NAME}_{endpoint}"
        self.name += "" if question.approach == "listwise" else f"_{question.approach}"

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Read the kept pools or train T2MRec; the language model learns nothing.

        Raises StudyError: there is neither a recorded reply nor leave to ask an endpoint.
        """
        chosen, cassette = endpoint_settings(self.endpoint), replies.cassette(data.name, self.name)
        reason = replies.not_run(data.name, self.name)
        if chosen.mode == "replay" and reason is not None:
            raise StudyError(reason, file=cassette, fix="name an endpoint in conf/llm and set T2M_LLM_MODE=record")
        client, pointwise = chosen.client(cassette), self.question.approach == "pointwise"
        client.condense = condensed
        self.language_model = (GradingReranker if pointwise else LanguageModelReranker)(client, self.question)
        super().fit(data, split, seed=seed, workdir=workdir)

    def rerank(self, tasks: IntArray, pools: Sequence[IntArray]) -> list[IntArray]:
        """The model's orders, each the order before where its answer does not count. Raises StudyError: the endpoint
        failed for more tasks than tolerated."""
        before, most = self.language_model.failures(), self.tolerated * len(tasks)
        orders = self.language_model.many(self.data, tasks, pools, most=most)
        failed = self.language_model.failures() - before
        if failed > most:
            problem = f"not run: the endpoint failed for {failed} of {len(tasks)} tasks, after which it was not asked "
            problem += f"any more; the last time: {self.language_model.last_failure}"
            fix = "start the endpoint or correct conf/llm, then run again; T2M_LLM_MODE=record keeps the replies"
            raise StudyError(problem, fix=fix)
        return orders

    def report(self) -> dict[str, Any]:
        """Counts for the run's record."""
        return self.language_model.report() | {"invalid": self.invalid_rerankings}
