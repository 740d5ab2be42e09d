"""Calls for any catalogue by what was learned from MCP-Flow's public instructions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from study.data.dataset import IntArray
from study.tools.catalogues.catalog import ToolCatalog
from study.tools.discovery import embedding
from study.tools.discovery.documents import documents
from study.tools.discovery.embedding import Embedder
from study.tools.flow import bench as benches
from study.tools.flow import selector
from study.tools.flow.bench import Bench
from study.tools.flow.calls import Call
from study.tools.flow.copier import Copier
from study.tools.flow.selector import Exemplars
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
    flow, embedder = load(), embedder or embedding.configured()
    bench = learned_from or benches.prepare(flow, embedder)
    trained = benches.train(
        bench, np.arange(len(bench.samples)), flow, flow.seeds[0], Copier(bench.catalog, flow.copying)
    )
    small = ToolCatalog(catalog.name, catalog.servers, tuple(catalog.tools[row] for row in candidates))
    written = documents(small, flow.document, flow.limit)
    vectors = embedder.encode([instruction], store=False)
    known = selector.evidence([instruction], small, written, embedder.encode(written, store=False), vectors)
    exemplars = carried(trained.exemplars, bench.catalog, small)
    every = np.arange(len(candidates))[None]
    similarity = exemplars.similarity(vectors)
    rows = selector.features(known, np.array([0]), every, exemplars, similarity)
    # Without an exemplar of any candidate, the weights that were learned without exemplars decide.
    seen = bool(len(exemplars.samples))
    weights = trained.weights[seen]
    place = int((rows[0, :, : len(weights)] @ weights).argmax())
    near = exemplars.nearest_of(similarity[0], place) if seen else None
    parameters = None if near is None else list(near.arguments)
    chosen = int(candidates[place])
    return Call(chosen, trained.copier.of(catalog).fill(instruction, chosen, parameters))


def carried(exemplars: Exemplars, known: ToolCatalog, candidates: ToolCatalog) -> Exemplars:
    """Those exemplars whose tools are among the candidates, by name and description, as exemplars of these.

    Args:
        known: the catalogue that the exemplars' tools are rows of.
        candidates: the catalogue that the tools of the returned exemplars are rows of.
    """
    place = {(tool.name, tool.description): row for row, tool in reversed(list(enumerate(candidates.tools)))}
    kept, samples = [], []
    for number, sample in enumerate(exemplars.samples):
        tool = known.tools[sample.tool]
        if (row := place.get((tool.name, tool.description))) is not None:
            kept.append(number)
            samples.append(replace(sample, tool=row, server=candidates.tools[row].server))
    return Exemplars(exemplars.vectors[kept], samples, exemplars.top)
