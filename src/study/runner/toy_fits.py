"""A fit of any configured system on toy data, in a second: at the smallest size, with stand-ins for text encoders and
language models, and stopped once on the way where it keeps checkpoints."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from omegaconf import DictConfig, OmegaConf

from study.advisor.encoders import mpnet, sentence
from study.advisor.llm.client import Client
from study.advisor.llm.settings import CLIENT
from study.base import paths
from study.base.stand_in import StandIn
from study.config.changes import change_settings, with_tuned_values
from study.config.compose import build_system, choices, load, plain
from study.data.dataset import Dataset
from study.data.splits import Split
from study.runner.identity import normal_form
from study.runner.processes import limit_threads

SEED = 1
# Settings by name, wherever they stand in a model: training can be stopped after each epoch, and parts are used that
# the smallest sizes leave out.
CHANGES: dict[str, Any] = {"checkpoint_seconds": 0, "hard_pool": 14, "contrasted": 16, "tags_every": 2}
# Fewer codes than servers: a code for each leaves nothing for the next level, whose codes rounding then decides.
CHANGES |= {"codes": 8}
# A setting that tells how a training is scheduled -> settings beside it: one that can stop early does.
SCHEDULES = {
    "patience": {"patience": 1, "evaluate_every": 1, "epochs": 30},
    "evaluations": {"epochs": 2},
    "checkpoint_every": {"checkpoint_every": 1, "epochs": 2},
}


class Case(NamedTuple):
    """A system under a protocol."""

    system: str
    protocol: str


def compose_small(system: str) -> DictConfig:
    """The settings of a system at the smallest size, with the values that were chosen for it on Task2MCP."""
    config = load(["dataset=task2mcp", "profile=smoke", f"system={system}"])
    return with_tuned_values(config) if (paths.tuned("task2mcp", system) / "best.yaml").exists() else config


def starts_program(system: str) -> bool:
    """Whether a fit of the system starts a program of its own."""
    return bool(compose_small(system).system.subprocess)


def cases(systems: Iterable[str] | None = None) -> list[Case]:
    """Every system of ``conf/system`` under every protocol that it applies to. A system that starts a program of its
    own for each fit has one case alone, since this takes ten seconds."""
    return [
        Case(name, protocol)
        for name in systems or choices("system")
        for protocol in compose_small(name).system.protocols[: 1 if starts_program(name) else None]
    ]


def model_settings(case: Case) -> dict[str, Any]:
    """The constructor's arguments of a case's system in normal form, with `CHANGES` and `SCHEDULES`."""
    config = change_settings(compose_small(case.system), {"protocol.name": case.protocol})
    return normal_form(_shorten(plain(config.system)["model"]))  # type: ignore[no-any-return]


def _shorten(value: Any) -> Any:
    if isinstance(value, list):
        return [_shorten(item) for item in value]
    if not isinstance(value, dict):
        return value
    short = dict(CHANGES)
    for key, schedule in SCHEDULES.items():
        short |= schedule if value.get(key) is not None else {}
    return {key: short.get(key, _shorten(item)) for key, item in value.items()}


def fit(
    case: Case, model: Mapping[str, Any], data: Dataset, split: Split, work: Path, *, stop: bool
) -> tuple[Any, bool]:
    """A fitted system, with constructor's arguments as of `model_settings`. `stop`: once, at its second checkpoint, as
    by a kill. Returns: the system, and whether it was stopped, and went on."""
    limit_threads(1)
    work.mkdir(parents=True)
    settings, count = OmegaConf.create({"name": case.system, "model": dict(model)}), 0

    def stopping(path: Path) -> None:
        """Let no file come that is the second one below `work`."""
        nonlocal count
        count += work in path.parents
        if count == 2:
            raise _Stopped

    try:
        _audit_renames()
        with _RENAMED.within(stopping) if stop else nullcontext():
            (system := build_system(settings)).fit(data, split, seed=SEED, workdir=work)
        return system, False
    except _Stopped:
        (system := build_system(settings)).fit(data, split, seed=SEED, workdir=work)
        return system, True


# Within a block: what is told of every path before a file is put there, and may stop that.
_RENAMED = StandIn[Callable[[Path], None]]()


@cache
def _audit_renames() -> None:
    """Let the interpreter tell `_RENAMED` of `os.replace` and `os.rename`, whoever calls them, from now on."""

    def told(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "os.rename" and (watch := _RENAMED()) is not None:
            watch(Path(os.fsdecode(arguments[1])))

    sys.addaudithook(told)


class _Stopped(BaseException):
    """A training was stopped; no `except Exception` takes it for a failure."""


@contextmanager
def stand_ins(cache_folder: Path) -> Iterator[set[str]]:
    """Within the block, texts are encoded by their words, language models answer by hash, the cache is a folder, and
    systems are silent. Yields the names of the encoders that are used (of `study.runner.identity.ENCODERS`)."""
    used = set[str]()

    def encoder(name: str, dimension: int) -> sentence.Embed:
        def embed(texts: list[str]) -> np.ndarray:
            used.add(name)
            return _embed_texts(texts, dimension)

        return embed

    with (
        paths.CACHE.within(cache_folder),
        sentence.EMBED.within(encoder("minilm", sentence.DIMENSION)),
        mpnet.EMBED.within(encoder("mpnet", mpnet.DIMENSION)),
        CLIENT.within(_ByHash),
    ):
        logging.disable(logging.WARNING)
        try:
            yield used
        finally:
            logging.disable(logging.NOTSET)


def _embed_texts(texts: list[str], dimension: int) -> np.ndarray:
    """Unit vectors of texts, shape (len(texts), dimension): the sum of a seeded normal vector for each word."""
    words = [re.findall(r"\w+", text.lower()) or ["nothing"] for text in texts]
    sums = np.array([sum(_word(word, dimension) for word in each) for each in words])
    return np.asarray(sums / np.linalg.norm(sums, axis=1, keepdims=True), dtype=np.float32)


@cache
def _word(word: str, dimension: int) -> np.ndarray:
    return np.random.default_rng(zlib.crc32(word.encode())).standard_normal(dimension)


class _ByHash(Client):
    """A client without an endpoint."""

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """A reply that the text of a request decides: a grade, or the first ten candidates in an order with one
        exchanged for a candidate below them."""
        text = json.dumps(body["messages"], sort_keys=True)
        if "logprobs" in body:
            chance = zlib.crc32(text.encode()) % 1000 / 1000
            shares = {"0": 1.01 - chance, "2": chance + 0.01}
            top = [{"token": digit, "logprob": float(np.log(share))} for digit, share in shares.items()]
            return {"choices": [{"message": {"content": "2"}, "logprobs": {"content": [{"top_logprobs": top}]}}]}
        prompt = body["messages"][-1]["content"]
        task = int(re.findall(r'<task>\n\{"id": (\d+)', prompt)[0])
        candidates = list(map(int, re.findall(r'^\{"id": (\d+)', prompt.split("<candidates>")[1], re.MULTILINE)))
        rng = np.random.default_rng(zlib.crc32(text.encode()))
        servers = [candidates[rank] for rank in rng.permutation([*range(9), 9 + rng.integers(0, 5)])]
        content = json.dumps({"task": task, "servers": servers, "explanation": ""})
        return {"choices": [{"message": {"content": content}}]}
