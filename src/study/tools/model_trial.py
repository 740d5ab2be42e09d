"""What a language model does for the agent over written requests: how it reads them, and what becomes of its words."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from tqdm import tqdm

from study import paths
from study.advisor.agent.agent import Agent
from study.advisor.agent.answer import Answer
from study.advisor.agent.claims import Claim, Context
from study.advisor.agent.model import Model, empty, truthful
from study.advisor.agent.settings import ModelTrial, read_conf
from study.advisor.agent.text import WORD
from study.advisor.llm.client import Client, EndpointError
from study.advisor.llm.settings import endpoint_settings
from study.data.dataset import load
from study.errors import StudyError
from study.evaluation.records import record
from study.files import write_csv, write_json

SENTENCE = ["request", "author", "server_id", "section", "cited", "empty", "words", "stands"]


class TrialModel(Model):
    """A model whose answers are kept beside those of the rules, with the requests counted that got no reply."""

    def __init__(self, client: Client, settings: Mapping[str, Any]) -> None:
        super().__init__(client, settings)
        self.said: list[tuple[Answer, Answer, Context]] = []
        self.unanswered = 0

    def _ask(self, system: str, user: str) -> dict[str, Any]:
        try:
            return super()._ask(system, user)
        except EndpointError:
            self.unanswered += 1
            raise

    def explain(self, answer: Answer, context: Context) -> Answer:
        """As `Model.explain`."""
        worded = super().explain(answer, context)
        self.said.append((answer, worded, context))
        return worded


def measure(dataset: str) -> Path:
    """Read and word every request of ``conf/agent/model_trial.yaml``; write ``agent_model.csv`` with its record, and
    ``agent_model_sentences.csv``.

    All requests are read first, so that an engine that keeps the prompt's beginning reads the vocabulary once.

    Raises StudyError: a request has no reply, since the agent's rules would stand in for the model unseen.
    """
    settings = read_conf(ModelTrial)
    client = endpoint_settings(settings.endpoint).client(paths.cache() / "llm" / "replies" / "agent.jsonl")
    model = TrialModel(client, {"model": settings.model, "tokens": settings.tokens})
    rules = Agent(load(dataset))
    table, sentences = trial(rules, model, settings)
    if model.unanswered:
        asked = model.unanswered + client.usage.asked + client.usage.replayed
        problem = f"{model.unanswered} of {asked} requests to the model have no reply"
        raise StudyError(problem, file=client.cassette, fix="T2M_LLM_MODE=record study llm agent (an hour)")
    target = paths.tables(dataset) / "agent_model.csv"
    write_csv(target, table)
    write_csv(target.with_name("agent_model_sentences.csv"), sentences)
    usage = {"models": sorted(client.usage.models), "requests": client.usage.asked, "replayed": client.usage.replayed}
    usage |= {name: getattr(client.usage, name) for name in ("prompt_tokens", "completion_tokens")}
    facts = record(dataset=dataset, settings=asdict(settings), retriever=rules.retriever.name, **usage)
    write_json(paths.results(dataset) / "records" / "agent_model.json", facts)
    return target


def trial(rules: Agent, model: TrialModel, settings: ModelTrial) -> tuple[pd.DataFrame, pd.DataFrame]:
    """What a model makes of the requests, beside `rules`, an agent without one.

    Returns: one row per request, with columns request (from 1); rules and model, the constraints that each states, as
        JSON; read, whether the model's reading was usable; same, whether it states the same constraints as the rules';
        stated and agreed, constraints that the rules find and that both state alike; added, constraints that the model
        alone states; dropped, its values outside the vocabulary; worded, whether its answer took the place of the
        template's; claims, its sentences; and removed, those without support.
        And one row per reason and trade-off, of rules and model, where the model worded an answer: request, author,
        server_id, section (why or tradeoff); cited, the fields that it rests on; empty, those of them that hold nothing
        or are no field (rules cite such a field where they say that it is empty); words, their number; stands, whether
        the model's has support (the rules' always stand).
    """
    rows: list[dict[str, Any]] = []
    asked = Agent(rules.data, retriever=rules.retriever, settings=rules.settings, model=model)
    for number, request in enumerate(tqdm(settings.requests, desc="read", unit="request", disable=None), start=1):
        found, known = asked.read(request), rules.read(request).specification.constraints()
        stated = found.specification.constraints()
        usable = not found.problem
        row: dict[str, Any] = {
            "request": number,
            "rules": _said(known),
            "model": _said(stated) if usable else "",
            "read": usable,
            "same": usable and stated == known,
            "stated": len(known),
        }
        row["agreed"] = sum(usable and stated.get(key) == value for key, value in known.items())
        row["added"] = sum(key not in known for key in stated) if usable else 0
        rows.append(row | {"dropped": found.dropped})
    sentences, share = list[dict[str, Any]](), float(rules.settings.llm["support"])
    for row, request in zip(rows, tqdm(settings.requests, desc="word", unit="request", disable=None), strict=True):
        checks = asked.recommend(rules.read(request).specification, top=settings.top).checks
        row |= {"worded": checks.author != "template" and not checks.fallback, "claims": checks.claims}
        row |= {"removed": checks.removed}
        for by_rules, worded, context in model.said:
            sentences += _sentences(by_rules, context, row["request"], "rules", lambda claim: True)
            stands = partial(truthful, context=context, vocabulary=asked.vocabulary, share=share)
            sentences += _sentences(worded, context, row["request"], "model", stands)
        model.said.clear()
    return pd.DataFrame(rows), pd.DataFrame(sentences, columns=SENTENCE)


def _sentences(
    answer: Answer, context: Context, request: int, author: str, stands: Callable[[Claim], bool]
) -> list[dict[str, Any]]:
    """`SENTENCE` of each reason and trade-off of an answer. Its words are counted alone: they may quote a server."""
    return [
        {
            "request": request,
            "author": author,
            "server_id": item.server_id,
            "section": claim.section,
            "cited": len(claim.fields),
            "empty": len(empty(claim, context)),
            "words": len(WORD.findall(claim.text)),
            "stands": stands(claim),
        }
        for item in answer.recommendations
        for claim in (*item.why, *item.tradeoffs)
    ]


def _said(constraints: Mapping[str, Any]) -> str:
    return json.dumps(constraints, sort_keys=True, default=list)
