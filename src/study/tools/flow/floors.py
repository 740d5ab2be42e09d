"""How far arguments come when the right tool is given: floors for the measures Param and AST on three collections.

``required`` sets the required parameters alone, each to the first piece of the text that fits; ``trained`` is the
copier, learned from MCP-Flow's public and the study's own instructions, on collections that it has never seen.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from study import paths
from study.tools.catalogues import apibank, mcptoolbench, published
from study.tools.catalogues.catalog import ToolCatalog
from study.tools.catalogues.files import read_list
from study.tools.flow import callers
from study.tools.flow.bench import Bench
from study.tools.flow.calls import Call, measures
from study.tools.flow.samples import Sample
from study.tools.flow.settings import Flow
from study.tools.flow.slot_filler import Copier
from study.tools.mcp_zero.api_bank import query

# What an argument may come from: everything said before, API lines included, which hold tokens and ids.
DIALOGUE = "dialogue_with_api_lines"


def mcptoolbench_calls() -> tuple[ToolCatalog, list[Sample]]:
    """MCPToolBench++: one call per query, grouped by domain; arguments as published, invented ones too."""
    loaded = published.load("mcptoolbench")
    queries, folder = loaded.queries["strict"], paths.raw("mcptoolbench")
    records = [record for file in mcptoolbench.FILES for record in read_list(folder / file, mcptoolbench.KEYS)]
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
    catalog, folder = published.load("apibank").catalog, paths.raw("apibank")
    dialogues = apibank.dialogues(folder)
    found = []
    for call in apibank.calls(folder, catalog):
        name, _, number = call.id.rpartition(":")
        arguments = dict(dialogues[name][int(number)]["param_dict"])
        found.append(Sample(call.id, query(call, DIALOGUE), call.tool, 0, arguments, name))
    return catalog, found


def measure(collection: str, filling: str, copier: Copier, samples: Sequence[Sample]) -> dict[str, object]:
    """One row: shares of the calls with the right parameter names, and with the right values too, on the right tool.

    ``nameable`` is the share of the calls whose parameters the tool's schema names at all: no caller can exceed it.
    """
    rows = []
    for one in samples:
        required = filling == "required"
        given = callers.required(one.text, one.tool, copier) if required else copier.fill(one.text, one.tool)
        known = {parameter.name for parameter in copier.catalog.tools[one.tool].parameters}
        right = measures(Call(one.tool, given), one.tool, one.arguments)
        rows.append({"of": one.tool, "nameable": known >= set(one.arguments), **right})
    table = pd.DataFrame(rows)
    by_tool = table.groupby("of")[["param", "ast"]].mean().mean()
    return {
        "collection": collection,
        "arguments": filling,
        "calls": len(table),
        "tools": table["of"].nunique(),
        "nameable": table["nameable"].mean(),
        "param": table["param"].mean(),
        "param_by_tool": by_tool["param"],
        "ast": table["ast"].mean(),
        "ast_by_tool": by_tool["ast"],
    }


def run(bench: Bench, kept: Sequence[Sample], flow: Flow) -> pd.DataFrame:
    """The rows of flow_floors.csv.

    Args:
        kept: the study's own instructions, which the copier learns from too.
    """
    copier = Copier(bench.catalog, flow.copying).fit(bench.samples, kept)
    lines = [measure("mcpflow", "required", copier, bench.samples)]
    for name, (catalog, samples) in {"mcptoolbench": mcptoolbench_calls(), "apibank": apibank_calls()}.items():
        lines += [measure(name, filling, copier.of(catalog), samples) for filling in ("required", "trained")]
    return pd.DataFrame(lines)
