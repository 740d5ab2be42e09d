"""Requests that Task2MCP does not hold, asked of systems that learn from no label; nothing was tuned on them. Servers
must be found by a product's name in a request, by their own name, or by a text that was written for them; of other
people's benchmarks, those that hold the labelled tools."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import scipy.sparse as sp
from tqdm import tqdm

from study.advisor.engine.answer import Options, ask
from study.advisor.engine.catalogue import Catalogue
from study.advisor.engine.facts import Shelf
from study.advisor.engine.request import plain
from study.advisor.retrieval.field_dense import FieldDense
from study.advisor.retrieval.names import inside, key
from study.advisor.saved.field_dense import SavedFieldDense
from study.analysis.framework import Context, Tables, analysis
from study.base import paths
from study.base.errors import StudyError, UnavailableError
from study.base.files import read_csv
from study.config.changes import changed
from study.config.compose import build_system, load
from study.data.dataset import Dataset, FloatArray, IntArray, relevance_from_lists
from study.data.splits import Split
from study.evaluation import metrics, per_task
from study.evaluation.ranking import chunks, tie_order, top_k
from study.evaluation.statistics import mean_interval
from study.evaluation.system import System
from study.tools.collections import published
from study.tools.queries import QuerySet

Rows = frozenset[int]  # of servers
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
DEPTHS = (1, 3, 10)
BATCH = 500  # requests that are scored at a time
SHOWN = ["ndcg@5", "ndcg@10", "recall@10", "hit_rate@1"]
COLUMNS = ("name", "description", "language", "system", "tools", "category", "subcategory", "theme", "url")


@dataclass(frozen=True)
class Navigational:
    """Kinds of products with sentences that ask for one at `SLOT`, and texts with such a word that is not the tool."""

    seed: int
    requests: int
    systems: list[str]
    kinds: dict[str, dict[str, list[str]]]
    not_the_tool: dict[str, list[dict[str, str]]]


@dataclass(frozen=True)
class Transfer:
    """Systems that are asked on the benchmarks, and one that is compared with each of the others."""

    systems: list[str]
    fusion: list[str]
    system: str
    metric: str
    seed: int


@dataclass(frozen=True)
class KnownItems:
    """Systems that are asked; those whose answers in `study recommend` are measured too, on a sample of each kind."""

    systems: list[str]
    answering: list[str]
    sample: int
    seed: int


def all_forms(settings: Navigational, servers: pd.DataFrame) -> pd.DataFrame:
    """Every request that the catalogue can answer, form by form; of those for a product at most `requests`, by seed.

    Returns: columns form (`WRITTEN`, `LOWER` or `NOT_THE_TOOL`), kind (of the product or word), request, wanted (rows
        of the servers whose name holds the word).
    """
    names = [key(name) for name in servers["name"]]

    def bearers(word: str) -> Rows:
        wanted = key(word)
        return frozenset(row for row, name in enumerate(names) if wanted and inside(wanted, name))

    found = [
        (kind, product, sentence, rows)
        for kind, entry in settings.kinds.items()
        for product in entry["products"]
        if (rows := bearers(product))
        for sentence in entry["sentences"]
    ]
    chosen = np.random.default_rng(settings.seed).permutation(len(found))[: settings.requests]
    asked = [
        (form, kind, sentence.replace(SLOT, product.lower() if form == LOWER else product), rows)
        for form in (WRITTEN, LOWER)
        for kind, product, sentence, rows in (found[place] for place in sorted(chosen))
    ]
    for kind, entries in settings.not_the_tool.items():
        asked += [(NOT_THE_TOOL, kind, own["text"], rows) for own in entries if (rows := bearers(own["word"]))]
    return pd.DataFrame(asked, columns=["form", "kind", "request", "wanted"])


def by_name(kind: str, names: Sequence[str], rows: Sequence[int]) -> pd.DataFrame:
    """Names of servers, whose rows are given, as requests, each once: kind, request, wanted (all servers of it)."""
    table = pd.DataFrame({"request": names, "word": [plain(name) for name in names], "wanted": rows})
    words = table[table["word"] != ""].groupby("word", sort=False)
    return words.agg({"request": "first", "wanted": frozenset}).reset_index(drop=True).assign(kind=kind)


def known_requests(servers: pd.DataFrame) -> pd.DataFrame:
    """Names of servers, names of tools, and requests that were written for one server each: kind, request, wanted.

    Raises StudyError: the file names a server that the catalogue lacks.
    """
    path = paths.conf() / "usefulness" / "known_items.csv"
    written, tools = read_csv(path), servers["tools"].str.split(",").explode().str.strip()
    row = pd.Index(servers["id"]).get_indexer(pd.Index(written["server_id"]))
    if (row < 0).any():
        raise StudyError("no server of the catalogue", file=path, row=int((row < 0).argmax()), column="server_id")
    place = pd.Series(range(len(servers)), index=servers.index)
    return pd.concat(
        [
            by_name("server name", servers["name"].tolist(), place.tolist()),
            by_name("tool name", tools.tolist(), place.loc[tools.index].tolist()),
            pd.DataFrame({"kind": "request", "request": written["request"], "wanted": [frozenset({n}) for n in row]}),
        ],
        ignore_index=True,
    )


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


def first_rows(system: System, servers: pd.DataFrame, requests: Sequence[str], k: int) -> list[list[int]]:
    """Rows of the first `k` servers for each request, `BATCH` of them at a time, ties in the study's order."""
    found: list[list[int]] = []
    for start in range(0, len(requests), BATCH):
        part = unlabelled("requests", servers, requests[start : start + BATCH])
        found += top_k(scores(system, part, seed=0), k, tie_order(len(servers), 0))[0].tolist()
    return found


def recommended(catalogue: Catalogue, requests: Sequence[str], k: int) -> list[list[int]]:
    """Ids of the first servers that `study recommend` names for each request; none where it says that nothing fits."""
    options = Options(k)
    return [
        [item.server.server_id for item in ask(catalogue, request, options).items]
        for request in tqdm(requests, disable=None)
    ]


def places(ranked: Sequence[Sequence[int]], wanted: Sequence[Rows]) -> np.ndarray:
    """The place of the first wanted server, from 1; infinity where none is there. `ranked`: rows, best first."""
    found = [[row in own for row in line] for line, own in zip(ranked, wanted, strict=True)]
    return np.array([line.index(True) + 1 if True in line else np.inf for line in found])


@analysis("usefulness")
def navigational(study: Context) -> Tables:
    """Does a server of the name in a request come first, where it is the tool and where not?

    By form, and in each form for all requests and then by kind: requests (their number) and first_bears_word (share).
    """
    settings, servers = study.settings(Navigational), study.data.servers
    asked = all_forms(settings, servers)
    if asked.empty:
        raise UnavailableError("no server bears a name that is asked for", fix="name another data set")
    frames = []
    for name in settings.systems:
        system = build_system(load([f"system={name}"]).system)
        ranked = first_rows(system, servers, asked["request"].tolist(), 1)
        table = asked.assign(system=name, bears=places(ranked, asked["wanted"].tolist()) == 1)
        for _, own in table.groupby("form", sort=False):
            both = pd.concat([own.assign(kind="all"), own]).groupby(["system", "form", "kind"], sort=False)["bears"]
            frames.append(both.agg(requests="size", first_bears_word="mean").reset_index())
    return {"navigational_queries": pd.concat(frames, ignore_index=True)}


@analysis("usefulness", slow=True)
def known_items(study: Context) -> Tables:
    """Is a server found by its name, the name of one of its tools, or a request that was written for it?

    Columns kind, system, requests (their number), and the shares first, first_3 and first_10. What `study recommend`
    answers with a system, to at most `sample` requests of a kind, is named ``recommend`` and the system.
    """
    settings, servers, rows = study.settings(KnownItems), study.data.servers, []
    kinds = list(known_requests(servers).groupby("kind", sort=False))
    shelf, ids = Shelf(None, servers), pd.Index(servers["id"])

    for name in settings.systems:
        system = build_system(load([f"system={name}"]).system)
        for kind, asked in kinds:
            ranked = first_rows(system, servers, asked["request"].tolist(), max(DEPTHS))
            answers = [(name, ranked, asked)]
            if name in settings.answering:
                assert isinstance(system, FieldDense)
                rng, number = np.random.default_rng(settings.seed), min(settings.sample, len(asked))
                chosen = rng.choice(len(asked), number, replace=False)
                few, model = asked.iloc[np.sort(chosen)], SavedFieldDense("", system, servers, 0)
                catalogue = Catalogue.of_dataset("", name, model, shelf)
                named = recommended(catalogue, few["request"].tolist(), max(DEPTHS))
                answers.append((f"recommend {name}", [ids.get_indexer(line).tolist() for line in named], few))
            for shown, found, own in answers:
                place = places(found, own["wanted"].tolist())
                row = {"kind": kind, "system": shown, "requests": len(place)}
                rows.append(row | {"first" if k == 1 else f"first_{k}": float((place <= k).mean()) for k in DEPTHS})
    return {"known_items": pd.DataFrame(rows)}


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


@analysis("usefulness", slow=True)
def transfer(study: Context) -> Tables:
    """Which servers hold the labelled tools of other people's benchmarks?

    diff is how much better the chosen system is, paired by query (95 % interval, bootstrap over queries).
    """
    settings, rows = study.settings(Transfer), []
    for setting, (benchmark, within) in SETTINGS.items():
        data, relevant, queries = as_dataset(benchmark, inside=study.data if within else None)
        order, values = tie_order(data.n_servers, settings.seed), {}
        for name, system in build_systems(settings).items():
            ranked, _ = top_k(scores(system, data, seed=settings.seed), max(KS), order)
            values[name] = per_task.table(queries.ids, settings.seed, metrics.per_task(ranked, relevant, KS))
        for name, frame in values.items():
            row = {"setting": setting, "system": name, "queries": len(frame), **frame[SHOWN].mean().to_dict()}
            lead = values[settings.system][settings.metric] - frame[settings.metric]
            rows.append(row | mean_interval(lead, seed=settings.seed, name="diff", prefix="diff_"))
    return {"transfer": pd.DataFrame(rows)}
