"""Calls for any catalogue by what was learned from MCP-Flow's public instructions."""

from __future__ import annotations

import numpy as np

from study.data.dataset import IntArray
from study.tools.catalogues.catalog import ToolCatalog
from study.tools.discovery.documents import documents
from study.tools.discovery.embedding import Embedder, MiniLm
from study.tools.flow import bench as benches
from study.tools.flow import selector
from study.tools.flow.bench import Bench
from study.tools.flow.calls import Call
from study.tools.flow.copier import Copier
from study.tools.flow.settings import load


def call(
    catalog: ToolCatalog, instruction: str, candidates: IntArray, *, learned_from: Bench | None = None,
    embedder: Embedder | None = None,
) -> Call:  # fmt: skip
    """The best of the candidates with its arguments; learns first (seconds, once the texts are embedded).

    Args:
        candidates: tool rows of `catalog`, of which `instruction` means one.
        learned_from: samples to learn from; default MCP-Flow's.
    """
    flow, embedder = load(), embedder or MiniLm()
    bench = learned_from or benches.prepare(flow, embedder)
    trained = benches.train(
        bench, np.arange(len(bench.samples)), flow, flow.seeds[0], Copier(bench.catalog, flow.copying)
    )
    small = ToolCatalog(catalog.name, catalog.servers, tuple(catalog.tools[row] for row in candidates))
    written = documents(small, flow.document, flow.limit)
    vectors = embedder.encode([instruction], store=False)
    known = selector.evidence([instruction], small, written, embedder.encode(written, store=False), vectors)
    none = selector.Exemplars(vectors[:0], [], 0)
    every = np.arange(len(candidates))[None]
    rows = selector.features(known, np.array([0]), every, none, np.zeros((1, 0), dtype=np.float32))
    chosen = int(candidates[int((rows[0, :, : selector.PLAIN] @ trained.weights[False]).argmax())])
    return Call(chosen, trained.copier.of(catalog).fill(instruction, chosen))
