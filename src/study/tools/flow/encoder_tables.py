"""flow_encoder.csv: the fine-tuned sentence encoder beside MiniLM on unseen servers, LiveMCPBench and Atlas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict

import numpy as np
import pandas as pd

from study import paths
from study.encoders import sentence
from study.encoders.endpoint import Embedder
from study.evaluation.significance import compare_all
from study.tools import results
from study.tools.catalogues.catalog import QuerySet, ToolCatalog
from study.tools.catalogues.published import load_collection
from study.tools.discovery.experiments import ten_servers
from study.tools.discovery.index import Settings, ToolIndex, discovery_settings
from study.tools.discovery.texts import documents
from study.tools.flow import bench as benches
from study.tools.flow import samples
from study.tools.flow.bench import Bench
from study.tools.flow.contrastive import Tuning
from study.tools.flow.selector import Evidence
from study.tools.flow.settings import Flow, System, flow_settings
from study.tools.results import Table

COLLECTION = "mcpflow"
POOL = "labelled10"
PLAIN = "minilm"
METRIC = "recall@5"  # of the two other collections, as declared in conf/tools/discovery.yaml


def encoder_tables() -> Iterator[Table]:
    """Train (or read what was trained), and compare."""
    flow, loaded = flow_settings(), load_collection(COLLECTION)
    found, _ = samples.load_samples(paths.raw(COLLECTION), loaded)
    written = documents(loaded.catalog, flow.document, flow.limit)
    tuning = Tuning(loaded.catalog, found, written, flow.contrastive, flow.seeds[0])
    shares = {PLAIN: 0.0} | {f"{PLAIN}_tuned_{share:g}": share for share in flow.contrastive.mixes}
    whole: dict[str, Embedder] = {name: tuning.encoder(None, share) for name, share in shares.items()}
    parts = [unseen_servers(tuning, shares, flow)]
    for collection, protocol, catalog, queries in searched():
        parts.append(compare_searches(collection, protocol, catalog, queries, whole))
    facts: dict[str, object] = {"config": asdict(flow.contrastive) | {"document": flow.document, "limit": flow.limit}}
    facts |= {"seed": flow.seeds[0], "encoder": sentence.model_version(PLAIN)}
    facts |= results.sources(loaded.catalog, samples.as_queries(found))
    yield Table("flow_encoder", pd.concat(parts, ignore_index=True), facts)


def searched() -> Iterator[tuple[str, str, ToolCatalog, QuerySet]]:
    """Collection, protocol, catalogue and queries of the other collections."""
    live, other = load_collection("livemcpbench"), load_collection("mcptools")
    yield "livemcpbench", "query", live.catalog, live.queries["tasks"]
    atlas = other.queries["atlas"]
    yield "mcptools", "query_ten", *ten_servers(other.catalog, atlas, discovery_settings().ten_servers)
    yield "mcptools", "query", other.catalog, atlas


def unseen_servers(tuning: Tuning, shares: Mapping[str, float], flow: Flow) -> pd.DataFrame:
    """The share of instructions whose tool is first of ten with instructions, compared over tools. An encoder of a mix
    ranks for the servers of a group that it was not trained on."""
    found, labelled = tuning.samples, sorted({sample.tool for sample in tuning.samples})
    frames = {}
    for name, share in shares.items():
        dense = np.zeros((len(found), len(tuning.documents)), dtype=np.float32)
        for group in range(flow.contrastive.groups):
            rows, encoder = np.flatnonzero(tuning.group_of == group).tolist(), tuning.encoder(group, share)
            asked = encoder.encode([found[row].text for row in rows])
            dense[np.ix_(np.array(rows), np.array(labelled))] = (
                asked @ encoder.encode([tuning.documents[tool] for tool in labelled]).T
            )
        known = Evidence(dense[:, :0], dense, dense, dense, dense)
        bench = Bench(tuning.catalog, tuple(found), tuple(tuning.documents), dense[:0], known, 0)
        hits = []
        for seed in flow.seeds[: flow.pools[POOL].seeds]:
            shown = benches.candidates(bench, flow.pools[POOL], seed)
            hits.append(benches.ranks(bench, shown, {name: System("dense", "required")}, seed)[name] == 1)
        means = pd.Series(np.mean(hits, axis=0)).groupby([sample.tool for sample in found]).mean()
        frames[name] = pd.DataFrame(
            {"task_id": means.index.astype(str), "seed": results.SEED, "hit_rate@1": means.to_numpy()}
        )
    table = compare_all(frames, PLAIN, ["hit_rate@1"], results.SEED)
    return table.assign(collection=COLLECTION, protocol=f"unseen_server_{POOL}", unit="tool")


def compare_searches(
    collection: str, protocol: str, catalog: ToolCatalog, queries: QuerySet, encoders: Mapping[str, Embedder]
) -> pd.DataFrame:
    """Dense search with every encoder, as the system ``discovery_name_desc`` searches."""
    runs = {}
    for name, encoder in encoders.items():
        index = ToolIndex(catalog, Settings(document="name_desc"), encoder)
        runs[name] = results.ranking_run(protocol, name, (catalog, queries), index.scores, index.order).table
    table = results.compare_systems(collection, protocol, runs, PLAIN, METRIC)
    return table.assign(collection=collection, unit="query")
