"""Everything that is measured of MCP-Flow: calls on three splits, the leak, the synthesis, the servers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import kendalltau
from tqdm import tqdm

from study.advisor.encoders import choose as embedding
from study.advisor.encoders.choose import Embedder
from study.data.dataset import IntArray
from study.evaluation import per_task
from study.tools import results
from study.tools.flow import bench as benches
from study.tools.flow import language_model, samples, synthesis
from study.tools.flow.abstention import abstention_table
from study.tools.flow.bench import Bench
from study.tools.flow.samples import Call, Sample, as_queries, measures, tool_key
from study.tools.flow.selector import Exemplars
from study.tools.flow.settings import Flow, Pool, System, flow_settings
from study.tools.flow.slot_filler import SlotFiller
from study.tools.flow.tables import COLLECTION, MEASURES, compare_servers, trivial_table
from study.tools.language_model import Kept
from study.tools.results import Made, Run, Table

SPLITS = ("seen", "unseen_tool", "unseen_server")
# Systems that learn nothing rank the pools of candidates; real and synthetic instructions should order them alike.
JUDGES = ("random", "bm25", "dense", "tool_name", "server_name")


def flow_parts() -> Iterator[Made]:
    """All experiments and their tables, except those that the report makes of the runs."""
    flow, embedder = flow_settings(), embedding.configured_embedder()
    bench = benches.prepare(flow, embedder)
    made, counts = synthetic(bench, flow)
    kept, tables = filtered(bench, made, counts, flow, embedder)
    yield tables
    yield [
        Table("flow_leak", leak(bench, flow)),
        Table("flow_agreement", agreement(bench, kept, flow)),
        Table("flow_servers", compare_servers(bench, flow.servers, flow.copying)),
        Table("flow_trivial", trivial_table(bench, kept.samples, flow)),
        Table("flow_abstention", abstention_table(bench, kept.samples, flow)),
    ]
    yield from call_parts(bench, kept, flow)


def model_parts(kept: Kept) -> Iterator[Run | Table]:
    """What a language model does: calls, and instructions for the tools of `unlabelled`."""
    flow = flow_settings()
    bench = benches.prepare(flow)
    yield from language_model.call_runs(bench, flow, kept)
    yield from language_model.synthesis_tables(bench, unlabelled(bench, flow), flow, kept)


def unlabelled(bench: Bench, flow: Flow) -> list[int]:
    """Drawn tools (rows) of servers without public instructions."""
    taken = {sample.server for sample in bench.samples}
    free = [
        row for row, tool in enumerate(bench.catalog.tools) if tool.server not in taken and tool.description.strip()
    ]
    drawn: list[int] = np.random.default_rng(flow.seeds[0]).permutation(free)[: flow.synthesis.tools].tolist()
    return drawn


def synthetic(bench: Bench, flow: Flow) -> tuple[list[Sample], dict[str, int]]:
    """Instructions by templates for the tools of `unlabelled`."""
    how, tools = flow.synthesis, unlabelled(bench, flow)
    writer = synthesis.Templates(how, flow.seeds[0])
    return synthesis.synthesise(bench.catalog, tools, writer, number=how.per_tool, depth=how.depth)


def filtrate(bench: Bench, flow: Flow) -> tuple[list[Sample], pd.DataFrame]:
    """The samples of a bench that pass the filters, and the table of the rules."""
    known, seed = bench.known, flow.seeds[0]
    return synthesis.filtrate(bench.samples, bench.catalog, known.dense, known.words, flow.filtration, seed)


def filtered(
    bench: Bench, made: list[Sample], counts: Mapping[str, int], flow: Flow, embedder: Embedder
) -> tuple[Bench, list[Table]]:
    """The bench of what passes the filters; and flow_synthesis.csv, flow_filtration.csv and flow_diversity.csv."""
    whole = benches.assemble(bench.catalog, made, flow, embedder, tools=bench.tools)
    (kept, rules), (_, real) = filtrate(whole, flow), filtrate(bench, flow)
    steps = pd.DataFrame({"step": [*counts, "kept"], "instructions": [*counts.values(), len(kept)]})
    sifted = benches.assemble(bench.catalog, kept, flow, embedder, tools=bench.tools)
    lines = []
    for name, one in (("public", bench), ("synthetic", whole), ("synthetic, filtered", sifted)):
        line = {"instructions": name, "n": len(one.samples), "tools": len({sample.tool for sample in one.samples})}
        lines.append(line | {"mean_cosine_distance": synthesis.diversity(one.known.vectors)})
    both = pd.concat([rules.assign(of="synthetic"), real.assign(of="public")])
    tables = {"flow_synthesis": steps, "flow_filtration": both, "flow_diversity": pd.DataFrame(lines)}
    return sifted, [Table(name, frame) for name, frame in tables.items()]


def leak(bench: Bench, flow: Flow) -> pd.DataFrame:
    """What siblings on both sides of a random split give away: the nearest exemplar's call, copied word for word.
    ``leave_one_out`` may use all other instructions, ``leave_call_out`` those of other calls."""
    every = np.arange(len(bench.samples))
    exemplars = Exemplars(bench.known.vectors, bench.samples, flow.exemplars)
    similarity = exemplars.similarity(bench.known.vectors)
    np.fill_diagonal(similarity, -np.inf)
    apart = np.where(exemplars.groups[:, None] == exemplars.groups[None], -np.inf, similarity)
    lines = [copied(bench, "leave_one_out", every, every, similarity)]
    lines.append(copied(bench, "leave_call_out", every, every, apart))
    for name in samples.SPLIT_NAMES:
        parts = [
            copied(bench, name, fold.train, fold.test, similarity[np.ix_(fold.test, fold.train)])
            for fold in samples.folds(bench.samples, name, flow.splits, flow.seeds[0])
        ]
        lines.append(pd.concat(parts))
    return pd.concat([part.groupby("split", as_index=False).mean(numeric_only=True) for part in lines])


def copied(bench: Bench, name: str, train: IntArray, test: IntArray, similarity: np.ndarray) -> pd.DataFrame:
    """Measures of the nearest training call, one row per test instruction; `similarity`: (len(test), len(train))."""
    rows = []
    for line, row in enumerate(test):
        near, own = bench.samples[train[similarity[line].argmax()]], bench.samples[row]
        rows.append({"split": name, **measures(Call(near.tool, near.arguments), own.tool, own.arguments)})
    return pd.DataFrame(rows)


def agreement(bench: Bench, kept: Bench, flow: Flow) -> pd.DataFrame:
    """Tool accuracy of untrained systems on public and on synthetic instructions, and Kendall's tau of their order."""
    lines = []
    for pool_name, pool in flow.pools.items():
        if pool.source != "catalogue" or pool.size is None:
            continue
        shares: dict[str, list[float]] = {}
        for name, one in (("public", bench), ("synthetic", kept)):
            shown = benches.candidates(one, pool, flow.seeds[0])
            systems = {judge: System(judge, "required") for judge in JUDGES}
            found = benches.ranks(one, shown, systems, flow.seeds[0])
            units = pd.Series([sample.tool for sample in one.samples])
            shares[name] = [float((ranks == 1).groupby(units).mean().mean()) for ranks in found.values()]
        tau = kendalltau(shares["public"], shares["synthetic"]).statistic
        for judge, public, own in zip(JUDGES, shares["public"], shares["synthetic"], strict=True):
            lines.append({"pool": pool_name, "system": judge, "public": public, "synthetic": own, "kendall_tau": tau})
    return pd.DataFrame(lines)


def call_parts(bench: Bench, kept: Bench, flow: Flow) -> Iterator[list[Run]]:
    """Every system on every split and pool, split by split; one whose runs are all there is not run again."""
    fillers = [SlotFiller(bench.catalog, flow.copying) for _ in range(3)]
    apart = benches.train(kept, np.arange(len(kept.samples)), flow, flow.seeds[0], fillers[0])
    progress = tqdm(total=len(SPLITS) * len(flow.seeds), desc="calls", delay=3)
    for split in SPLITS:
        if finished(split, bench, flow):
            progress.update(len(flow.seeds))
            continue
        answers: dict[tuple[str, str], list[pd.DataFrame]] = {}
        started = time.perf_counter()
        for place, seed in enumerate(flow.seeds):
            pools = {name: pool for name, pool in flow.pools.items() if place < pool.seeds}
            shown = {name: benches.candidates(bench, pool, seed) for name, pool in pools.items()}
            for fold in samples.folds(bench.samples, split, flow.splits, seed):
                trained = benches.train(bench, fold.train, flow, seed, fillers[1])
                joint = fillers[2].fit(trained.exemplars.samples, kept.samples)
                learned = {"real": trained, "both": replace(trained, slot_filler=joint), "synthetic": apart}
                for (name, pool), (source, known) in product(pools.items(), learned.items()):
                    own = {at: system for at, system in asked(pool, flow).items() if system.train == source}
                    found = benches.answer(bench, fold.test, shown[name], own, known, seed)
                    for system, table in found.items():
                        answers.setdefault((name, system), []).append(table.assign(seed=seed))
            progress.update()
        facts = {"seconds_for_all_systems_of_the_split": round(time.perf_counter() - started, 1)}
        yield [
            named_run(bench, split, name, system, pd.concat(parts, ignore_index=True), flow, facts)
            for (name, system), parts in answers.items()
        ]


def asked(pool: Pool, flow: Flow) -> dict[str, System]:
    """The systems that are asked with a pool."""
    return {name: system for name, system in flow.systems.items() if pool.size is not None or system.whole}


def finished(split: str, bench: Bench, flow: Flow) -> bool:
    """Whether every protocol of a split holds every configured system, made with these settings from these inputs."""
    inputs, records = results.sources(bench.catalog, as_queries(bench.samples)), results.read_records(COLLECTION)
    for pool in flow.pools:
        for name in asked(flow.pools[pool], flow):
            kept = records.get((f"{split}_{pool}", name), {})
            now = inputs | {"config": config(pool, name, flow)}
            # Through JSON, which knows no tuples.
            if {entry: kept.get(entry) for entry in now} != json.loads(json.dumps(now)):
                return False
    return True


def config(pool: str, system: str, flow: Flow) -> dict[str, object]:
    """Every setting that the answers of a system under a pool depend on."""
    own: dict[str, object] = {"system": asdict(flow.systems[system]), "pool": asdict(flow.pools[pool])}
    own |= {name: asdict(getattr(flow, name)) for name in ("splits", "training", "copying")}
    own |= {"exemplars": flow.exemplars, "document": flow.document, "limit": flow.limit, "seeds": list(flow.seeds)}
    if flow.systems[system].train != "real":
        own |= {"synthesis": asdict(flow.synthesis), "filtration": asdict(flow.filtration)}
    return own


def named_run(
    bench: Bench, split: str, pool: str, system: str, answers: pd.DataFrame, flow: Flow, facts: Mapping[str, float]
) -> Run:
    """One system's answers with tool and server of every instruction."""
    owner = {sample.id: sample for sample in bench.samples}
    asked = [owner[name] for name in answers["task_id"]]
    answers = answers.assign(
        unit=[tool_key(bench.catalog, sample.tool) for sample in asked],
        server=[bench.catalog.servers[sample.server].id for sample in asked],
    )[["task_id", "seed", "unit", "server", "rank", *MEASURES]].sort_values(["seed", "task_id"], ignore_index=True)
    counts = {"instructions": int(answers["task_id"].nunique()), "left_out": bench.left_out}
    size, rank = flow.pools[pool].size or len(bench.catalog.tools), answers["rank"]
    ranking = pd.DataFrame({"hit_rate@1": rank == 1, "hit_rate@5": rank <= 5, f"mrr@{size}": 1 / rank}).astype(float)
    table = per_task.check(pd.concat([answers[per_task.KEYS], ranking], axis=1))
    whole: dict[str, Any] = {"candidates": size} | counts | {"tools": len(bench.catalog.tools), **facts}
    whole |= {"config": config(pool, system, flow)}
    inputs = bench.catalog, as_queries(bench.samples)
    return Run(f"{split}_{pool}", system, table, inputs, whole, answers.drop(columns="rank"))
