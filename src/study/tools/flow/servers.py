"""Servers for one kind of task side by side, in the form of the paper's table 6, as far as nothing is started.

What a server answers, how long it takes and how often it is called cannot be measured without running it. What can:
how many functions it offers and at what cost in tokens, how well one of its tools fits each instruction, and whether
the instruction holds what that tool requires.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from study.errors import StudyError
from study.evaluation.significance import bootstrap_interval
from study.tools import results
from study.tools.catalogues.catalog import ToolCatalog
from study.tools.discovery.tokens import definition_tokens
from study.tools.flow.bench import Bench
from study.tools.flow.settings import Copying
from study.tools.flow.slot_filler import options, property_of
from study.tools.flow.spans import spans


def rows_of(catalog: ToolCatalog, ids: Sequence[str]) -> list[int]:
    """Tool rows of the listings with these ids."""
    known = {server.id: row for row, server in enumerate(catalog.servers)}
    for name in ids:
        if name not in known:
            raise StudyError(
                f"the catalogue has no server {name!r}",
                file="conf/tools/flow.yaml",
                column="servers",
                fix="name a server of the catalogue",
            )
    return [tool for name in ids for tool in catalog.tools_of(known[name])]


def callable_with(catalog: ToolCatalog, tool: int, text: str, reading: Copying) -> bool:
    """Whether the instruction offers some value for every required parameter of a tool."""
    found = spans(text, letters=reading.letters, most=reading.spans)
    own = catalog.tools[tool]
    return all(
        options(text, found, parameter, property_of(own, parameter.name))
        for parameter in own.parameters
        if parameter.required
    )


def compare(bench: Bench, servers: Mapping[str, Sequence[str]], reading: Copying) -> pd.DataFrame:
    """One line per server; the instructions are those of the compared servers' public samples, one per call.

    Returns: columns server, tools, parameters, required, described (share of tools with a description), tokens (of all
    definitions), instructions, fit (mean cosine of the best tool), fit_low, fit_high, best (share of the instructions
    that it fits best of the compared), callable (share whose best tool finds a value for all that it requires).
    """
    own = {name: rows_of(bench.catalog, ids) for name, ids in servers.items()}
    every = {tool for tools in own.values() for tool in tools}
    asked = list({sample.group: row for row, sample in enumerate(bench.samples) if sample.tool in every}.values())
    if not asked:
        raise StudyError("none of the compared servers has instructions", fix="compare servers that have some")
    sizes = definition_tokens(bench.catalog)
    fits = {name: bench.known.dense[asked][:, tools] for name, tools in own.items()}
    best = np.stack([fit.max(axis=1) for fit in fits.values()])
    lines = []
    for place, (name, tools) in enumerate(own.items()):
        low, high = bootstrap_interval(best[place].astype(np.float64), seed=results.SEED)
        chosen = [tools[column] for column in fits[name].argmax(axis=1)]
        able = [
            callable_with(bench.catalog, tool, bench.samples[row].text, reading)
            for tool, row in zip(chosen, asked, strict=True)
        ]
        listed = [parameter for tool in tools for parameter in bench.catalog.tools[tool].parameters]
        lines.append(
            {
                "server": name,
                "tools": len(tools),
                "parameters": len(listed),
                "required": sum(parameter.required for parameter in listed),
                "described": float(np.mean([bool(bench.catalog.tools[tool].description.strip()) for tool in tools])),
                "tokens": int(sizes[tools].sum()),
                "instructions": len(asked),
                "fit": float(best[place].mean()),
                "fit_low": low,
                "fit_high": high,
                "best": float((best.argmax(axis=0) == place).mean()),
                "callable": float(np.mean(able)),
            }
        )
    return pd.DataFrame(lines)
