"""Everything that is measured of MCP-Flow: calls on three splits, the leak, the synthesis, the servers."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import kendalltau
from tqdm import tqdm

from study import paths
from study.data.dataset import IntArray
from study.encoders import endpoint as embedding
from study.encoders.endpoint import Embedder
from study.files import write_csv
from study.tools import results
from study.tools.catalogues import entities
from study.tools.flow import bench as benches
from study.tools.flow import filtration, floors, report, servers, splits, synthesis
from study.tools.flow.bench import Bench, Trained
from study.tools.flow.calls import Call, measures
from study.tools.flow.samples import Sample, as_queries, key
from study.tools.flow.selector import Exemplars
from study.tools.flow.settings import Flow, Pool, System, load
from study.tools.flow.slot_filler import Copier

SPLITS = ("seen", "unseen_tool", "unseen_server")
# Systems that learn nothing rank the pools of candidates; real and synthetic instructions should order them alike.
JUDGES = ("random", "bm25", "dense", "tool_name", "server_name")


def run() -> None:
    """All experiments and their tables, except those that `report` makes of the runs."""
    flow = load()
    embedder = embedding.configured()
    bench = benches.prepare(flow, embedder)
    target = paths.tables(report.CATALOGUE)
    made, counts = synthetic(bench, flow)
    kept = filtered(bench, made, counts, flow, embedder)
    write_csv(target / "flow_leak.csv", leak(bench, flow))
    write_csv(target / "flow_agreement.csv", agreement(bench, kept, flow))
    write_csv(target / "flow_servers.csv", servers.compare(bench, flow.servers, flow.copying))
    write_csv(target / "flow_floors.csv", floors.run(bench, kept.samples, flow))
    entities.run()
    run_calls(bench, kept, flow)


def synthetic(bench: Bench, flow: Flow) -> tuple[list[Sample], dict[str, int]]:
    """Instructions by templates for tools of servers without public ones."""
    taken = {sample.server for sample in bench.samples}
    free = [
        row for row, tool in enumerate(bench.catalog.tools) if tool.server not in taken and tool.description.strip()
    ]
    seed = flow.seeds[0]
    drawn = np.random.default_rng(seed).permutation(free)[: flow.synthesis.tools].tolist()
    how = flow.synthesis
    writer = synthesis.Templates(how.openings, how.rewrites, how.values, seed, how.quoted)
    return synthesis.synthesise(bench.catalog, drawn, writer, number=how.per_tool, depth=how.depth)


class Sifted(NamedTuple):
    """What the filters did.

    Attributes:
        whole: the bench of everything that was made.
        kept: the samples that passed.
        rules: the table of the rules.
    """

    whole: Bench
    kept: list[Sample]
    rules: pd.DataFrame


def sift(bench: Bench, made: list[Sample], flow: Flow, embedder: Embedder) -> Sifted:
    """Filter instructions that the study made for tools of the bench's catalogue."""
    whole = benches.assemble(bench.catalog, made, flow, embedder, tools=bench.tools)
    kept, rules = filtration.filtrate(
        made, bench.catalog, whole.known.dense, whole.known.words, flow.filtration, flow.seeds[0]
    )
    return Sifted(whole, kept, rules)


def filtered(bench: Bench, made: list[Sample], counts: Mapping[str, int], flow: Flow, embedder: Embedder) -> Bench:
    """The bench of what passes the filters; writes flow_synthesis.csv, flow_filtration.csv and flow_diversity.csv."""
    target = paths.tables(report.CATALOGUE)
    whole, kept, rules = sift(bench, made, flow, embedder)
    _, real = filtration.filtrate(
        bench.samples, bench.catalog, bench.known.dense, bench.known.words, flow.filtration, flow.seeds[0]
    )
    steps = [{"step": name, "instructions": count} for name, count in counts.items()]
    write_csv(target / "flow_synthesis.csv", pd.DataFrame([*steps, {"step": "kept", "instructions": len(kept)}]))
    write_csv(target / "flow_filtration.csv", pd.concat([rules.assign(of="synthetic"), real.assign(of="public")]))
    sifted = benches.assemble(bench.catalog, kept, flow, embedder, tools=bench.tools)
    lines = [
        {
            "instructions": name,
            "n": len(one.samples),
            "tools": len({sample.tool for sample in one.samples}),
            "mean_cosine_distance": filtration.diversity(one.known.vectors),
        }
        for name, one in (("public", bench), ("synthetic", whole), ("synthetic, filtered", sifted))
    ]
    write_csv(target / "flow_diversity.csv", pd.DataFrame(lines))
    return sifted


def leak(bench: Bench, flow: Flow) -> pd.DataFrame:
    """What siblings on both sides of a random split give away: the nearest exemplar's call, copied word for word.

    Returns: columns split, tool, param, ast (shares of the instructions). ``leave_one_out`` may use all other
    instructions, ``leave_call_out`` those of other calls.
    """
    every = np.arange(len(bench.samples))
    exemplars = Exemplars(bench.known.vectors, bench.samples, flow.exemplars)
    similarity = exemplars.similarity(bench.known.vectors)
    np.fill_diagonal(similarity, -np.inf)
    apart = np.where(exemplars.groups[:, None] == exemplars.groups[None], -np.inf, similarity)
    lines = [
        copied(bench, name, every, every, near)
        for name, near in (("leave_one_out", similarity), ("leave_call_out", apart))
    ]
    for name in splits.NAMES:
        parts = [
            copied(bench, name, fold.train, fold.test, similarity[np.ix_(fold.test, fold.train)])
            for fold in splits.folds(bench.samples, name, flow.splits, flow.seeds[0])
        ]
        lines.append(pd.concat(parts))
    return pd.concat([part.groupby("split", as_index=False).mean(numeric_only=True) for part in lines])


def copied(bench: Bench, name: str, train: IntArray, test: IntArray, similarity: np.ndarray) -> pd.DataFrame:
    """Measures of the nearest training call, one row per test instruction.

    Args:
        similarity: shape (len(test), len(train)).
    """
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


def run_calls(bench: Bench, kept: Bench, flow: Flow) -> None:
    """Every system on every split and pool; a split whose files are all there is not run again."""
    copiers = [Copier(bench.catalog, flow.copying) for _ in range(3)]
    apart = benches.train(kept, np.arange(len(kept.samples)), flow, flow.seeds[0], copiers[0])
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
            for fold in splits.folds(bench.samples, split, flow.splits, seed):
                trained = benches.train(bench, fold.train, flow, seed, copiers[1])
                joint = copiers[2].fit(trained.exemplars.samples, kept.samples)
                learned = {"real": trained, "both": replace(trained, copier=joint), "synthetic": apart}
                for name, pool in pools.items():
                    for system, table in turn(bench, fold.test, shown[name], pool, flow, learned, seed).items():
                        answers.setdefault((name, system), []).append(table.assign(seed=seed))
            progress.update()
        seconds = round(time.perf_counter() - started, 1)
        for (name, system), parts in answers.items():
            save(bench, split, name, system, pd.concat(parts, ignore_index=True), flow, seconds)


def finished(split: str, bench: Bench, flow: Flow) -> bool:
    """Whether every protocol of a split holds every configured system, made with these settings from these inputs."""
    inputs = results.sources(bench.catalog, as_queries(bench.samples))
    wanted = [
        (pool, name)
        for pool, own in flow.pools.items()
        for name, system in flow.systems.items()
        if own.size is not None or system.whole
    ]
    for pool, name in wanted:
        if not (report.folder("records") / f"{split}_{pool}" / f"{name}.json").exists():
            return False
        kept = results.read_record(report.CATALOGUE, f"{split}_{pool}", name)
        now = inputs | {"config": config(pool, name, flow)}
        # Through JSON, which knows no tuples.
        if {entry: kept.get(entry) for entry in now} != json.loads(json.dumps(now)):
            return False
    return True


def config(pool: str, system: str, flow: Flow) -> dict[str, object]:
    """Every setting that the answers of a system under a pool depend on."""
    own = {
        "system": asdict(flow.systems[system]),
        "pool": asdict(flow.pools[pool]),
        "splits": asdict(flow.splits),
        "training": asdict(flow.training),
        "copying": asdict(flow.copying),
        "exemplars": flow.exemplars,
        "document": flow.document,
        "limit": flow.limit,
        "seeds": list(flow.seeds),
    }
    if flow.systems[system].train != "real":
        own |= {"synthesis": asdict(flow.synthesis), "filtration": asdict(flow.filtration)}
    return own


def turn(
    bench: Bench,
    rows: IntArray,
    shown: list[IntArray],
    pool: Pool,
    flow: Flow,
    learned: Mapping[str, Trained],
    seed: int,
) -> dict[str, pd.DataFrame]:
    """One fold's answers under one pool, by system.

    Args:
        learned: what was learned, by the `train` of a system.
    """
    found: dict[str, pd.DataFrame] = {}
    for source, trained in learned.items():
        own = {
            name: system
            for name, system in flow.systems.items()
            if system.train == source and (pool.size is not None or system.whole)
        }
        found |= benches.answer(bench, rows, shown, own, trained, seed)
    return found


def save(bench: Bench, split: str, pool: str, system: str, answers: pd.DataFrame, flow: Flow, seconds: float) -> None:
    """Keep one system's answers with tool and server of every instruction."""
    owner = {sample.id: sample for sample in bench.samples}
    asked = [owner[name] for name in answers["task_id"]]
    answers = answers.assign(
        unit=[key(bench.catalog, sample.tool) for sample in asked],
        server=[bench.catalog.servers[sample.server].id for sample in asked],
    )[["task_id", "seed", "unit", "server", "rank", *report.MEASURES]].sort_values(
        ["seed", "task_id"], ignore_index=True
    )
    chosen = flow.pools[pool]
    size = chosen.size or len(bench.catalog.tools)
    facts: dict[str, object] = {
        "instructions": int(answers["task_id"].nunique()),
        "left_out": bench.left_out,
        "tools": len(bench.catalog.tools),
        "seconds_for_all_systems_of_the_split": seconds,
        "config": config(pool, system, flow),
    }
    report.save(f"{split}_{pool}", system, answers, size, (bench.catalog, as_queries(bench.samples)), facts)
