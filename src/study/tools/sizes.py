"""What a search costs by the number of tools: finding, a cold start, memory, indexing.

Up to 12,000 tools are real: those of the registry toolsdk, of LiveMCPBench, MCP-tools and MCP-Flow, repeats left out.
Beyond that a tool is a copy of a real one with a number behind its description, and its vector is the real one with
Gaussian noise of length 0.1, so that nothing is embedded for it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from study import paths
from study.encoders import sentence
from study.encoders.sentence import FloatArray
from study.tools import results
from study.tools.catalogues.catalog import QuerySet, ToolCatalog, save_catalog
from study.tools.catalogues.merge import extend
from study.tools.discovery.experiments import TEMPLATE, TOP, grown
from study.tools.discovery.index import ToolIndex
from study.tools.discovery.texts import documents
from study.tools.index_file import IndexFile, index_file, text_hash
from study.tools.results import Table

REAL, SIZES = 12_000, (10, 100, 12_000, 100_000)


def real_tools(parts: list[Callable[[], ToolCatalog]], most: int = REAL) -> ToolCatalog:
    """The first tools of several catalogues, one behind the other, repeats left out."""
    whole = parts[0]()
    for part in parts[1:]:
        whole = extend("sizes", whole, part())
    return replace(whole, tools=whole.tools[:most])


def sized(real: ToolCatalog, size: int) -> ToolCatalog:
    """The first `size` tools, behind the real ones numbered copies."""
    n = len(real.tools)
    copies = (
        replace(real.tools[row % n], description=f"{real.tools[row % n].description} ({row})") for row in range(n, size)
    )
    return ToolCatalog(f"tools{size}", real.servers, (*real.tools[:size], *copies))


def sizes_table(real: ToolCatalog, queries: QuerySet, sizes: tuple[int, ...] = SIZES) -> Table:
    """sizes.csv: one row per number of tools.

    find: milliseconds of one search at a time in a process that runs, the question's vector included; find_cpu: of the
    processor, which are those of a core that does nothing else. cold: of
    ``study tools find`` as a new process, with its greatest resident memory. index: processor seconds of embedding
    every tool's text on one thread, NaN beyond the real tools. file_mib: of catalogue and index.
    """
    lines, vectors = [], np.empty((0, sentence.DIMENSION), dtype=np.float32)
    rng = np.random.default_rng(results.SEED)
    sentence.encode(["the model is loaded"], store=False)
    for size in sizes:
        catalog = sized(real, size)
        texts, seconds = documents(catalog, TEMPLATE.document), float("nan")
        if size <= len(real.tools):
            started = time.process_time()
            vectors = sentence.encode(texts, store=False)
            seconds = time.process_time() - started
        with _project() as root:
            file = root / "data" / "tools" / f"{catalog.name}.json"
            index = _filled(file, texts, grown(vectors, size, rng))
            index.save(catalog)
            save_catalog(file, catalog)
            line = {"tools": size, "synthetic": max(0, size - len(real.tools)), "index_cpu_s": seconds}
            for kind, taken in zip(
                ("find", "find_cpu"), _searches(ToolIndex(catalog, TEMPLATE, index), queries), strict=True
            ):
                line |= results.percentiles(kind, taken)
            stored = file.stat().st_size + index.path.stat().st_size
            lines.append(line | _cold(root, catalog.name, queries.texts[0]) | {"file_mib": stored / 2**20})
    facts = results.sources(real, queries) | {"config": {"top": TOP, "document": TEMPLATE.document}}
    return Table("sizes", pd.DataFrame(lines), facts)


def _filled(file: Path, texts: list[str], vectors: FloatArray) -> IndexFile:
    index = index_file(file)
    index.kept.update(zip(map(text_hash, texts), vectors, strict=True))
    return index


def _searches(index: ToolIndex, queries: QuerySet) -> np.ndarray:
    """Wall and processor seconds of every query's search, shape (2, n_queries)."""
    taken = []
    index.search(queries.texts[0], TOP)
    for query in queries.texts:
        started, busy = time.perf_counter(), time.process_time()
        index.search(query, TOP)
        taken.append((time.perf_counter() - started, time.process_time() - busy))
    return np.array(taken).T


@contextmanager
def _project() -> Iterator[Path]:
    """A folder with this project's settings and no data."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "data" / "tools").mkdir(parents=True)
        (root / "conf").symlink_to(paths.conf())
        yield root


# A small process in between: a child's greatest memory is counted from that of the process which it was forked from.
WAIT = """import json, os, subprocess, sys
child = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, used = os.wait4(child.pid, 0)
print(json.dumps([status, used.ru_utime + used.ru_stime, used.ru_maxrss]))"""


def _cold(root: Path, name: str, query: str) -> dict[str, float]:
    """Seconds and memory of ``study tools find`` in a process of its own; the second of two, as files are then read."""
    words = [sys.executable, "-m", "study", "tools", "find", query[:500], "--catalogue", name]
    found: dict[str, float] = {}
    for _ in range(2):
        started = time.perf_counter()
        told = subprocess.run(  # noqa: S603
            [sys.executable, "-c", WAIT, *words],
            env=os.environ | {"T2M_ROOT": str(root)},
            stdout=subprocess.PIPE,
            check=True,
        )
        found = {"cold_s": time.perf_counter() - started}
        status, seconds, memory = json.loads(told.stdout)
        if status:
            raise subprocess.CalledProcessError(os.waitstatus_to_exitcode(status), words)
        found |= {"cold_cpu_s": seconds, "cold_mib": memory / (2**20 if sys.platform == "darwin" else 2**10)}
    return found
