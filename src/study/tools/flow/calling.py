"""Calls for any catalogue by what was learned from MCP-Flow's public instructions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from study.data.dataset import IntArray
from study.encoders import endpoint as embedding
from study.encoders.endpoint import Embedder
from study.tools.catalogues.catalog import ToolCatalog
from study.tools.discovery.documents import documents
from study.tools.flow import learned, selector
from study.tools.flow.bench import Bench
from study.tools.flow.calls import Call
from study.tools.flow.settings import load


def call(
    catalog: ToolCatalog,
    instruction: str,
    candidates: IntArray,
    *,
    learned_from: Bench | None = None,
    embedder: Embedder | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Call:
    """The best of the candidates with its arguments; None is the value of a required one for which nothing was found.

    Args:
        candidates: tool rows of `catalog`, of which `instruction` means one.
        learned_from: samples to learn from; default MCP-Flow's, from which is learned once.
        say: told before work that takes minutes.
    """
    flow, embedder = load(), embedder or embedding.configured()
    known = learned.learn(learned_from, flow) if learned_from else learned.configured(flow, embedder, say)
    small = ToolCatalog(catalog.name, catalog.servers, tuple(catalog.tools[row] for row in candidates))
    written = documents(small, flow.document, flow.limit)
    vectors = embedder.encode([instruction], store=False)
    evidence = selector.evidence([instruction], small, written, embedder.encode(written, store=False), vectors)
    exemplars = known.exemplars(small, flow.exemplars)
    similarity = exemplars.similarity(vectors)
    every = np.arange(len(candidates))[None]
    rows = selector.features(evidence, np.array([0]), every, exemplars, similarity)
    # Without an exemplar of any candidate, the weights that were learned without exemplars decide.
    seen = bool(len(exemplars.samples))
    weights = known.weights[seen]
    place = int((rows[0, :, : len(weights)] @ weights).argmax())
    near = exemplars.nearest_of(similarity[0], place) if seen else None
    chosen = int(candidates[place])
    needed = [parameter.name for parameter in catalog.tools[chosen].parameters if parameter.required]
    parameters = None if near is None else list(dict.fromkeys([*near.arguments, *needed]))
    copier = known.copier(catalog, flow.copying)
    given = copier.fill(instruction, chosen, parameters, absent=None)
    # An optional parameter without a value is left to the tool; a required one shows that something is missing.
    return Call(chosen, {name: value for name, value in given.items() if value is not None or name in needed})


def missing(catalog: ToolCatalog, made: Call) -> list[str]:
    """Required parameters for which no value was found."""
    return [
        parameter.name
        for parameter in catalog.tools[made.tool].parameters
        if parameter.required and made.arguments.get(parameter.name) is None
    ]
