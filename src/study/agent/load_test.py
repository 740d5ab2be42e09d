"""Many developers at once: the page is served by a process of its own and asked over the loopback interface."""

from __future__ import annotations

import asyncio
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
import pandas as pd

from study import paths
from study.agent.settings import LoadTest, Settings, read_conf
from study.errors import StudyError
from study.evaluation.records import record
from study.files import write_csv, write_json

# Columns: seconds to the answer, '' or what went wrong, request or follow_up.
Sample = tuple[float, str, str]
SERVE = "from study.cli.agent import app; app()"


@contextmanager
def running_page(dataset: str, retriever: str, seconds: float) -> Iterator[str]:
    """The address of a running page on a free port of this machine; StudyError if it does not start in `seconds`."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ["serve", "--dataset", dataset, "--port", str(port), "--retriever", retriever]
    process = subprocess.Popen([sys.executable, "-c", SERVE, *words], stdout=subprocess.DEVNULL)  # noqa: S603
    address, limit = f"http://127.0.0.1:{port}", time.monotonic() + seconds
    try:
        while not _answers(address):
            if process.poll() is not None or time.monotonic() > limit:
                raise StudyError("the page does not start", fix=f"try: study agent serve --dataset {dataset}")
            time.sleep(0.2)
        yield address
    finally:
        process.terminate()
        process.wait(30)


def _answers(address: str) -> bool:
    try:
        return httpx2.get(address, timeout=5, trust_env=False).status_code == 200
    except httpx2.HTTPError:
        return False


async def developer(client: httpx2.AsyncClient, number: int, settings: LoadTest, until: float) -> list[Sample]:
    """One developer's messages, in rounds until the time is up."""
    rng = random.Random(f"{settings.seed} {number}")  # noqa: S311 waiting times need no secrecy
    me = {"X-Conversation": (await client.post("/api/conversations", json={})).json()["conversation"]}
    found: list[Sample] = []
    for turn in count(1):
        # No request is asked twice, so that none is answered from what was kept.
        wanted = [text.format(n=number, round=turn) for text in settings.messages]
        for text in wanted:
            await asyncio.sleep(rng.expovariate(1 / settings.think) if settings.think else 0)
            if time.monotonic() >= until:
                return found
            began = time.perf_counter()
            try:
                reply = await client.post("/api/messages", json={"text": text}, headers=me)
                intent = reply.json()["specification"]["intent"] if reply.status_code == 200 else None
                wrong = f"HTTP {reply.status_code}" if intent is None else "" if intent == wanted[0] else "mixed"
            except httpx2.HTTPError as error:
                wrong = type(error).__name__
            kind = "request" if text == wanted[0] else "follow_up"
            found.append((time.perf_counter() - began, wrong, kind))
    return found


async def drive(address: str, settings: LoadTest) -> pd.DataFrame:
    """All developers at once; one row per message: seconds, problem, kind (request or follow_up)."""
    limits = httpx2.Limits(max_connections=settings.users)
    until = time.monotonic() + settings.seconds
    async with httpx2.AsyncClient(base_url=address, timeout=60, limits=limits, trust_env=False) as client:
        done = await asyncio.gather(*(developer(client, n, settings, until) for n in range(1, settings.users + 1)))
    return pd.DataFrame([row for part in done for row in part], columns=["seconds", "problem", "kind"])


def measure_load(dataset: str, retriever: str | None, settings: LoadTest) -> Path:
    """Serve, drive and report: ``agent_load.csv`` with its record."""
    chosen = retriever or read_conf(Settings).retriever
    with running_page(dataset, chosen, settings.start_seconds) as address:
        rows = asyncio.run(drive(address, settings))
    facts = record(settings=asdict(settings), dataset=dataset, retriever=chosen, problems=problems(rows))
    write_json(paths.results(dataset) / "records" / "agent_load.json", facts)
    target = paths.tables(dataset) / "agent_load.csv"
    write_csv(target, summary(rows, settings, chosen))
    return target


def problems(rows: pd.DataFrame) -> dict[str, int]:
    """How often each kind of problem came up, most frequent first."""
    return {str(kind): int(times) for kind, times in rows.loc[rows["problem"] != "", "problem"].value_counts().items()}


def summary(rows: pd.DataFrame, settings: LoadTest, retriever: str) -> pd.DataFrame:
    """One row: who asked how much of what, errors in all and by kind, and quantiles of the times in milliseconds. New
    requests and what follows them are told apart too, since a follow-up finds its scores kept."""
    kinds = problems(rows)
    found: dict[str, Any] = {
        "retriever": retriever,
        "users": settings.users,
        "seconds": settings.seconds,
        "think": settings.think,
        "messages": len(rows),
        "errors": sum(kinds.values()),
        "mixed": kinds.get("mixed", 0),
        "kinds": "; ".join(f"{kind}: {times}" for kind, times in kinds.items()),
    }
    milliseconds = 1e3 * rows["seconds"]
    for name, share in (("p50", 0.5), ("p95", 0.95), ("max", 1.0)):
        found[f"{name}_ms"] = milliseconds.quantile(share)
    for kind in ("request", "follow_up"):
        times = milliseconds[rows["kind"] == kind]
        found |= {f"{kind}s": len(times), f"{kind}_p50_ms": times.quantile(0.5), f"{kind}_p95_ms": times.quantile(0.95)}
    return pd.DataFrame([found])
