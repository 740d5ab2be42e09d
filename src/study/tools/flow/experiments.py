"""Everything that is measured of MCP-Flow: calls on three splits, the leak, the synthesis, the servers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product

import numpy as np
import pandas as pd
from scipy.stats import kendalltau
from tqdm import tqdm

from study.advisor.retrieval.documents import ToolCatalog
from study.advisor.retrieval.texts import definition_tokens
from study.base import paths
from study.base.errors import StudyError
from study.base.files import read_csv, write_csv
from study.evaluation import per_task
from study.evaluation.statistics import compare_all, mean_interval
from study.tools import results
from study.tools.collections import api_calls, load_collection, same_value
from study.tools.flow import bench as benches
from study.tools.flow import synthesis
from study.tools.flow.bench import Bench
from study.tools.flow.samples import (
    COLLECTION,
    MEASURES,
    SPLIT_NAMES,
    Call,
    Sample,
    as_queries,
    folds,
    load_samples,
    measures,
    server_groups,
    tool_key,
)
from study.tools.flow.settings import Copying, Flow, Pool, System, flow_settings
from study.tools.flow.slot_filler import SlotFiller
from study.tools.mcp_zero import query
from study.tools.results import Made, Run, Table

SPLITS = ("seen", "unseen_tool", "unseen_server")
# Systems that learn nothing rank the pools of candidates; real and synthetic instructions should order them alike.
JUDGES = ("random", "bm25", "dense", "tool_name", "server_name")


def flow_parts() -> Iterator[Made]:
    """All experiments and their tables, except those that the report makes of the runs."""
    flow = flow_settings()
    bench = benches.prepare(flow)
    instructions, counts = synthetic(bench, flow)
    synthetic_bench, tables = filtered(bench, instructions, counts, flow)
    yield tables
    yield [
        Table("flow_leak", leak(bench, flow)),
        Table("flow_agreement", agreement(bench, synthetic_bench, flow)),
        Table("flow_servers", compare_servers(bench, flow.servers, flow.copying)),
        Table("flow_trivial", trivial_table(bench, synthetic_bench.samples, flow)),
        Table("flow_abstention", abstention_table(bench, synthetic_bench.samples, flow)),
    ]
    yield from call_parts(bench, synthetic_bench, flow)


def unlabelled(bench: Bench, flow: Flow) -> list[int]:
    """Sampled tools (rows) of servers without public instructions."""
    taken, tools = {sample.server for sample in bench.samples}, bench.catalog.tools
    free = [row for row, tool in enumerate(tools) if tool.server not in taken and tool.description.strip()]
    sampled: list[int] = np.random.default_rng(flow.seeds[0]).permutation(free)[: flow.synthesis.tools].tolist()
    return sampled


def synthetic(bench: Bench, flow: Flow) -> tuple[list[Sample], dict[str, int]]:
    """Instructions by templates for the tools of `unlabelled`."""
    how = flow.synthesis
    writer = synthesis.Templates(how, flow.seeds[0])
    return synthesis.synthesise(bench.catalog, unlabelled(bench, flow), writer, number=how.per_tool, depth=how.depth)


def filtrate(bench: Bench, flow: Flow) -> tuple[list[Sample], pd.DataFrame]:
    """The samples of a bench that pass the filters, and the table of the rules."""
    evidence, samples, bounds = bench.evidence, bench.samples, flow.filtration
    tools = np.array([sample.tool for sample in samples], dtype=np.int64)
    similarity = evidence.dense[np.arange(len(samples)), tools]
    points = np.array([synthesis.quality(s.text, bench.catalog.tools[s.tool].name, s.arguments) for s in samples])
    invoked = synthesis.invoked([evidence.dense, evidence.words], tools, bounds.candidates, flow.seeds[0])
    passed = np.stack([similarity <= bounds.similarity, points >= bounds.quality, invoked])
    table = pd.DataFrame({"rule": ["similarity", "quality", "invocation"]})
    table["bound"] = [bounds.similarity, bounds.quality, bounds.candidates]
    means = [float(values.mean()) for values in (similarity, points, invoked)]
    table = table.join(pd.DataFrame(synthesis.removals(passed))).assign(mean=means)
    return [samples[row] for row in np.flatnonzero(passed.all(axis=0))], table


def filtered(
    bench: Bench, instructions: list[Sample], counts: Mapping[str, int], flow: Flow
) -> tuple[Bench, list[Table]]:
    """The bench of what passes the filters; and flow_synthesis.csv, flow_filtration.csv and flow_diversity.csv."""
    whole = benches.assemble(bench.catalog, instructions, flow, tools=bench.tools)
    (passing, rules), (_, real) = filtrate(whole, flow), filtrate(bench, flow)
    sifted = benches.assemble(bench.catalog, passing, flow, tools=bench.tools)
    benches_of = {"public": bench, "synthetic": whole, "synthetic, filtered": sifted}
    lines = [
        (name, len(one.samples), len({call.tool for call in one.samples}), synthesis.diversity(one.evidence.vectors))
        for name, one in benches_of.items()
    ]
    tables = {
        "flow_synthesis": pd.DataFrame({"step": [*counts, "kept"], "instructions": [*counts.values(), len(passing)]}),
        "flow_filtration": pd.concat([rules.assign(of="synthetic"), real.assign(of="public")]),
        "flow_diversity": pd.DataFrame(lines, columns=["instructions", "n", "tools", "mean_cosine_distance"]),
    }
    return sifted, [Table(name, frame) for name, frame in tables.items()]


def leak(bench: Bench, flow: Flow) -> pd.DataFrame:
    """What siblings on both sides of a random split give away: the nearest exemplar's call, copied word for word; means
    over test instructions. ``leave_one_out`` may use all other instructions, ``leave_call_out`` those of other
    calls."""
    every = np.arange(len(bench.samples))
    vectors, groups = bench.evidence.vectors, np.array([sample.group for sample in bench.samples], dtype=object)
    similarity = vectors @ vectors.T
    np.fill_diagonal(similarity, -np.inf)
    apart = np.where(groups[:, None] == groups[None], -np.inf, similarity)
    turns = [("leave_one_out", every, every, similarity), ("leave_call_out", every, every, apart)]
    for name in SPLIT_NAMES:
        for train, test in folds(bench.samples, name, flow.splits, flow.seeds[0]):
            turns.append((name, train, test, similarity[np.ix_(test, train)]))
    rows = []
    for name, train, test, cosines in turns:
        for row, near in zip(test, train[cosines.argmax(axis=1)], strict=True):
            call = Call(bench.samples[near].tool, bench.samples[near].arguments)
            rows.append({"split": name, **measures(call, bench.samples[row])})
    return pd.DataFrame(rows).groupby("split", as_index=False, sort=False).mean(numeric_only=True)


def agreement(bench: Bench, synthetic_bench: Bench, flow: Flow) -> pd.DataFrame:
    """Tool accuracy of untrained systems on public and on synthetic instructions, means over tools, and Kendall's tau
    of their order: how far made instructions judge systems as real ones do."""
    tables, nothing = [], benches.Exemplars(bench.evidence.vectors[:0], [], 0)
    for name, pool in flow.pools.items():
        if pool.source != "catalogue" or pool.size is None:
            continue
        shares = {}
        for title, judged in (("public", bench), ("synthetic", synthetic_bench)):
            rng, hits = np.random.default_rng(flow.seeds[0]), list[list[bool]]()
            for row, offered in enumerate(benches.candidates(judged, pool, flow.seeds[0])):
                none, at = np.zeros((1, 0), dtype=np.float32), np.array([row])
                features = benches.features(judged.evidence, at, offered[None], nothing, none)
                fits = [benches.scores(judge, features, none[0], rng)[0] for judge in JUDGES]
                hits.append([bool(offered[fit.argmax()] == judged.samples[row].tool) for fit in fits])
            units = [sample.tool for sample in judged.samples]
            shares[title] = pd.DataFrame(hits, columns=[*JUDGES]).groupby(units).mean().mean()
        table = pd.DataFrame(shares).rename_axis("system").reset_index()
        table.insert(0, "pool", name)
        tables.append(table.assign(kendall_tau=kendalltau(table["public"], table["synthetic"]).statistic))
    return pd.concat(tables)


def trivial_table(bench: Bench, more: Sequence[Sample], flow: Flow) -> pd.DataFrame:
    """How far arguments come when the right tool is given: a floor for the measures Param and AST. Further calls with
    public arguments are those of MCPToolBench++ (by domain; as published, invented ones too) and of API-Bank (asked for
    with the dialogue before each). `more`: the study's own instructions, which the slot filler learns from too.

    Columns: arguments (required or trained, see `slot_filler.make_call`), nameable: the share of the calls whose
    parameters the tool's schema names at all, which no caller can exceed.
    """
    slot_filler = SlotFiller(bench.catalog, flow.copying).fit(bench.samples, more)
    tools, bank = load_collection("mcptoolbench"), load_collection("apibank").catalog
    asked = ((call, query(call, "dialogue_with_api_lines")) for call in api_calls(paths.raw("apibank"), bank))
    bank_samples = [Sample(call.id, text, call.tool, 0, call.arguments, call.id) for call, text in asked]
    others = {"mcptoolbench": (tools.catalog, load_samples(tools, "strict")), "apibank": (bank, bank_samples)}
    lines = [measure_arguments("mcpflow", "required", slot_filler, bench.samples)]
    for name, (catalog, samples) in others.items():
        filler = SlotFiller(catalog, flow.copying, slot_filler.value, slot_filler.setting)
        lines += [measure_arguments(name, filling, filler, samples) for filling in ("required", "trained")]
    return pd.DataFrame(lines)


def measure_arguments(
    collection: str, filling: str, slot_filler: SlotFiller, samples: Sequence[Sample]
) -> dict[str, object]:
    """One row of flow_trivial.csv."""
    fill, rows = slot_filler.fill if filling == "trained" else slot_filler.required, []
    for one in samples:
        named = {parameter.name for parameter in slot_filler.catalog.tools[one.tool].parameters}
        right = measures(Call(one.tool, fill(one.text, one.tool)), one)
        rows.append({"of": one.tool, "nameable": named >= set(one.arguments), **right})
    table = pd.DataFrame(rows)
    line = {"collection": collection, "arguments": filling, "calls": len(table), "tools": table["of"].nunique()}
    line["nameable"] = table["nameable"].mean()
    for measure in ("param", "ast"):
        by_tool = table.groupby("of")[measure].mean()
        line |= {measure: table[measure].mean(), f"{measure}_by_tool": by_tool.mean()}
    return line


def compare_servers(bench: Bench, servers: Mapping[str, Sequence[str]], reading: Copying) -> pd.DataFrame:
    """Servers for one kind of task side by side, in the form of the paper's table 6, as far as nothing is started.

    The instructions are those of the compared servers' public samples, one per call. One line per server: server,
    tools, parameters, required, described (share of tools with a description), tokens (of all definitions),
    instructions, fit (mean cosine of the best tool), fit_ci_low, fit_ci_high, best (share of the instructions that it
    fits best of the compared), callable (share whose best tool finds a value for all it requires).
    """
    catalog = bench.catalog
    tools_of = {name: rows_of(catalog, ids) for name, ids in servers.items()}
    every = {tool for tools in tools_of.values() for tool in tools}
    rows = list({sample.group: row for row, sample in enumerate(bench.samples) if sample.tool in every}.values())
    sizes, reader = definition_tokens(catalog), SlotFiller(catalog, reading)
    fits = {name: bench.evidence.dense[rows][:, tools] for name, tools in tools_of.items()}
    best = np.stack([fit.max(axis=1) for fit in fits.values()])
    lines = []
    for number, (name, tools) in enumerate(tools_of.items()):
        chosen = zip([tools[column] for column in fits[name].argmax(axis=1)], rows, strict=True)
        offered = [reader.listed(bench.samples[row].text, tool) for tool, row in chosen]
        able = [all(options for parameter, _, options in listed if parameter.required) for listed in offered]
        listed = [parameter for tool in tools for parameter in catalog.tools[tool].parameters]
        line = {"server": name, "tools": len(tools), "parameters": len(listed)}
        line["required"] = sum(parameter.required for parameter in listed)
        line["described"] = float(np.mean([bool(catalog.tools[tool].description.strip()) for tool in tools]))
        line |= {"tokens": int(sizes[tools].sum()), "instructions": len(rows)}
        line |= mean_interval(best[number], seed=results.SEED, name="fit", prefix="fit_")
        share = float((best.argmax(axis=0) == number).mean())
        lines.append(line | {"best": share, "callable": float(np.mean(able))})
    return pd.DataFrame(lines)


def rows_of(catalog: ToolCatalog, ids: Sequence[str]) -> list[int]:
    """Tool rows of the listings with these ids."""
    row_of = {server.id: row for row, server in enumerate(catalog.servers)}
    if unknown := [name for name in ids if name not in row_of]:
        reason = f"the catalogue has no server {unknown[0]!r}"
        raise StudyError(reason, file="conf/tools/flow.yaml", column="servers", fix="name a server of the catalogue")
    return [tool for name in ids for tool in catalog.tools_of(row_of[name])]


def call_parts(bench: Bench, synthetic_bench: Bench, flow: Flow) -> Iterator[list[Run]]:
    """Every system on every split and pool, split by split; one whose runs are all there is not run again."""
    fillers = [SlotFiller(bench.catalog, flow.copying) for _ in range(3)]
    apart = benches.train(synthetic_bench, np.arange(len(synthetic_bench.samples)), flow, flow.seeds[0], fillers[0])
    progress = tqdm(total=len(SPLITS) * len(flow.seeds), desc="calls", delay=3)
    for split in SPLITS:
        if finished(split, bench, flow):
            progress.update(len(flow.seeds))
            continue
        answers: dict[tuple[str, str], list[pd.DataFrame]] = {}
        started = time.perf_counter()
        for number, seed in enumerate(flow.seeds):
            pools = {name: pool for name, pool in flow.pools.items() if number < pool.seeds}
            offered = {name: benches.candidates(bench, pool, seed) for name, pool in pools.items()}
            for train, test in folds(bench.samples, split, flow.splits, seed):
                trained = benches.train(bench, train, flow, seed, fillers[1])
                joint = fillers[2].fit(trained.exemplars.samples, synthetic_bench.samples)
                learned = {"real": trained, "both": replace(trained, slot_filler=joint), "synthetic": apart}
                for (name, pool), (source, parts) in product(pools.items(), learned.items()):
                    systems = {at: system for at, system in systems_for(pool, flow).items() if system.train == source}
                    tables = benches.answer(bench, test, offered[name], systems, parts, seed)
                    for system, table in tables.items():
                        answers.setdefault((name, system), []).append(table.assign(seed=seed))
            progress.update()
        facts = {"seconds_for_all_systems_of_the_split": round(time.perf_counter() - started, 1)}
        yield [
            named_run(bench, split, name, system, pd.concat(parts, ignore_index=True), flow, facts)
            for (name, system), parts in answers.items()
        ]


def systems_for(pool: Pool, flow: Flow) -> dict[str, System]:
    """The systems that are asked with a pool."""
    return {name: system for name, system in flow.systems.items() if pool.size is not None or system.whole}


def finished(split: str, bench: Bench, flow: Flow) -> bool:
    """Whether every protocol of a split holds every configured system, made with these settings from these inputs."""
    inputs, records = results.sources(bench.catalog, as_queries(bench.samples)), results.read_records(COLLECTION)
    for name, system in ((name, system) for name, pool in flow.pools.items() for system in systems_for(pool, flow)):
        stored = records.get((f"{split}_{name}", system), {})
        now = json.loads(json.dumps(inputs | {"config": config(name, system, flow)}))  # JSON knows no tuples
        if {entry: stored.get(entry) for entry in now} != now:
            return False
    return True


def config(pool: str, system: str, flow: Flow) -> dict[str, object]:
    """Every setting that the answers of a system under a pool depend on."""
    settings: dict[str, object] = {"system": asdict(flow.systems[system]), "pool": asdict(flow.pools[pool])}
    settings |= {name: asdict(getattr(flow, name)) for name in ("splits", "training", "copying")}
    settings |= {"exemplars": flow.exemplars, "document": flow.document, "limit": flow.limit, "seeds": list(flow.seeds)}
    if flow.systems[system].train != "real":
        settings |= {"synthesis": asdict(flow.synthesis), "filtration": asdict(flow.filtration)}
    return settings


def named_run(
    bench: Bench, split: str, pool: str, system: str, answers: pd.DataFrame, flow: Flow, facts: Mapping[str, float]
) -> Run:
    """One system's answers with tool and server of every instruction."""
    catalog = bench.catalog
    unit = {sample.id: tool_key(catalog, sample.tool) for sample in bench.samples}
    server = {sample.id: catalog.servers[sample.server].id for sample in bench.samples}
    answers = answers.assign(unit=answers["task_id"].map(unit), server=answers["task_id"].map(server))
    answers = answers[["task_id", "seed", "unit", "server", "rank", *MEASURES]]
    answers = answers.sort_values(["seed", "task_id"], ignore_index=True)
    size, rank = flow.pools[pool].size or len(catalog.tools), answers["rank"]
    ranking = pd.DataFrame({"hit_rate@1": rank == 1, "hit_rate@5": rank <= 5, f"mrr@{size}": 1 / rank}).astype(float)
    table = per_task.check(pd.concat([answers[per_task.KEYS], ranking], axis=1))
    counts = {"candidates": size, "instructions": int(answers["task_id"].nunique()), "left_out": bench.left_out}
    whole = counts | {"tools": len(catalog.tools), **facts, "config": config(pool, system, flow)}
    inputs = catalog, as_queries(bench.samples)
    return Run(f"{split}_{pool}", system, table, inputs, whole, answers.drop(columns="rank"))


def summary(protocol: str, system: str, answers: pd.DataFrame) -> dict[str, object]:
    """One line of flow_calls.csv: means in percent, as the paper prints them."""
    split, _, pool = protocol.rpartition("_")
    tools, servers = (answers.groupby(unit)[list(MEASURES)].mean() for unit in ("unit", "server"))
    line: dict[str, object] = {"split": split, "pool": pool, "system": system}
    line |= {"instructions": answers["task_id"].nunique(), "tools": len(tools), "servers": len(servers)}
    line["seeds"] = answers["seed"].nunique()
    for measure in MEASURES:
        means = {measure: answers[measure].mean()}
        means |= mean_interval(tools[measure], seed=results.SEED, name=f"{measure}_by_tool", prefix=f"{measure}_")
        means[f"{measure}_by_server"] = servers[measure].mean()
        line |= {name: 100 * value for name, value in means.items()}
    return line


def compare_calls(protocol: str, runs: Mapping[str, pd.DataFrame], reference: str) -> pd.DataFrame:
    """Every system against the reference, paired over tools; Tool, Param and AST are one family."""
    frames = {}
    for name, answers in runs.items():
        units = answers.groupby("unit")[list(MEASURES)].mean()
        frames[name] = units.rename_axis("task_id").reset_index().assign(seed=results.SEED)
    return compare_all(frames, reference, MEASURES, results.SEED).assign(unit="tool", protocol=protocol)


def report_flow(flow: Flow) -> None:
    """Redo metrics.csv.xz, significance.csv, flow_calls.csv and flow_not_run.csv from the runs.

    Bright Data has four of five instructions, so that means over instructions are mostly means over one server: every
    table also gives the mean over tools, and intervals and tests take tools as units.
    """
    target = results.report_runs(COLLECTION, {}, {})
    runs, records = results.collect_runs(COLLECTION, "calls"), results.read_records(COLLECTION)
    cells = [(at, name, answers) for at, systems in runs.items() for name, answers in systems.items()]
    write_csv(target / "flow_calls.csv", pd.DataFrame([summary(*cell) for cell in cells]))
    rows = [read_csv(target / "metrics.csv.xz").query("metric != 'completeness'")]
    for at, name, answers in cells:
        means = answers.groupby("seed", as_index=False)[list(MEASURES)].mean().melt("seed", var_name="metric")
        cell = {"dataset": COLLECTION, "protocol": at, "system": name, "profile": results.PROFILE}
        rows.append(means.assign(**cell, k=records[at, name]["candidates"])[rows[0].columns])
    write_csv(target / "metrics.csv.xz", pd.concat(rows))
    pairs = [
        compare_calls(f"{split}_{pool}", systems, reference)
        for split, (reference, pool) in flow.references.items()
        if reference in (systems := runs.get(f"{split}_{pool}", {})) and len(systems) > 1
    ]
    if pairs:
        write_csv(target / "significance.csv", pd.concat(pairs))
    write_csv(target / "flow_not_run.csv", pd.DataFrame(flow.not_run))


# When the slot filler leaves a parameter empty: below a least probability, which is chosen on servers held out.
GRID = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)  # least probabilities among which is chosen; 0 never abstains
GROUPS = 4  # of servers, held out one after the other for the choice
COLUMNS = ["probability", "filled", "given", "right"]


def decisions(slot_filler: SlotFiller, samples: Iterable[Sample]) -> pd.DataFrame:
    """One row per parameter that is filled or that the right call sets, the tool being given.

    Columns: probability (of the value, 0 where there is none), filled (whether there is a value), given (whether the
    right call sets the parameter), right (whether it sets this value).
    """
    rows = []
    for sample in samples:
        left = dict(sample.arguments)
        for one in slot_filler.choose(sample.text, sample.tool):
            given, filled = one.parameter.name in left, one.row is not None
            right = given and filled and same_value(one.option.value, left[one.parameter.name])
            rows.append((one.probability, filled, given, right))
            left.pop(one.parameter.name, None)
        rows += [(0.0, False, True, False)] * len(left)
    return pd.DataFrame(rows, columns=COLUMNS)


def least_probability(slot_filler: SlotFiller, samples: Sequence[Sample], more: Sequence[Sample] = ()) -> float:
    """The least probability with the most right values less wrong ones on servers that the filler has not seen.

    `samples`: their servers are held out in groups. `more`: calls that always teach values, see `SlotFiller.fit`.
    `slot_filler`: is fitted on the way. Of equal probabilities the lowest counts.
    """
    group = server_groups([sample.server for sample in samples], GROUPS)
    parts = []
    for held_out in sorted(set(group.values())):
        slot_filler.fit([sample for sample in samples if group[sample.server] != held_out], more)
        parts.append(decisions(slot_filler, (sample for sample in samples if group[sample.server] == held_out)))
    return best_of(pd.concat(parts))


def best_of(decided: pd.DataFrame) -> float:
    """The entry of `GRID` with the most right values less wrong ones; `decided`: from `decisions`."""
    gains = decided["right"].map({True: 1, False: -1}) * decided["filled"]
    net = [gains[decided["probability"] >= least].sum() for least in GRID]
    return GRID[int(np.argmax(net))]


def abstention_table(bench: Bench, more: Sequence[Sample], flow: Flow) -> pd.DataFrame:
    """flow_abstention.csv: every server unseen once, with and without abstaining.

    Columns: arguments (always or abstaining), calls, parameters (of the right calls), filled_right, filled_wrong,
    left_empty (of these), invented (values for parameters that the right call does not set), least_low, least_high
    (range of the chosen probabilities).
    """
    slot_filler, parts = SlotFiller(bench.catalog, flow.copying), []
    turns = list(folds(bench.samples, "unseen_server", flow.splits, flow.seeds[0]))
    for fold in tqdm(turns, desc="abstention", delay=3):
        train, test = ([bench.samples[row] for row in rows] for rows in fold)
        least = least_probability(slot_filler, train, more)
        parts.append(decisions(slot_filler.fit(train, more), test).assign(least=least))
    rows, lines = pd.concat(parts), []
    for name, bounds in (("always", rows["least"] * 0), ("abstaining", rows["least"])):
        filled, given, right = rows["filled"] & (rows["probability"] >= bounds), rows["given"], rows["right"]
        counts = {"parameters": given, "filled_right": filled & right, "filled_wrong": filled & given & ~right}
        counts |= {"left_empty": ~filled & given, "invented": filled & ~given}
        line = {"arguments": name, "calls": len(bench.samples)} | {key: int(one.sum()) for key, one in counts.items()}
        lines.append(line | {"least_low": bounds.min(), "least_high": bounds.max()})
    return pd.DataFrame(lines)
