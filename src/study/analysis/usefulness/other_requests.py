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
from study.advisor.retrieval.names import inside, key
from study.advisor.saved.field_dense import SavedFieldDense
from study.analysis.framework import Context, Tables, analysis
from study.base import paths
from study.base.errors import StudyError, UnavailableError
from study.base.files import read_csv
from study.config.changes import change_settings
from study.config.compose import build_system, load
from study.data.dataset import Dataset, FloatArray, IntArray, relevance_from_lists
from study.data.splits import Split
from study.evaluation import metrics
from study.evaluation.ranking import chunks, tie_order, top_k
from study.evaluation.statistics import mean_interval
from study.evaluation.system import System
from study.tools import collections
from study.tools.queries import QuerySet

Rows = frozenset[int]  # of servers
WRITTEN, LOWER, NOT_THE_TOOL = "as written", "lower case", "word is not the tool"  # forms of navigational queries
SLOT = "{product}"
SETS = {"livemcpbench": "tasks", "mcptools": "atlas"}  # benchmark -> its queries
INSIDE = "_inside"  # a benchmark whose servers are ranked inside Task2MCP's catalogue
SETTINGS = ("livemcpbench", f"livemcpbench{INSIDE}", "mcptools")  # of `transfer`
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

    Returns: columns form (`WRITTEN`, `LOWER` or `NOT_THE_TOOL`), kind (of the product or word), request, targets (rows
        of the servers whose name holds the word).
    """
    names = [key(name) for name in servers["name"]]

    def bearers(word: str) -> Rows:
        words = key(word)
        return frozenset(row for row, name in enumerate(names) if words and inside(words, name))

    about_products = [
        (kind, product, sentence, rows)
        for kind, entry in settings.kinds.items()
        for product in entry["products"]
        if (rows := bearers(product))
        for sentence in entry["sentences"]
    ]
    chosen = np.sort(np.random.default_rng(settings.seed).permutation(len(about_products))[: settings.requests])
    requests = [
        (form, kind, sentence.replace(SLOT, product.lower() if form == LOWER else product), rows)
        for form in (WRITTEN, LOWER)
        for kind, product, sentence, rows in map(about_products.__getitem__, chosen)
    ]
    for kind, entries in settings.not_the_tool.items():
        requests += [(NOT_THE_TOOL, kind, case["text"], rows) for case in entries if (rows := bearers(case["word"]))]
    return pd.DataFrame(requests, columns=["form", "kind", "request", "targets"])


def by_name(kind: str, names: Sequence[str], rows: Sequence[int]) -> pd.DataFrame:
    """Names of servers, whose rows are given, as requests, each once: kind, request, targets (all servers of it)."""
    table = pd.DataFrame({"request": names, "word": [plain(name) for name in names], "targets": rows})
    words = table[table["word"] != ""].groupby("word", sort=False)
    return words.agg({"request": "first", "targets": frozenset}).reset_index(drop=True).assign(kind=kind)


def known_requests(servers: pd.DataFrame) -> pd.DataFrame:
    """Names of servers, names of tools, and requests that were written for one server each: kind, request, targets.

    Raises StudyError: the file names a server that the catalogue lacks.
    """
    path = paths.conf() / "usefulness" / "known_items.csv"
    written, tools = read_csv(path), servers["tools"].reset_index(drop=True).str.split(",").explode().str.strip()
    row = pd.Index(servers["id"]).get_indexer(pd.Index(written["server_id"]))
    if (row < 0).any():
        raise StudyError("no server of the catalogue", file=path, row=int((row < 0).argmax()), column="server_id")
    requests = [
        by_name("server name", servers["name"].tolist(), range(len(servers))),
        by_name("tool name", tools.tolist(), tools.index.tolist()),
        pd.DataFrame({"kind": "request", "request": written["request"], "targets": [frozenset({n}) for n in row]}),
    ]
    return pd.concat(requests, ignore_index=True)


def fill_columns(table: pd.DataFrame) -> pd.DataFrame:
    """The table with every text column that a system may read, empty where it is missing, and an id."""
    missing = {name: "" for name in COLUMNS if name not in table}
    return table.assign(**missing, id=np.arange(len(table)))


def make_unlabelled_dataset(name: str, servers: pd.DataFrame, requests: Sequence[str]) -> Dataset:
    """Requests, the descriptions of its tasks, over a catalogue, as a data set without any label."""
    lists = tuple(np.empty(0, dtype=np.int64) for _ in requests)
    tasks = fill_columns(pd.DataFrame({"description": list(requests)}))
    return Dataset(name, servers, tasks, relevance_from_lists(lists, len(servers)), lists)


def scores(system: System, data: Dataset, *, seed: int) -> FloatArray:
    """What a system without anything to learn from gives every request, shape (n_tasks, n_servers)."""
    nothing, rows = data.relevance, np.arange(data.n_tasks)
    with tempfile.TemporaryDirectory() as folder:
        system.fit(data, Split("cold", nothing, nothing, nothing, cold=True), seed=seed, workdir=Path(folder))
        return np.concatenate([system.score(rows[part]) for part in chunks(rows)])


def first_rows(system: System, servers: pd.DataFrame, requests: Sequence[str], k: int) -> list[list[int]]:
    """Rows of the first `k` servers for each request, `BATCH` of them at a time, ties in the study's order."""
    ranked: list[list[int]] = []
    for start in range(0, len(requests), BATCH):
        part = make_unlabelled_dataset("requests", servers, requests[start : start + BATCH])
        ranked += top_k(scores(system, part, seed=0), k, tie_order(len(servers), 0))[0].tolist()
    return ranked


def recommend_servers(catalogue: Catalogue, requests: Sequence[str], k: int) -> list[list[int]]:
    """Ids of the first servers that `study recommend` names for each request; none where it says that nothing fits."""
    options = Options(k)
    return [
        [item.server.server_id for item in ask(catalogue, request, options).items]
        for request in tqdm(requests, disable=None)
    ]


def first_hits(ranked: Sequence[Sequence[int]], targets: Sequence[Rows]) -> np.ndarray:
    """The rank of the first target, from 1; infinity where none is there. `ranked`: rows, best first."""
    hits = [[row in target for row in line] for line, target in zip(ranked, targets, strict=True)]
    return np.array([line.index(True) + 1 if True in line else np.inf for line in hits])


@analysis("usefulness")
def navigational(study: Context) -> Tables:
    """Does a server of the name in a request come first, where it is the tool and where not?

    By form, and in each form for all requests and then by kind: requests (their number) and first_bears_word (share).
    """
    settings, servers = study.settings(Navigational), study.data.servers
    requests = all_forms(settings, servers)
    if requests.empty:
        raise UnavailableError("no server bears a name that is asked for", fix="name another data set")
    frames = []
    for name in settings.systems:
        ranked = first_rows(build_system(load([f"system={name}"]).system), servers, requests["request"].tolist(), 1)
        table = requests.assign(system=name, bears=first_hits(ranked, requests["targets"].tolist()) == 1)
        for _, rows in table.groupby("form", sort=False):
            both = pd.concat([rows.assign(kind="all"), rows]).groupby(["system", "form", "kind"], sort=False)["bears"]
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
        for kind, requests in kinds:
            answers = [(name, first_rows(system, servers, requests["request"].tolist(), max(DEPTHS)), requests)]
            if name in settings.answering:
                rng, number = np.random.default_rng(settings.seed), min(settings.sample, len(requests))
                few = requests.iloc[np.sort(rng.choice(len(requests), number, replace=False))]
                catalogue = Catalogue.of_dataset("", name, SavedFieldDense("", system, servers, 0), shelf)
                named = recommend_servers(catalogue, few["request"].tolist(), max(DEPTHS))
                answers.append((f"recommend {name}", [ids.get_indexer(line).tolist() for line in named], few))
            for label, ranked, queries in answers:
                rank = first_hits(ranked, queries["targets"].tolist())
                row = {"kind": kind, "system": label, "requests": len(rank)}
                rows.append(row | {"first" if k == 1 else f"first_{k}": float((rank <= k).mean()) for k in DEPTHS})
    return {"known_items": pd.DataFrame(rows)}


def as_dataset(benchmark: str, *, inside: Dataset | None = None) -> tuple[Dataset, sp.csr_matrix, QuerySet]:
    """A tool benchmark (a key of `SETS`) as servers and tasks without labels, behind the servers of the catalogue
    `inside`; the relevant servers (shape (n_queries, n_servers)), which hold a tool that satisfies a label; and the
    queries."""
    loaded = collections.load_collection(benchmark)
    queries, catalog = loaded.queries[SETS[benchmark]], loaded.catalog
    tools = pd.DataFrame([(tool.server, tool.name) for tool in catalog.tools]).groupby(0)[1].agg(", ".join)
    servers = pd.DataFrame([(server.name, server.description) for server in catalog.servers])
    servers = servers.set_axis(["name", "description"], axis=1).assign(tools=tools).fillna("")
    offset = 0
    if inside is not None:
        offset = inside.n_servers
        servers = pd.concat([inside.servers.filter(COLUMNS), servers], ignore_index=True).fillna("")
    relevant = [
        [offset + catalog.tools[tool].server for label in labels for tool in label] for labels in queries.labels
    ]
    lists: tuple[IntArray, ...] = tuple(np.unique(np.array(rows, dtype=np.int64)) for rows in relevant)
    servers = fill_columns(servers)
    return (
        make_unlabelled_dataset(benchmark, servers, queries.texts),
        relevance_from_lists(lists, len(servers)),
        queries,
    )


def build_systems(settings: Transfer) -> dict[str, System]:
    """The systems to ask, by name; `fusion` is the rank fusion of the named systems with equal weights."""
    configs = {name: load([f"system={name}"]).system for name in settings.systems}
    fusion, members = load(["system=rrf"]), {name: load([f"system={name}"]).system.model for name in settings.fusion}
    model = {"members": members, "weights": {}, "_target_": fusion.system.model._target_}
    configs["fusion"] = change_settings(fusion, {"system.model": model}, merge=False).system
    return {name: build_system(config) for name, config in configs.items()}


@analysis("usefulness", slow=True)
def transfer(study: Context) -> Tables:
    """Which servers hold the labelled tools of other people's benchmarks?

    diff is how much better the chosen system is, paired by query (95 % interval, bootstrap over queries).
    """
    settings, rows = study.settings(Transfer), []
    for setting in SETTINGS:
        catalogue = study.data if setting.endswith(INSIDE) else None
        data, relevant, queries = as_dataset(setting.removesuffix(INSIDE), inside=catalogue)
        order, values = tie_order(data.n_servers, settings.seed), {}
        for name, system in build_systems(settings).items():
            ranked, _ = top_k(scores(system, data, seed=settings.seed), 10, order)
            values[name] = metrics.per_task(ranked, relevant, (1, 5, 10))
        for name, frame in values.items():
            row = {"setting": setting, "system": name, "queries": len(queries.ids), **frame[SHOWN].mean().to_dict()}
            lead = values[settings.system][settings.metric] - frame[settings.metric]
            rows.append(row | mean_interval(lead, seed=settings.seed, name="diff", prefix="diff_"))
    return {"transfer": pd.DataFrame(rows)}
