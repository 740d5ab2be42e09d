"""Tables of MCP-Flow: floors of arguments, servers side by side, and what is made from the kept calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from study.advisor.retrieval.documents import ToolCatalog
from study.advisor.retrieval.texts import definition_tokens
from study.base import paths
from study.base.errors import StudyError
from study.base.files import read_csv, write_csv, write_text
from study.evaluation.statistics import bootstrap_interval, compare_all
from study.tools import results
from study.tools.collections import apibank, published
from study.tools.collections.files import read_list
from study.tools.flow.bench import Bench
from study.tools.flow.samples import Call, Sample, measures
from study.tools.flow.settings import FILE, Copying, Flow
from study.tools.flow.slot_filler import SlotFiller
from study.tools.mcp_zero import query

COLLECTION = "mcpflow"
MEASURES = ("tool", "param", "ast")
# What an argument may come from: everything said before, API lines included, which hold tokens and ids.
DIALOGUE = "dialogue_with_api_lines"


def rows_of(catalog: ToolCatalog, ids: Sequence[str]) -> list[int]:
    """Tool rows of the listings with these ids."""
    known = {server.id: row for row, server in enumerate(catalog.servers)}
    for name in ids:
        if name not in known:
            reason = f"the catalogue has no server {name!r}"
            raise StudyError(reason, file=FILE, column="servers", fix="name a server of the catalogue")
    return [tool for name in ids for tool in catalog.tools_of(known[name])]


def compare_servers(bench: Bench, servers: Mapping[str, Sequence[str]], reading: Copying) -> pd.DataFrame:
    """Servers for one kind of task side by side, in the form of the paper's table 6, as far as nothing is started.

    The instructions are those of the compared servers' public samples, one per call. One line per server: server,
    tools, parameters, required, described (share of tools with a description), tokens (of all definitions),
    instructions, fit (mean cosine of the best tool), fit_ci_low, fit_ci_high, best (share of the instructions that it
    fits best of the compared), callable (share whose best tool finds a value for all it requires).
    """
    catalog, own = bench.catalog, {name: rows_of(bench.catalog, ids) for name, ids in servers.items()}
    every = {tool for tools in own.values() for tool in tools}
    asked = list({sample.group: row for row, sample in enumerate(bench.samples) if sample.tool in every}.values())
    if not asked:
        raise StudyError("none of the compared servers has instructions", fix="compare servers that have some")
    sizes, reader = definition_tokens(catalog), SlotFiller(catalog, reading)
    fits = {name: bench.known.dense[asked][:, tools] for name, tools in own.items()}
    best = np.stack([fit.max(axis=1) for fit in fits.values()])
    lines = []
    for place, (name, tools) in enumerate(own.items()):
        low, high = bootstrap_interval(best[place].astype(np.float64), seed=results.SEED)
        chosen = zip([tools[column] for column in fits[name].argmax(axis=1)], asked, strict=True)
        offered = [reader.listed(bench.samples[row].text, tool) for tool, row in chosen]
        able = [all(options for parameter, _, options in own if parameter.required) for own in offered]
        listed = [parameter for tool in tools for parameter in catalog.tools[tool].parameters]
        line = {"server": name, "tools": len(tools), "parameters": len(listed)}
        line["required"] = sum(parameter.required for parameter in listed)
        line["described"] = float(np.mean([bool(catalog.tools[tool].description.strip()) for tool in tools]))
        line |= {"tokens": int(sizes[tools].sum()), "instructions": len(asked), "fit": float(best[place].mean())}
        line |= {"fit_ci_low": low, "fit_ci_high": high, "best": float((best.argmax(axis=0) == place).mean())}
        lines.append(line | {"callable": float(np.mean(able))})
    return pd.DataFrame(lines)


def mcptoolbench_calls() -> tuple[ToolCatalog, list[Sample]]:
    """MCPToolBench++: one call per query, grouped by domain; arguments as published, invented ones too."""
    loaded = published.load_collection("mcptoolbench")
    queries, folder = loaded.queries["strict"], paths.raw("mcptoolbench")
    files, keys = published.TOOLBENCH_FILES, published.TOOLBENCH_KEYS
    records = [record for file in files for record in read_list(folder / file, keys)]
    found = []
    for row, record in enumerate(records):
        tool = queries.labels[row][0][0]
        given = record["function_call_label"][0].get("input")
        arguments = given if isinstance(given, dict) else {}
        server = loaded.catalog.tools[tool].server
        found.append(Sample(queries.ids[row], queries.texts[row], tool, server, arguments, queries.groups[row]))
    return loaded.catalog, found


def apibank_calls() -> tuple[ToolCatalog, list[Sample]]:
    """API-Bank: every call, asked for with the dialogue before it, grouped by dialogue."""
    catalog, folder = published.load_collection("apibank").catalog, paths.raw("apibank")
    dialogues = apibank.dialogues(folder)
    found = []
    for call in apibank.calls(folder, catalog):
        name, _, number = call.id.rpartition(":")
        arguments = dict(dialogues[name][int(number)]["param_dict"])
        found.append(Sample(call.id, query(call, DIALOGUE), call.tool, 0, arguments, name))
    return catalog, found


def measure_arguments(
    collection: str, filling: str, slot_filler: SlotFiller, samples: Sequence[Sample]
) -> dict[str, object]:
    """How far arguments come when the right tool is given: a floor for the measures Param and AST, as one row.

    `filling`: required or trained, as in `make_call`. Column nameable: the share of the calls whose parameters the
    tool's schema names at all, which no caller can exceed.
    """
    rows = []
    fill = slot_filler.fill if filling == "trained" else slot_filler.required
    for one in samples:
        known = {parameter.name for parameter in slot_filler.catalog.tools[one.tool].parameters}
        right = measures(Call(one.tool, fill(one.text, one.tool)), one.tool, one.arguments)
        rows.append({"of": one.tool, "nameable": known >= set(one.arguments), **right})
    table = pd.DataFrame(rows)
    by_tool, means = table.groupby("of")[["param", "ast"]].mean().mean(), table[["nameable", "param", "ast"]].mean()
    line = {"collection": collection, "arguments": filling, "calls": len(table), "tools": table["of"].nunique()}
    line |= {"nameable": means["nameable"], "param": means["param"], "param_by_tool": by_tool["param"]}
    return line | {"ast": means["ast"], "ast_by_tool": by_tool["ast"]}


def trivial_table(bench: Bench, kept: Sequence[Sample], flow: Flow) -> pd.DataFrame:
    """The rows of flow_trivial.csv; `kept`: the study's own instructions, which the slot filler learns from too."""
    slot_filler = SlotFiller(bench.catalog, flow.copying).fit(bench.samples, kept)
    lines = [measure_arguments("mcpflow", "required", slot_filler, bench.samples)]
    for name, (catalog, samples) in {"mcptoolbench": mcptoolbench_calls(), "apibank": apibank_calls()}.items():
        own = slot_filler.of(catalog)
        lines += [measure_arguments(name, filling, own, samples) for filling in ("required", "trained")]
    return pd.DataFrame(lines)


def by_unit(answers: pd.DataFrame, unit: str) -> pd.DataFrame:
    """Means per tool (``unit``) or ``server`` over its instructions and seeds; index the unit, columns `MEASURES`."""
    return answers.groupby(unit, sort=True)[list(MEASURES)].mean()


def summary(protocol: str, system: str, answers: pd.DataFrame) -> dict[str, object]:
    """One line of flow_calls.csv: means in percent, as the paper prints them."""
    split, _, pool = protocol.rpartition("_")
    tools, servers = by_unit(answers, "unit"), by_unit(answers, "server")
    line: dict[str, object] = {"split": split, "pool": pool, "system": system}
    line |= {"instructions": answers["task_id"].nunique(), "tools": len(tools), "servers": len(servers)}
    line["seeds"] = answers["seed"].nunique()
    for measure in MEASURES:
        low, high = bootstrap_interval(tools[measure].to_numpy(np.float64), seed=results.SEED)
        line |= {measure: 100 * answers[measure].mean(), f"{measure}_by_tool": 100 * tools[measure].mean()}
        line |= {f"{measure}_ci_low": 100 * low, f"{measure}_ci_high": 100 * high}
        line[f"{measure}_by_server"] = 100 * servers[measure].mean()
    return line


def compare_calls(protocol: str, runs: Mapping[str, pd.DataFrame], reference: str) -> pd.DataFrame:
    """Every system against the reference, paired over tools; Tool, Param and AST are one family."""
    # The three measures are hits of one answer, and the comparison knows hits by this name.
    as_hits = {"tool": "hit_rate@1", "param": "hit_rate@2", "ast": "hit_rate@3"}
    frames = {}
    for name, answers in runs.items():
        units = by_unit(answers, "unit").rename(columns=as_hits).reset_index(names="task_id")
        frames[name] = units.assign(seed=results.SEED)
    table = compare_all(frames, reference, list(as_hits.values()), results.SEED)
    names = {hit: measure for measure, hit in as_hits.items()}
    return table.assign(metric=table["metric"].map(names), unit="tool", protocol=protocol)


def report_flow(flow: Flow) -> Path:
    """Redo metrics.csv.xz, significance.csv, flow_calls.csv and overall.md from the runs. Returns: the tables' folder.

    Bright Data has four of five instructions, so that means over instructions are mostly means over one server: every
    table also gives the mean over tools, and intervals and tests take tools as units.
    """
    target = results.report_runs(COLLECTION, {})
    runs, records = results.collect_runs(COLLECTION, "calls"), results.read_records(COLLECTION)
    lines = [summary(at, name, answers) for at, own in runs.items() for name, answers in own.items()]
    write_csv(target / "flow_calls.csv", pd.DataFrame(lines))
    rows = read_csv(target / "metrics.csv.xz")
    added = [rows[rows["metric"] != "completeness"]]
    for at, own in runs.items():
        for name, answers in own.items():
            means = answers.groupby("seed", as_index=False)[list(MEASURES)].mean().melt("seed", var_name="metric")
            cell = {"dataset": COLLECTION, "protocol": at, "system": name, "profile": results.PROFILE}
            added.append(means.assign(**cell, k=records[at, name]["candidates"])[rows.columns])
    write_csv(target / "metrics.csv.xz", pd.concat(added))
    pairs = []
    for split, (reference, pool) in flow.references.items():
        own = runs.get(f"{split}_{pool}", {})
        if reference in own and len(own) > 1:
            pairs.append(compare_calls(f"{split}_{pool}", own, reference))
    if pairs:
        write_csv(target / "significance.csv", pd.concat(pairs))
    write_csv(target / "flow_not_run.csv", pd.DataFrame(flow.not_run))
    skipped = "\n".join(f"- {item['what']}: {item['reason']}." for item in flow.not_run)
    text = (target / "overall.md").read_text(encoding="utf-8")
    write_text(target / "overall.md", f"{text}\n### Not run\n\n{skipped}\n")
    return target
