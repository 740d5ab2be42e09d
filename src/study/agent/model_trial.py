"""What a language model does for the agent over written requests: how it reads them, and what becomes of its words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
from tqdm import tqdm

from study import paths
from study.agent.agent import Agent
from study.agent.model import Model
from study.agent.settings import ModelTrial, read_conf
from study.data.dataset import load
from study.errors import StudyError
from study.evaluation.records import record
from study.files import write_csv, write_json
from study.reranking.endpoint import endpoint_settings


def measure(dataset: str) -> Path:
    """Read and word every request of ``conf/agent/model_trial.yaml``; write ``agent_model.csv`` with its record.

    All requests are read first, so that an engine that keeps the prompt's beginning reads the vocabulary once.
    """
    settings = read_conf(ModelTrial)
    client = endpoint_settings(settings.endpoint).client(paths.cache() / "llm" / "replies" / "agent.jsonl")
    model = Model(client, {"model": settings.model, "tokens": settings.tokens})
    rules = Agent(load(dataset))
    table = trial(rules, Agent(rules.data, settings=rules.settings, model=model), settings)
    if not client.usage.asked and not client.usage.replayed:
        problem = "no reply of a model is recorded here"
        raise StudyError(problem, file=client.cassette, fix="T2M_LLM_MODE=record study llm agent (an hour)")
    target = paths.tables(dataset) / "agent_model.csv"
    write_csv(target, table)
    usage = {"models": sorted(client.usage.models), "requests": client.usage.asked, "replayed": client.usage.replayed}
    usage |= {name: getattr(client.usage, name) for name in ("prompt_tokens", "completion_tokens")}
    facts = record(dataset=dataset, settings=asdict(settings), retriever=rules.retriever.name, **usage)
    write_json(paths.results(dataset) / "records" / "agent_model.json", facts)
    return target


def trial(rules: Agent, asked: Agent, settings: ModelTrial) -> pd.DataFrame:
    """One row per request. `rules`: an agent without, `asked`: one with a language model, over the same servers.

    Returns: columns request (from 1); rules and model, the constraints that each states, as JSON; read, whether the
        model's reading was usable; same, whether it states the same constraints as the rules'; stated and agreed,
        constraints that the rules find and that both state alike; added, constraints that the model alone states;
        dropped, its values outside the vocabulary; worded, whether its answer took the place of the template's; claims,
        its sentences; and removed, those without support.
    """
    rows: list[dict[str, Any]] = []
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
    for row, request in zip(rows, tqdm(settings.requests, desc="word", unit="request", disable=None), strict=True):
        checks = asked.recommend(rules.read(request).specification, top=settings.top).checks
        row |= {"worded": checks.author != "template" and not checks.fallback, "claims": checks.claims}
        row |= {"removed": checks.removed}
    return pd.DataFrame(rows)


def _said(constraints: Mapping[str, Any]) -> str:
    return json.dumps(constraints, sort_keys=True, default=list)
