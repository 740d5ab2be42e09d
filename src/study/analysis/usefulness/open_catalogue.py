"""The open catalogue as a data set to be judged: requests of developers, and what methods of search answer to them.
A server's id is its row in the catalogue's version in force; what is committed holds ids and hashes alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from study.advisor.catalog.store import read, required
from study.advisor.encoders.sentence import WITHOUT_TORCH, without_torch
from study.advisor.engine.answer import FIRST
from study.advisor.engine.catalogue import Catalogue
from study.advisor.engine.facts import Shelf
from study.advisor.saved import open_catalogue as open_servers
from study.advisor.saved.field_dense import SavedFieldDense
from study.analysis.framework import Context, Tables, analysis, load_settings
from study.analysis.usefulness.answering import OPEN, Requests
from study.analysis.usefulness.other_requests import recommended, scores, unlabelled
from study.analysis.usefulness.rivals import METHODS, Rows
from study.base import paths
from study.base.errors import StudyError
from study.base.files import write_csv, write_json, write_parquet
from study.config.compose import build_system, load
from study.data.dataset import PREPARED, Dataset
from study.evaluation.ranking import tie_order, top_k
from study.evaluation.records import record
from study.evaluation.statistics import compare_all, mean_interval
from study.judging import store
from study.judging.collection import Collection
from study.judging.evaluate import per_task

SEED = 0  # of a run: only the order of equal scores depends on it
KEYS = ["id", "sha256_description", "sha256_tools"]


@dataclass(frozen=True)
class Open:
    """Methods of search over the open catalogue, and how many of their servers are judged."""

    systems: list[str]
    answering: list[str]
    products: list[str]
    reference: str
    depth: int
    control: int
    seed: int


def version_of(servers: pd.DataFrame) -> str:
    """SHA-256 over ids and texts of the catalogue's servers, in their order."""
    return hashlib.sha256(servers[KEYS].to_csv(index=False, lineterminator="\n").encode()).hexdigest()


def all_runs(data: Dataset, servers: pd.DataFrame, chosen: Open) -> dict[str, pd.DataFrame]:
    """The first `depth` servers of every method, by its name; those as `study recommend` answers, which may say that
    nothing fits, are ``recommend`` and the system's name."""
    requests, shelf, runs = data.tasks["description"].tolist(), Shelf.here(servers), dict[str, pd.DataFrame]()
    answers: dict[str, Rows] = {name: METHODS[name](requests, servers, chosen.depth) for name in chosen.products}
    for name in chosen.systems:
        system = build_system(load([f"system={name}"]).system)
        ranked, _ = top_k(scores(system, data, seed=SEED), chosen.depth, tie_order(data.n_servers, SEED))
        answers[name] = [line[line >= 0].tolist() for line in ranked]
        if name in chosen.answering:
            model = SavedFieldDense(name, system, data.servers, SEED)
            catalogue = Catalogue.of_table(OPEN, name, model, servers, shelf)
            answers[f"recommend {name}"] = recommended(catalogue, requests, chosen.depth)
    for name, rows in answers.items():
        run = pd.DataFrame({"task_id": data.tasks["id"], "seed": SEED, "server_id": rows}).explode("server_id").dropna()
        run = run.assign(rank=run.groupby("task_id").cumcount() + 1)
        runs[name] = run[store.RUN].astype(np.int64).reset_index(drop=True)
    return runs


def pooled(runs: Mapping[str, pd.DataFrame], data: Dataset, chosen: Open) -> pd.DataFrame:
    """Every pair to be judged, with where it comes from: the first `depth` of each method, and random servers as a
    control. Returns: columns task_id, server_id, control (0 or 1), sources (names joined by ";")."""
    named = [run.loc[run["rank"] <= chosen.depth, store.PAIR].assign(source=name) for name, run in sorted(runs.items())]
    ids = data.servers["id"].to_numpy()
    for task in data.tasks["id"]:  # the same whatever the methods answer
        servers = np.random.default_rng([chosen.seed, 1, task]).choice(ids, chosen.control, replace=False)
        named.append(pd.DataFrame({"task_id": task, "server_id": servers, "source": ""}))
    pairs = pd.concat(named, ignore_index=True).drop_duplicates()
    grouped = pairs.assign(control=(pairs["source"] == "").astype(int)).groupby(store.PAIR)
    sources = grouped["source"].agg(lambda names: ";".join(filter(None, names)))
    return pd.DataFrame({"control": grouped["control"].max(), "sources": sources}).reset_index()


def in_rounds(pairs: pd.DataFrame, judged: pd.DataFrame, seed: int) -> pd.DataFrame:
    """The pool: pairs judged before keep their round, the others form the next one, in random order per request.
    Returns: columns task_id, server_id, order (from 1 within request and round), round."""
    pool = pairs[store.PAIR].merge(judged[[*store.PAIR, "round"]], on=store.PAIR, how="outer")
    pool["round"] = pool["round"].fillna(judged["round"].max() + 1 if len(judged) else 1).astype(int)
    ordered = []
    for _, own in pool.sort_values(store.PAIR).groupby(["round", "task_id"]):
        key = own[["round", "task_id"]].iloc[0].tolist()
        ordered.append(own.assign(order=np.random.default_rng([seed, 2, *key]).permutation(len(own)) + 1))
    return pd.concat(ordered).sort_values(["task_id", "round", "order"], ignore_index=True)[store.COLUMNS["pool"]]


def make_pool() -> Path:
    """Ask every method, and write topics, pooled runs, pool, provenance, and the hashes of the servers in the pool.

    Raises StudyError: nothing was synced, or pairs were judged over other servers or texts.
    """
    chosen, servers = load_settings(Open), open_servers.living(required(), (OPEN,))
    requests = Requests.read().served
    data, about = unlabelled(OPEN, open_servers.as_dataset(servers), requests), store.folder(OPEN) / "pools.json"
    data = replace(data, tasks=data.tasks.assign(id=np.arange(1, len(requests) + 1)))
    version, judged = version_of(servers), store.read_table_if_there(OPEN, "judgements")
    if len(judged) and json.loads(about.read_text(encoding="utf-8"))["catalogue"] != version:
        fix = "sync the version whose hash the file has"
        raise StudyError("pairs were judged over another version of the catalogue", file=about, fix=fix)
    for name, table in (("servers", data.servers), ("tasks", data.tasks)):
        write_parquet(paths.prepared(OPEN) / f"{name}.parquet", table[list(PREPARED[name])])
    labels = pd.DataFrame({column: np.empty(0, dtype=np.int64) for column in PREPARED["labels"]})
    write_parquet(paths.prepared(OPEN) / "labels.parquet", labels)
    topics = pd.DataFrame({"task_id": data.tasks["id"], "part": "test", "subcategory": "request"})
    write_csv(store.file(OPEN, "topics"), topics)
    runs = all_runs(data, servers, chosen)
    every = pd.concat([run.assign(system=name) for name, run in sorted(runs.items())], ignore_index=True)
    write_csv(store.runs_file(OPEN), every[["system", *store.RUN]])
    pairs = pooled(runs, data, chosen)
    write_csv(store.file(OPEN, "pool"), in_rounds(pairs, judged, chosen.seed))
    write_csv(store.file(OPEN, "provenance"), pairs)
    named = servers.loc[np.unique(pairs["server_id"]), KEYS]
    write_csv(store.folder(OPEN) / "servers.csv", named.rename_axis("server_id").reset_index())
    records = read(required(), "records")
    sources = records.loc[records["gone"] == "", "source"].value_counts().to_dict()  # at its last sync
    facts = {"catalogue": version, "servers": len(servers), "sources": sources}
    write_json(about, record(dataset=OPEN, requests=len(requests), **facts))
    return store.file(OPEN, "pool")


def judged(chosen: Open) -> pd.DataFrame:
    """What each method is worth over the requests for which some judged server is useful; an unanswered one counts 0.

    Returns: one row per method, best first: system, n, answered (share of the requests), ndcg@10 with its 95 % interval
        over requests, first (share whose first server is useful), precision@5, unjudged@10, and `ndcg@10` less that of
        the reference with interval and p (randomisation test, Holm over the methods).
    """
    collection = Collection.load(OPEN)
    useful = np.asarray((collection.grades > 0).any(axis=1))
    topics = pd.Index(collection.topics["task_id"].to_numpy()[useful], name="task_id")
    frames, rows = {}, []
    for name, run in store.read_runs(OPEN).items():
        own = per_task(collection, run).set_index("task_id")
        frame = own.reindex(topics).fillna({"seed": SEED}).fillna(0.0)
        frames[name] = frame.reset_index()[["task_id", "seed", "ndcg@10"]]
        row = {"system": name, "n": len(frame), "answered": topics.isin(own.index).mean()}
        row |= mean_interval(frame["ndcg@10"], seed=chosen.seed, name="ndcg@10")
        row["first"] = (collection.look_up(run)[2][:, 0] > 0).sum() / len(frame)
        rows.append(row | {measure: frame[measure].mean() for measure in ("precision@5", "unjudged@10")})
    against = compare_all(frames, chosen.reference, ["ndcg@10"], chosen.seed).set_index("system")
    table = pd.DataFrame(rows).set_index("system")
    table = table.join(against[["diff", "diff_ci_low", "diff_ci_high"]])
    table["p_holm"] = against["randomisation_p_holm"]
    return table.sort_values("ndcg@10", ascending=False, kind="stable").reset_index()


def tokens(reference: str) -> pd.DataFrame:
    """How much a client reads: all tools that the catalogue lists, and those of the first five answers to a request.

    Tokens are those of MiniLM's vocabulary, over names and descriptions as JSON; schemas are not in the catalogue.
    Returns: what, servers, tools, tokens; the answers' row has means over requests.
    """
    servers = open_servers.living(required(), (OPEN,))
    about = json.loads((store.folder(OPEN) / "pools.json").read_text(encoding="utf-8"))
    if about["catalogue"] != version_of(servers):
        raise StudyError("another catalogue was judged", fix="sync the version whose hash pools.json has")
    tokenizer = deepcopy(without_torch(WITHOUT_TORCH["minilm"]).tokenizer)  # the encoder goes on with its own
    tokenizer.no_truncation()
    lists = servers["tools"].map(json.loads)
    counted = pd.DataFrame({"servers": lists.map(bool).astype(int), "tools": lists.map(len)})
    counted["tokens"] = [len(tokenizer.encode(json.dumps(own)).ids) if own else 0 for own in lists]
    first = store.read_runs(OPEN)[reference].query("rank <= @FIRST")
    shown = counted.iloc[first["server_id"]].groupby(first["task_id"].to_numpy()).sum()
    rows = pd.DataFrame([counted.sum(), shown.mean()])
    rows.insert(0, "what", ["all servers that list tools", f"first {FIRST} answers of {reference}"])
    return rows


@analysis("usefulness", name="open", slow=True)
def open_catalogue(study: Context) -> Tables:
    """What are methods of search over the open catalogue worth, and how many tokens do they save?"""
    settings = study.settings(Open)
    return {"open": judged(settings), "open_tokens": tokens(settings.reference)}
