"""What a language model does for T2MAgent over written requests: how it reads them, and what becomes of its words."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pandas as pd
from tqdm import tqdm

from study.advisor.agent import language
from study.advisor.agent.language import Writer, by_rules, evidence
from study.advisor.engine.answer import Options, ask
from study.advisor.engine.catalogue import Catalogue, load
from study.advisor.llm.client import Client, EndpointError
from study.advisor.llm.settings import endpoint_settings
from study.base import paths
from study.base.errors import StudyError
from study.base.files import write_csv, write_json
from study.base.settings import read_settings
from study.evaluation.records import record

CHECKS = ("format", "correctness", "truthfulness")


@dataclass(frozen=True)
class ModelTrial:
    """``conf/agent/model_trial.yaml``, where every key is explained."""

    endpoint: str
    model: str
    tokens: int
    top: int
    requests: list[str]


class Clock:
    """Counts the seconds that an endpoint says it took for its replies."""

    def __init__(self, client: Client) -> None:
        self.client, self.seconds, self.usage = client, 0.0, client.usage

    def chat(self, model: str, messages: Sequence[Mapping[str, Any]], **parameters: Any) -> str:
        """As `Client.chat`."""
        reply = self.client.post("chat/completions", {"model": model, "messages": [*messages], **parameters})
        taken = reply.get("timings", {})
        self.seconds += (taken.get("prompt_ms", 0) + taken.get("predicted_ms", 0)) / 1_000
        return str(reply["choices"][0]["message"]["content"] or "")


def settings() -> ModelTrial:
    """The settings of the trial."""
    return read_settings(ModelTrial, paths.conf() / "agent" / "model_trial.yaml")


def measure(dataset: str) -> Path:
    """Read and answer the requests of ``conf/agent/model_trial.yaml``, going on after those that the table holds; write
    ``agent_model.csv`` and its record after each.

    Raises StudyError: no reply to the first request that is not answered yet.
    """
    chosen = settings()
    client = endpoint_settings(chosen.endpoint).client(paths.cache() / "llm" / "replies" / "agent.jsonl")
    clock = Clock(client)
    writer = Writer(clock, chosen.model, chosen.tokens)
    target = paths.tables(dataset) / "agent_model.csv"
    facts = paths.results(dataset) / "records" / "agent_model.json"
    prompts = sha256(json.dumps([language.READ, language.WRITE, language.STRICTER]).encode()).hexdigest()[:12]
    rows = list[dict[Any, Any]]()
    before = json.loads(facts.read_text(encoding="utf-8")) if facts.exists() else {}
    if before.get("prompts") == prompts:
        rows = pd.read_csv(target, keep_default_na=False).to_dict("records")
    catalogue, total = load(dataset=dataset), len(chosen.requests)

    def keep() -> None:
        write_csv(target, pd.DataFrame(rows))
        counted = {"answered": len(rows), "of": total, "prompts": prompts, "system": catalogue.system}
        models = sorted(client.usage.models) or before.get("models", [])
        write_json(facts, record(dataset=dataset, settings=asdict(chosen), **counted, models=models))

    for number in tqdm(range(len(rows), total), desc="answer", unit="request", disable=None):
        try:
            row = trial(catalogue, writer, clock, chosen.requests[number], chosen.top)
        except EndpointError as error:
            done = f"{len(rows)} of {total} requests are answered: {error.reason}"
            raise StudyError(done, file=client.cassette, fix="T2M_LLM_MODE=record study llm agent goes on") from error
        rows.append({"request": number + 1} | row)
        keep()
    keep()
    return target


def trial(catalogue: Catalogue, writer: Writer, clock: Clock, request: str, top: int) -> dict[str, Any]:
    """What a model makes of a request, beside the rules.

    Returns: rules and model, the limits that each reads, as JSON; valid, whether the model's specification is; same,
        whether its limits are the rules'; dropped, limits that it stated and the request does not; servers, of the
        answer; statements, of the model that were kept; kept, whether its answer stands (and not the template); tries,
        replies that it took; of each check how many statements it refused; read_s and write_s, seconds.
    """
    rules, start = by_rules(request), clock.seconds
    limits = rules.limits().stated()
    row = {"rules": json.dumps(limits, sort_keys=True), "model": "", "valid": False, "same": False, "dropped": 0}
    try:
        read, dropped = writer.read(request)
        stated = read.limits().stated()
        row |= {"model": json.dumps(stated, sort_keys=True), "valid": True, "same": stated == limits}
        row["dropped"] = len(dropped)
    except EndpointError:
        raise
    except StudyError:
        pass
    row["read_s"], start = round(clock.seconds - start, 1), clock.seconds
    items, refused = ask(catalogue, request, Options(top)).items, Counter[str]()
    row |= {"servers": len(items), "statements": 0, "kept": "", "tries": 0}
    if items:
        written = writer.write(rules, [evidence(item) for item in items])
        row |= {"kept": written.author != "template", "tries": written.attempts}
        row["statements"] = len(written.response) if row["kept"] else 0
        refused.update(statement.check for attempt in written.refused for statement in attempt)
    return row | {check: refused[check] for check in CHECKS} | {"write_s": round(clock.seconds - start, 1)}
