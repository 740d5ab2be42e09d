"""Requests that Task2MCP does not hold, asked of systems that learn from no label; nothing was tuned on them.

Navigational queries: does a server of the name in a request come first, where it is the tool and where not? Benchmarks:
the tasks of LiveMCPBench over its own 70 servers and over these inside Task2MCP's catalogue, and the steps of MCP-Atlas
over the servers of MCP-tools; which servers hold the labelled tools?
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import scipy.sparse as sp

from study.config.changes import changed
from study.config.compose import build_system, load
from study.data import dataset as datasets
from study.data.dataset import Dataset, FloatArray, IntArray, relevance_from_lists
from study.data.splits import Split
from study.errors import StudyError
from study.evaluation import metrics, per_task
from study.evaluation.ranking import chunks, tie_order, top_k
from study.evaluation.statistics import mean_interval
from study.evaluation.system import System
from study.tools.catalogues import published
from study.tools.catalogues.catalog import QuerySet
from study.usefulness.products import Product, inside, key

# The forms of the navigational queries, as the table names them.
WRITTEN, LOWER, NOT_THE_TOOL = "as written", "lower case", "word is not the tool"
SLOT = "{product}"
SETS = {"livemcpbench": "tasks", "mcptools": "atlas"}
# setting -> the benchmark, and whether its servers are ranked inside Task2MCP's catalogue
SETTINGS = {
    "livemcpbench": ("livemcpbench", False),
    "livemcpbench_inside": ("livemcpbench", True),
    "mcptools": ("mcptools", False),
}
KS = (1, 5, 10)
SHOWN = ["ndcg@5", "ndcg@10", "recall@10", "hit_rate@1"]
COLUMNS = ("name", "description", "language", "system", "tools", "category", "subcategory", "theme", "url")


@dataclass(frozen=True)
class Kind:
    """Products, and sentences with `SLOT` that ask for one of them."""

    products: list[str]
    sentences: list[str]


@dataclass(frozen=True)
class Sentence:
    """A request with a word that names no tool in it."""

    word: str
    text: str


@dataclass(frozen=True)
class Navigational:
    """``conf/usefulness/navigational.yaml``, where every key is explained."""

    seed: int
    requests: int
    top1: float
    systems: list[str]
    kinds: dict[str, Kind]
    not_the_tool: dict[str, list[Sentence]]

    def __post_init__(self) -> None:
        """Refuse requests that would ask something else than they seem to."""
        for kind, entry in self.kinds.items():
            for sentence in entry.sentences:
                if SLOT not in sentence:
                    fix = f"write {SLOT} in it"
                    raise StudyError(f"no product is asked for: {sentence}", column=f"kinds.{kind}", fix=fix)
        seen: set[str] = set()
        for kind, entries in self.not_the_tool.items():
            for number, own in enumerate(entries):
                column = f"not_the_tool.{kind}.{number}"
                if not key(own.word) or not re.search(rf"(?<!\w){re.escape(own.word)}(?!\w)", own.text):
                    problem = f"{own.word!r} is no name in: {own.text}"
                    raise StudyError(problem, column=column, fix="write it as the text does")
                if own.text in seen:
                    raise StudyError(f"asked twice: {own.text}", column=column, fix="remove one of them")
                seen.add(own.text)


@dataclass(frozen=True)
class Transfer:
    """``conf/usefulness/transfer.yaml``, where every key is explained."""

    systems: list[str]
    fusion: list[str]
    system: str
    metric: str
    seed: int


@dataclass(frozen=True)
class Query:
    """One navigational query: its form (`WRITTEN`, `LOWER` or `NOT_THE_TOOL`) and the kind of its product or word."""

    form: str
    kind: str
    word: str  # the product, or a word that is not the tool, as the request writes it
    sentence: str  # with `SLOT` where a product is named
    bearers: tuple[int, ...]  # rows of the servers whose name holds the word

    @property
    def text(self) -> str:
        """The request as it is asked."""
        return self.sentence.replace(SLOT, self.word)


def all_forms(settings: Navigational, servers: pd.DataFrame) -> list[Query]:
    """Every request that the catalogue can answer, form by form; of those for a product at most `requests`, by seed."""
    names = [key(name) for name in servers["name"]]
    found = [
        Query(WRITTEN, kind, product, sentence, bearers)
        for kind, entry in settings.kinds.items()
        for product in entry.products
        if (bearers := _bearers(names, product))
        for sentence in entry.sentences
    ]
    chosen = np.random.default_rng(settings.seed).permutation(len(found))[: settings.requests]
    written = [found[place] for place in sorted(chosen)]
    lower = [replace(query, form=LOWER, word=query.word.lower()) for query in written]
    others = [
        Query(NOT_THE_TOOL, kind, entry.word, entry.text, bearers)
        for kind, entries in settings.not_the_tool.items()
        for entry in entries
        if (bearers := _bearers(names, entry.word))
    ]
    return written + lower + others


def _bearers(names: Sequence[Product], word: str) -> tuple[int, ...]:
    """Rows of the names in which the words of `word` follow one another."""
    wanted = key(word)
    return tuple(row for row, name in enumerate(names) if wanted and inside(wanted, name))


def filled(table: pd.DataFrame) -> pd.DataFrame:
    """The table with every text column that a system may read, empty where it is missing, and an id."""
    missing = {name: "" for name in COLUMNS if name not in table}
    return table.assign(**missing, id=np.arange(len(table)))


def unlabelled(name: str, servers: pd.DataFrame, requests: Sequence[str]) -> Dataset:
    """Requests, the descriptions of its tasks, over a catalogue, as a data set without any label."""
    lists = tuple(np.empty(0, dtype=np.int64) for _ in requests)
    tasks = filled(pd.DataFrame({"description": list(requests)}))
    return Dataset(name, servers, tasks, relevance_from_lists(lists, len(servers)), lists)


def scores(system: System, data: Dataset, *, seed: int) -> FloatArray:
    """What a system without anything to learn from gives every request, shape (n_tasks, n_servers)."""
    nothing, rows = data.relevance, np.arange(data.n_tasks)
    with tempfile.TemporaryDirectory() as folder:
        system.fit(data, Split("cold", nothing, nothing, nothing, cold=True), seed=seed, workdir=Path(folder))
        return np.concatenate([system.score(rows[part]) for part in chunks(rows)])


def first_bears_word(scores: FloatArray, queries: Sequence[Query], order: np.ndarray) -> np.ndarray:
    """Whether the first server of each request bears its word, ties in the given order; shape (n,), bool.
    `scores` has shape (n, n_servers); `order` is that of `study.evaluation.ranking.tie_order`."""
    first = order[scores[:, order].argmax(axis=1)]
    return np.array([int(row) in query.bearers for row, query in zip(first, queries, strict=True)], dtype=bool)


def shares(bears: np.ndarray, queries: Sequence[Query]) -> pd.DataFrame:
    """How often the first server bears the word, by form, and in each form for all requests and then by kind.
    Returns: columns form, kind, requests (their number) and first_bears_word (the share)."""
    facts = {"form": [own.form for own in queries], "kind": [own.kind for own in queries], "bears": bears}
    found = []
    for form, own in pd.DataFrame(facts).groupby("form", sort=False):
        kinds = pd.concat([own.assign(kind="all"), own]).groupby("kind", sort=False)["bears"]
        table = kinds.agg(requests="size", first_bears_word="mean").reset_index()
        found.append(table.assign(form=form))
    return pd.concat(found, ignore_index=True)[["form", "kind", "requests", "first_bears_word"]]


def navigational_table(settings: Navigational, data: Dataset) -> pd.DataFrame:
    """Every system's shares: the columns of `shares` behind the column system."""
    queries, order = all_forms(settings, data.servers), tie_order(data.n_servers, 0)
    asked = unlabelled("navigational", data.servers, [query.text for query in queries])
    found = []
    for name in settings.systems:
        bears = first_bears_word(scores(build_system(load([f"system={name}"]).system), asked, seed=0), queries, order)
        found.append(shares(bears, queries).assign(system=name))
    return pd.concat(found, ignore_index=True)[["system", "form", "kind", "requests", "first_bears_word"]]


def as_dataset(benchmark: str, *, inside: Dataset | None = None) -> tuple[Dataset, sp.csr_matrix, QuerySet]:
    """A tool benchmark (a key of `SETS`) as servers (name, description, names of the tools) and tasks.

    `inside` is a catalogue whose servers are put in front of the benchmark's own. Returns: the data set (no training
    labels), the relevant servers (shape (n_queries, n_servers): every server that holds a tool which satisfies a
    label), and the queries.
    """
    loaded = published.load_collection(benchmark)
    queries, catalog = loaded.queries[SETS[benchmark]], loaded.catalog
    tools: list[list[str]] = [[] for _ in catalog.servers]
    for tool in catalog.tools:
        tools[tool.server].append(tool.name)
    rows = [
        (server.name, server.description, ", ".join(own)) for server, own in zip(catalog.servers, tools, strict=True)
    ]
    servers, offset = filled(pd.DataFrame(rows, columns=["name", "description", "tools"])), 0
    if inside is not None:
        offset = inside.n_servers
        servers = pd.concat([inside.servers[servers.columns.intersection(inside.servers.columns)], servers])
        servers = filled(servers.reset_index(drop=True).fillna(""))
    wanted = [[offset + catalog.tools[tool].server for label in own for tool in label] for own in queries.labels]
    lists: tuple[IntArray, ...] = tuple(np.unique(np.array(own, dtype=np.int64)) for own in wanted)
    return unlabelled(benchmark, servers, queries.texts), relevance_from_lists(lists, len(servers)), queries


def build_systems(settings: Transfer) -> dict[str, System]:
    """The systems to ask, by name; `fusion` is the rank fusion of the named systems with equal weights."""
    models = {name: load([f"system={name}"]).system for name in dict.fromkeys([*settings.systems, *settings.fusion])}
    fusion = load(["system=rrf"])
    members = {name: models[name].model for name in settings.fusion}
    model = {"members": members, "weights": {}, "_target_": fusion.system.model._target_}
    fused = changed(fusion, {"system.model": model}, merge=False).system
    return {name: build_system(models[name]) for name in settings.systems} | {"fusion": build_system(fused)}


def transfer_table(settings: Transfer) -> pd.DataFrame:
    """Every setting and system: columns setting, system, queries, those of `SHOWN`, diff, diff_ci_low, diff_ci_high.
    diff is how much better the chosen system is, paired by query (95 % interval, bootstrap over queries)."""
    catalogue, seed, rows = datasets.load("task2mcp"), settings.seed, []
    for setting, (benchmark, within) in SETTINGS.items():
        data, relevant, queries = as_dataset(benchmark, inside=catalogue if within else None)
        order, values = tie_order(data.n_servers, seed), {}
        for name, system in build_systems(settings).items():
            ranked, _ = top_k(scores(system, data, seed=seed), max(KS), order)
            values[name] = per_task.table(queries.ids, seed, metrics.per_task(ranked, relevant, KS))
        reference = values[settings.system][settings.metric]
        for name, frame in values.items():
            row = {"setting": setting, "system": name, "queries": len(frame), **frame[SHOWN].mean().to_dict()}
            lead = reference - frame[settings.metric]
            rows.append(row | mean_interval(lead, seed=seed, name="diff", prefix="diff_"))
    return pd.DataFrame(rows)
