"""Measures `study tools serve` with real servers: ``python tests/advisor/gateway/measure_serve.py WORK.json CONFIG``,
where CONFIG are configurations of clients, or the address of a running one.

WORK.json is a list of [task, tool, arguments]. Ten rounds find a tool for every task and call the named tool; the table
tells milliseconds as the official client sees them. With ``--keep`` behind all it is written to the tables of
LiveMCPBench, serve.csv, with its record. On a busy Linux machine ``chrt -r 1`` in front keeps other work from counting.
"""

import asyncio
import json
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from study.advisor.gateway.interface import as_json
from study.advisor.retrieval.texts import count_tokens
from study.tools.results import Table, write_results

ROUNDS = 10


async def main(work, *target):
    keep, target = "--keep" in target, [word for word in target if word != "--keep"]
    work, rows, missed = json.loads(Path(work).read_text()), {}, []
    words = ["-m", "study", "tools", "serve", *(part for file in target for part in ("--mcp-config", file))]
    program = StdioServerParameters(command=sys.executable, args=words, env=dict(os.environ))
    where = target[0] if target[0].startswith("http") else stdio_client(program)
    async with Client(where, read_timeout_seconds=120, cache=None) as client:

        async def ask(measure, tool, **arguments):
            started = time.perf_counter()
            reply = await client.call_tool(tool, arguments)
            rows.setdefault(measure, []).append(1000 * (time.perf_counter() - started))
            if reply.is_error:
                sys.exit(reply.content[0].text)
            return reply.content[0].text

        await ask("first find", "find_tools", task=work[0][0])
        listed = [
            as_json({"name": one.name, "description": one.description, "inputSchema": one.input_schema})
            for one in (await client.list_tools()).tools
        ]
        for number in range(ROUNDS):
            for task, tool, arguments in work:
                answer = json.loads(await ask("find", "find_tools", task=task))
                missed += [task] if tool not in [one["name"] for one in answer["tools"]] else []
                await ask("call" if number else "first call", "call_tool", name=tool, arguments=arguments)
    lines = []
    for measure, values in rows.items():
        middle, high = np.percentile(values, [50, 95])
        high = np.nan if len(values) == 1 else high
        lines.append({"measure": measure, "n": len(values), "p50_ms": middle, "p95_ms": high})
    lines += [
        {"measure": "all definitions", "tokens": answer["tokens"]["of all tools"]},
        {"measure": "what a host sees", "tokens": int(count_tokens(listed).sum())},
    ]
    frame = pd.DataFrame(lines).astype({"n": "Int64", "tokens": "Int64"})
    print(f"{frame.to_string(index=False)}\ntokens {answer['tokens']}; not among the found: {missed or 'none'}")
    if keep:
        servers = [name for file in target for name in json.loads(Path(file).read_text())["mcpServers"]]
        facts = {"servers": servers, "rounds": ROUNDS, "client": f"mcp {version('mcp')}", "transport": "stdio"}
        realtime = hasattr(os, "sched_getscheduler") and os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR)
        facts |= {"load": os.getloadavg()[0], "realtime": realtime}
        write_results("livemcpbench", [Table("serve", frame, facts)])


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
