"""An endpoint that does to each task what the test says: every way in which models go wrong. How requests themselves
fail is what tests/advisor/llm ask the client."""

import json
import re
import threading
from collections import Counter
from unittest import mock

from study.advisor.llm import client as llm
from study.reranking.language_model import LanguageModelReranker, Question

FOREIGN = 999_999
STATUS = {"busy": 429, "server_error": 503, "refused": 401}
# The fault that is to be counted -> what happens to a task; None where the answer counts.
COUNTED = {None: ["good"], "not_a_chat": ["odd"], "too_many_substitutions": ["strangers"]}
COUNTED |= {kind: [kind] for kind in llm.KINDS if kind not in ("no_record", "not_a_chat")}
COUNTED |= {"wrong_form": ["silent", "prose", "fenced", "other_task", "texts", "halves", "truths", "extra_key"]}
COUNTED |= {"outside_pool": ["outside", "obedient"], "repeat": ["repeat"], "wrong_length": ["short", "long", "nothing"]}
KINDS = {kind: fault for fault, kinds in COUNTED.items() for kind in kinds}
CONTENT = {"silent": None, "prose": "I would put the first one first."}
# The servers that an answer of the right form names, from the pool and K.
NAMED = {
    "good": lambda pool, k: answered(pool, k),
    "texts": lambda pool, k: [str(number) for number in pool[:k]],
    "halves": lambda pool, k: [number + 0.5 for number in pool[:k]],
    "truths": lambda pool, k: [True] * k,
    "outside": lambda pool, k: [FOREIGN, *pool[: k - 1]],
    "repeat": lambda pool, k: [pool[0], *pool[: k - 1]],
    "short": lambda pool, k: pool[: k - 1],
    "long": lambda pool, k: pool[: k + 1],
    "nothing": lambda pool, k: [],
    "strangers": lambda pool, k: pool[-k:],
}
# Keys of an answer that is right otherwise.
KEYS = {"other_task": {"task": FOREIGN}, "extra_key": {"servers_added": [FOREIGN]}}
# How endpoints of models that reason refuse two parameters (the messages are OpenAI's).
REFUSED = {
    "max_tokens": "parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
    "temperature": "value: 'temperature' does not support 0 with this model. Only the default (1) value is supported.",
}


def task_of(prompt: str) -> int:
    return int(json.loads(prompt.split("<task>\n")[1].split("\n")[0])["id"])


def pool_of(prompt: str) -> list[int]:
    cards = prompt.split("<candidates>\n")[1].split("\n</candidates>")[0].split("\n")
    return [json.loads(card)["id"] for card in cards]


def answered(pool: list[int], k: int) -> list[int]:
    """What a good answer of this endpoint says: two servers from below, then the first ones backwards."""
    return [*pool[k : k + 2], *pool[: k - 2][::-1]]


def reply(content: object) -> dict:
    usage = {"prompt_tokens": 100, "completion_tokens": 10}
    return {"choices": [{"message": {"content": content}}], "usage": usage}


class Endpoint:
    """Answers every client while the block runs; `faults` maps task ids to what happens to them."""

    url = "http://127.0.0.1:9/v1"

    def __init__(self, faults=None, *, k=10):
        self.faults, self.k, self.bodies, self.seen = faults or {}, k, [], Counter()
        self.patch = mock.patch.object(llm.Client, "_ask", lambda client, path, body: self.ask(client, body))
        self.lock = threading.Lock()

    def ask(self, client: llm.Client, body: dict) -> object:
        prompt = body["messages"][1]["content"]
        task, pool = task_of(prompt), pool_of(prompt)
        with self.lock:
            self.seen[task] += 1
            self.bodies.append(body)
            client.usage.attempts += 1
        kind = self.faults.get(task, "good")
        answer = {"task": task, "servers": pool[: self.k], "explanation": "so"}
        if kind in llm.KINDS:
            raise llm.EndpointError(kind, f"HTTP {STATUS.get(kind)}: who are you", status=STATUS.get(kind))
        if kind == "odd":
            return {"choices": []}
        if kind == "modern_without_schema":  # refuses two parameters, one after the other, and then the schema
            for name, message in REFUSED.items():
                if name in body:
                    raise llm.EndpointError("refused", "no", status=400, message=f"Unsupported {message}")
        if kind.endswith("without_schema"):
            if body["response_format"]["type"] == "json_schema":
                raise llm.EndpointError("refused", "no", status=400, message="unknown response_format")
            kind = "good"
        if kind in CONTENT:
            return reply(CONTENT[kind])
        if kind == "fenced":
            return reply(f"```json\n{json.dumps(answer)}")
        if kind == "obedient":  # does what a stranger's text in the prompt asks for
            first = [int(number) for number in re.findall(r"put id (\d+) first", prompt)]
            answer["servers"] = [*first[:1], *pool][: self.k]
        elif kind in NAMED:
            answer["servers"] = NAMED[kind](pool, self.k)
        return reply(json.dumps(answer | KEYS.get(kind, {})))

    def reranker(self, mode="off", cassette=None, **question):
        """A re-ranker that asks this endpoint."""
        return LanguageModelReranker(llm.Client(self.url, mode, cassette), Question("m", **question))

    def __enter__(self):
        self.patch.start()
        return self

    def __exit__(self, *_):
        self.patch.stop()
