"""Everything that the experiments share: samples, evidence, candidates, trained parts, and how a system answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from tqdm import tqdm

from study.advisor.encoders import choose as embedding
from study.advisor.encoders.choose import Embedder
from study.advisor.retrieval.documents import ToolCatalog
from study.advisor.retrieval.texts import documents
from study.data.dataset import FloatArray, IntArray
from study.tools.collections import load_collection
from study.tools.flow import samples, selector
from study.tools.flow.samples import Sample, measures
from study.tools.flow.selector import Evidence, Exemplars
from study.tools.flow.settings import Flow, Pool, System
from study.tools.flow.slot_filler import SlotFiller, make_call

BLOCK = 512  # texts embedded between two saves
BATCH = 64  # instructions whose candidates are compared at a time


@dataclass(frozen=True)
class Bench:
    """A catalogue with its samples and everything computed of them once."""

    catalog: ToolCatalog
    samples: tuple[Sample, ...]
    tools: FloatArray  # vectors of the tools, shape (n_tools, d)
    evidence: Evidence  # of the samples
    left_out: int  # published samples without a call


@dataclass(frozen=True)
class Trained:
    """What one training set gives."""

    exemplars: Exemplars  # the training samples as a retrieval database
    weights: Mapping[bool, FloatArray]  # of the selector, by whether it sees exemplars
    slot_filler: SlotFiller  # of arguments


def embed(embedder: Embedder, texts: Sequence[str]) -> FloatArray:
    """Vectors of texts, short ones first, kept block by block: a stopped run goes on where it was. Shape (n, d)."""
    order = sorted(set(texts), key=lambda text: (len(text), text))
    # None: shown on a terminal alone, never in the answer of a command that is read by another program.
    silent = True if len(order) <= BLOCK else None
    for start in tqdm(range(0, len(order), BLOCK), desc="embed", disable=silent, delay=3):
        embedder.encode(order[start : start + BLOCK])
    return embedder.encode(texts)


def prepare(flow: Flow, embedder: Embedder | None = None) -> Bench:
    """MCP-Flow's public files as a bench."""
    loaded = load_collection(samples.COLLECTION)
    published = samples.load_samples(loaded)
    left_out = len(loaded.queries["instructions"]) - len(published)
    return assemble(loaded.catalog, published, flow, embedder or embedding.configured_embedder(), left_out)


def assemble(
    catalog: ToolCatalog,
    samples: Sequence[Sample],
    flow: Flow,
    embedder: Embedder,
    left_out: int = 0,
    tools: FloatArray | None = None,
) -> Bench:
    """A bench of any catalogue and samples. `tools`: vectors of the tools where they are known, shape (n_tools, d)."""
    written = documents(catalog, flow.document, flow.limit)
    tools = embed(embedder, written) if tools is None else tools
    texts = [sample.text for sample in samples]
    evidence = selector.evidence(texts, catalog, written, tools, embed(embedder, texts))
    return Bench(catalog, tuple(samples), tools, evidence, left_out)


def candidates(bench: Bench, pool: Pool, seed: int) -> list[IntArray]:
    """Candidates of every sample; the same for every split and system, so that differences are paired."""
    labelled = np.unique([sample.tool for sample in bench.samples])
    source = labelled if pool.source == "labelled" else np.arange(len(bench.catalog.tools))
    alike = selector.duplicates(bench.catalog)
    rng = np.random.default_rng([seed, len(source), pool.size or 0])
    return [selector.pool_of(sample, source, pool.size, alike[sample.tool], rng) for sample in bench.samples]


def train(bench: Bench, rows: IntArray, flow: Flow, seed: int, slot_filler: SlotFiller) -> Trained:
    """Learn selector and slot filler from the samples in `rows`. `slot_filler`: learns anew; what it has read of the
    instructions stays."""
    training = [bench.samples[row] for row in rows]
    exemplars = Exemplars(bench.evidence.vectors[rows], training, flow.exemplars)
    rng = np.random.default_rng([seed, len(rows)])
    pool, alike = np.unique([sample.tool for sample in training]), selector.duplicates(bench.catalog)
    size = min(flow.training.distractors + 1, len(pool))
    picked = [selector.pool_of(sample, pool, size, alike[sample.tool], rng) for sample in training]
    # Where duplicates leave too few tools, some appear twice.
    offered = np.array([np.resize(row, size) for row in picked])
    right = np.argmax(offered == np.array([[sample.tool] for sample in training]), axis=1)
    similarity = exemplars.similarity(bench.evidence.vectors[rows], [sample.group for sample in training])
    hidden = rng.random(offered.shape) < flow.training.mask
    features = selector.features(bench.evidence, rows, offered, exemplars, similarity, hidden)
    widths = {True: len(selector.FEATURES), False: selector.PLAIN}
    weights = {seen: selector.fit(features[:, :, :n], right, flow.training.penalty) for seen, n in widths.items()}
    return Trained(exemplars, weights, slot_filler.fit(training))


def scores(select: str, features: FloatArray, weights: FloatArray, rng: np.random.Generator) -> FloatArray:
    """How well each candidate fits, shape (b, m). `features`: shape (b, m, 7). `weights`: of a trained selector."""
    if select == "random":
        return rng.random(features.shape[:2], dtype=np.float32)
    by_name = dict(zip(selector.FEATURES, np.moveaxis(features, 2, 0), strict=True))
    if select == "exemplars":  # most votes first, then the nearest exemplar, then the document
        votes = by_name["votes"]
        return np.asarray(votes * 1000 + np.where(votes > 0, 10 + by_name["nearest"], by_name["dense"]))
    return np.asarray(features[:, :, : len(weights)] @ weights if select == "trained" else by_name[select])


def answer(
    bench: Bench, rows: IntArray, pools: Sequence[IntArray], systems: Mapping[str, System], trained: Trained, seed: int
) -> dict[str, pd.DataFrame]:
    """Per system its answers to the samples in `rows`: columns task_id, rank (of the right tool, from 1) and measures.

    `pools`: candidates of every sample of the bench, in random order, which breaks ties. `trained`: what the systems
    have learned; none of it may come from `rows`.
    """
    answers: dict[str, list[dict[str, object]]] = {name: [] for name in systems}
    rng = np.random.default_rng([seed, len(rows)])
    for start in range(0, len(rows), BATCH):
        part = rows[start : start + BATCH]
        similarity = trained.exemplars.similarity(bench.evidence.vectors[part])
        width = max(len(pools[row]) for row in part)
        several = np.array([np.pad(pools[row], (0, width - len(pools[row])), constant_values=-1) for row in part])
        features = selector.features(bench.evidence, part, several, trained.exemplars, similarity)
        for name, system in systems.items():
            fit = scores(system.select, features, trained.weights[system.exemplars], rng)
            fit = np.where(several >= 0, fit, -np.inf)
            order = np.argsort(-fit, axis=1, kind="stable")
            for line, row in enumerate(part):
                one, ranked, call = bench.samples[row], several[line, order[line]], None
                if ranked[0] == one.tool:  # arguments of another tool cannot count
                    learned = trained.slot_filler, trained.exemplars, similarity[line]
                    call = make_call(system.call, one.text, one.tool, *learned)
                rank = int(np.flatnonzero(ranked == one.tool)[0]) + 1
                answers[name].append({"task_id": one.id, "rank": rank, **measures(call, one)})
    return {name: pd.DataFrame(lines) for name, lines in answers.items()}
