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
from typing import Any

import numpy as np
from tqdm import tqdm

from study.advisor.llm import grades
from study.advisor.llm import settings as endpoint
from study.advisor.llm.client import KINDS, Client, EndpointError
from study.base.errors import StudyError
from study.data.dataset import Dataset, IntArray
from study.data.splits import Split
from study.reranking import prompt
from study.reranking.pools import PooledT2MRec
from study.reranking.system import RerankedT2MRec, Rules
from study.t2mrec.settings import Lexical, Scoring, Towers, Training

NAME, DEFAULT = "t2mrec_llm", "rerank"  # the system, and its endpoint
APPROACHES = ("listwise", "pointwise")
FORMS = ("json_schema", "json_object", "text")
# How endpoints refuse a form of output that they do not know.
UNKNOWN_FORM = frozenset({400, 422, 501})


@dataclass(frozen=True)
class Question:
    """What decides the answers; ``conf/system/paper/t2mrec.yaml`` explains the settings."""

    model: str
    rules: Rules = field(default_factory=Rules)
    forms: tuple[str, ...] = FORMS
    temperature: float | None = 0.0
    tokens: int = 1000
    longest: int = 600
    prompt_file: str | None = None
    approach: str = "listwise"
    fields: tuple[str, ...] = prompt.SERVER_CARD
    explanation: int | None = None

    def __post_init__(self) -> None:
        prompt.read_template(self.prompt_file)
        if unknown := set(self.fields) - set(prompt.SERVER_CARD):
            fix = f"some of: {', '.join(prompt.SERVER_CARD)}"
            raise StudyError(f"a card has no {min(unknown)!r}", column="system.model.question.fields", fix=fix)
        if self.approach not in APPROACHES:
            problem, fix = f"there is no approach {self.approach!r}", f"one of: {', '.join(APPROACHES)}"
            raise StudyError(problem, column="system.model.question.approach", fix=fix)
        if not self.forms or not set(self.forms) <= set(FORMS):
            problem = f"{list(self.forms)} are no forms of output"
            raise StudyError(problem, column="system.model.question.forms", fix=f"one or more of: {', '.join(FORMS)}")


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
        place = dict(zip(ids, pool, strict=True))
        return np.array([place[number] for number in self.question.rules.order(answer, ids)], dtype=np.int64)

    def many(
        self, data: Dataset, tasks: IntArray, pools: Sequence[IntArray], *, most: float = math.inf
    ) -> list[IntArray]:
        """The orders of several tasks' pools; as many are asked for at a time as the client allows. `most`: failures of
        the endpoint after which it is not asked any more; the other pools stay as they are."""
        before = self.failures()

        def order(task: int, pool: IntArray) -> IntArray:
            return pool if self.failures() - before > most else self(data, int(task), pool)

        shown = {"desc": self.question.model, "unit": "task", "leave": False, "disable": not sys.stderr.isatty()}
        with ThreadPoolExecutor(self.client.concurrency) as threads:
            return list(tqdm(threads.map(order, tasks, pools), total=len(tasks), **shown))

    def failures(self) -> int:
        """For how many tasks the endpoint gave no reply."""
        return sum(self.faults[kind] for kind in KINDS)

    def report(self) -> dict[str, Any]:
        """Counts for a run's record: answers, fallbacks by reason, requests and tokens, and refused parameters. The
        hash of a prompt file is among them, since the row's settings hold its name alone."""
        usage = self.client.usage
        counts = {"answered": self.answered, "fallbacks": dict(sorted(self.faults.items())), "requests": usage.requests}
        counts |= {name: getattr(usage, name) for name in ("replayed", "attempts")}
        counts |= {name: getattr(usage, name) for name in ("prompt_tokens", "completion_tokens")}
        if self.template is not None:
            counts["prompt_sha256"] = hashlib.sha256(self.template.encode()).hexdigest()
        return counts | {"models": sorted(usage.models), "adapted": dict(sorted(self.client.adapted.items()))}

    def _ask(self, data: Dataset, task: int, pool: IntArray, ids: list[int]) -> Any:
        """The identifiers that the model names; None for an answer of another form."""
        question, rules, row = self.question, self.question.rules, data.tasks.iloc[task].to_dict()
        servers, k = data.servers.iloc[pool], min(rules.k, len(ids))
        shown: dict[str, Any] = {"longest": question.longest, "fields": question.fields, "template": self.template}
        asked = prompt.messages(row, servers, k=k, substitutions=rules.substitutions, **shown)
        options: dict[str, Any] = {"max_tokens": question.tokens}
        if question.temperature is not None:
            options["temperature"] = question.temperature
        number = int(row["id"])
        # Recorded replies are looked for under every form: the endpoint's known form is not known when replaying.
        replaying = self.client.mode == "replay"
        failure: EndpointError | None = None
        for place in range(0 if replaying else self._form, len(question.forms)):
            form = prompt.response_format(question.forms[place], number, ids, k, self.keys, question.explanation)
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
        kept: dict[str, Any] = {"message": {"content": choice["message"]["content"]}}
        first = ((choice.get("logprobs") or {}).get("content") or [None])[0]
        if first is not None:
            top = [{"token": t["token"], "logprob": round(t["logprob"], 4)} for t in first["top_logprobs"]]
            top = [entry for entry in top if entry["token"].strip() in grades.DIGITS]
            kept["logprobs"] = {"content": [{"top_logprobs": top}]}
        usage = {name: reply["usage"][name] for name in ("prompt_tokens", "completion_tokens")}
        return {"model": reply["model"], "choices": [kept], "usage": usage}
    except (KeyError, IndexError, TypeError, AttributeError):
        return reply


class GradingReranker(LanguageModelReranker):
    """Orders a pool by the expected grade of every candidate, each asked for alone, as far as the rules allow.

    Candidates of equal grade keep their order. One candidate without a grade leaves the whole pool as it was.
    """

    def _ask(self, data: Dataset, task: int, pool: IntArray, ids: list[int]) -> Any:
        """The first k identifiers of that order; None where a grade is missing."""
        question, found = self.question, list[float]()
        asked = data.tasks.iloc[task][list(prompt.TASK_CARD[1:])].to_dict()
        for server in data.servers.iloc[pool][list(question.fields)].to_dict("records"):
            reply = self.client.post(
                "chat/completions", grades.question(question.model, asked, server, question.longest)
            )
            if (grade := grades.expected_grade(reply)) is None:
                return None
            found.append(grade)
        order = [ids[place] for place in np.argsort(-np.array(found), kind="stable")]
        return question.rules.within(order, ids)[: question.rules.k]


class T2MRecWithLanguageModel(RerankedT2MRec, PooledT2MRec):
    """T2MRec and a language model over its pool, which is the kept one where there is one (`PooledT2MRec`).

    `endpoint`: a file of ``conf/llm``.
    `tolerated`: share of a batch's tasks that may be left in the order before because the endpoint failed; above it
        there is no result, since the row would mostly show T2MRec alone. Bad answers are no failure of the endpoint and
        always count.
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
    ) -> None:
        super().__init__(lexical, towers, training, scoring, rules=question.rules)
        self.question, self.endpoint, self.tolerated = question, endpoint, tolerated
        # Replies of one endpoint do not make a row of another one's model.
        self.name = NAME if endpoint == DEFAULT else f"{NAME}_{endpoint}"
        self.name += "" if question.approach == "listwise" else f"_{question.approach}"

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Read the kept pools or train T2MRec; the language model learns nothing.

        Raises StudyError: there is neither a recorded reply nor leave to ask an endpoint.
        """
        chosen, place = endpoint.endpoint_settings(self.endpoint), endpoint.cassette(data.name, self.name)
        reason = endpoint.not_run(data.name, self.name)
        if chosen.mode == "replay" and reason is not None:
            raise StudyError(reason, file=place, fix="name an endpoint in conf/llm and set T2M_LLM_MODE=record")
        client, pointwise = chosen.client(place), self.question.approach == "pointwise"
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
            problem = (
                f"not run: the endpoint failed for {failed} of {len(tasks)} tasks, after which it was not asked any"
            )
            problem += f" more; the last time: {self.language_model.last_failure}"
            fix = "start the endpoint or correct conf/llm, then run again; T2M_LLM_MODE=record keeps the replies"
            raise StudyError(problem, fix=fix)
        return orders

    def report(self) -> dict[str, Any]:
        """Counts for the run's record, with what the tokens cost at the prices of ``conf/llm``."""
        chosen = endpoint.endpoint_settings(self.endpoint)
        cost = self.language_model.client.usage.cost(chosen.prompt_price, chosen.completion_price)
        return self.language_model.report() | {"cost": round(cost, 6), "invalid": self.invalid_rerankings}
