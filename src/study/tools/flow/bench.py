"""Which of some candidate tools an instruction means: evidence, exemplars, a trained selector, and systems' answers.

The selector stands in for the paper's fine-tuned language models: a conditional logit over seven numbers per candidate,
with exemplars hidden at random in training, or it would only learn that tools with exemplars are right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.optimize import minimize
from sklearn.feature_extraction.text import CountVectorizer
from tqdm import tqdm

from study.advisor.encoders import choose as embedding
from study.advisor.retrieval.documents import ToolCatalog
from study.advisor.retrieval.lexical import Bm25, words_of
from study.advisor.retrieval.texts import documents
from study.data.dataset import FloatArray, IntArray
from study.tools.collections import load_collection
from study.tools.flow.samples import COLLECTION, Call, Sample, load_samples, measures
from study.tools.flow.settings import Flow, Pool, System
from study.tools.flow.slot_filler import SlotFiller

FEATURES = ("dense", "bm25", "tool_name", "server_name", "known", "nearest", "votes")
PLAIN = 4  # of them need no exemplars
ABSENT = -1.0  # below every cosine that text vectors reach
BLOCK = 512  # texts embedded between two saves
BATCH = 64  # instructions whose candidates are compared at a time


@dataclass(frozen=True)
class Evidence:
    """What is known of every instruction and every tool, all shapes (n, n_tools)."""

    vectors: FloatArray  # of the instructions, shape (n, d), length 1
    dense: FloatArray  # cosine of instruction and tool document
    words: FloatArray  # BM25 of the same, divided by the largest of the row
    names: FloatArray  # names, servers: share of the words of the tool's (its server's) name that the instruction holds
    servers: FloatArray


@dataclass(frozen=True)
class Bench:
    """A catalogue with its samples and everything computed of them once."""

    catalog: ToolCatalog
    samples: tuple[Sample, ...]
    tools: FloatArray  # vectors of the tools, shape (n_tools, d)
    evidence: Evidence  # of the samples
    left_out: int  # published samples without a call


def prepare(flow: Flow) -> Bench:
    """MCP-Flow's public files as a bench."""
    loaded = load_collection(COLLECTION)
    published = load_samples(loaded)
    left_out = len(loaded.queries["instructions"]) - len(published)
    return assemble(loaded.catalog, published, flow, left_out)


def assemble(
    catalog: ToolCatalog, samples: Sequence[Sample], flow: Flow, left_out: int = 0, tools: FloatArray | None = None
) -> Bench:
    """A bench of any catalogue and samples. `tools`: vectors of the tools where they are known, shape (n_tools, d)."""
    written, texts = documents(catalog, flow.document, flow.limit), [sample.text for sample in samples]
    tools = embed(written) if tools is None else tools
    known = evidence(texts, catalog, written, tools, embed(texts))
    return Bench(catalog, tuple(samples), tools, known, left_out)


def embed(texts: Sequence[str]) -> FloatArray:
    """Vectors of texts, short ones first, kept block by block: a stopped run goes on where it was. Shape (n, d)."""
    embedder, order = embedding.configured_embedder(), sorted(set(texts), key=lambda text: (len(text), text))
    # None: shown on a terminal alone, never in the answer of a command that is read by another program.
    silent = True if len(order) <= BLOCK else None
    for start in tqdm(range(0, len(order), BLOCK), desc="embed", disable=silent, delay=3):
        embedder.encode(order[start : start + BLOCK])
    return embedder.encode(texts)


def evidence(
    texts: Sequence[str], catalog: ToolCatalog, documents: Sequence[str], tools: FloatArray, vectors: FloatArray
) -> Evidence:
    """Compare instructions with tools. `documents`, `tools`: texts and vectors of the tools, shapes (n_tools,) and
    (n_tools, d). `vectors`: of the instructions, shape (n, d)."""
    words = Bm25(documents).scores(texts)
    words /= np.maximum(words.max(axis=1, keepdims=True, initial=0), 1e-9)
    tool_names = [tool.name for tool in catalog.tools]
    theirs = [catalog.servers[tool.server].name for tool in catalog.tools]
    return Evidence(vectors, vectors @ tools.T, words, overlap(texts, tool_names), overlap(texts, theirs))


def overlap(texts: Sequence[str], names: Sequence[str]) -> FloatArray:
    """Share of each name's words that each text holds, shape (len(texts), len(names)); 0 for a name without words."""
    counter = CountVectorizer(tokenizer=words_of, token_pattern=None, lowercase=False, binary=True, dtype=np.float32)
    named = counter.fit_transform([f"{name} a" for name in names])  # one word at least, or there is no vocabulary
    named[:, counter.vocabulary_["a"]] = 0
    sizes = np.maximum(np.asarray(named.sum(axis=1)).ravel(), 1)
    share: FloatArray = (counter.transform(texts) @ named.T).toarray() / sizes[None].astype(np.float32)
    return share


class Exemplars:
    """The retrieval database: instructions whose tools are known (section 4.3)."""

    def __init__(self, vectors: FloatArray, samples: Sequence[Sample], top: int) -> None:
        """`vectors`: shape (len(samples), d), length 1. `top`: exemplars retrieved for an instruction (paper: 5)."""
        self.vectors, self.samples, self.top = vectors, list(samples), top
        tools = np.array([sample.tool for sample in samples], dtype=np.int64)
        self.tools, self.column = np.unique(tools, return_inverse=True)
        self.groups = np.array([sample.group for sample in samples], dtype=object)

    def similarity(self, vectors: FloatArray, groups: Sequence[str] | None = None) -> FloatArray:
        """Cosine to every exemplar, shape (b, n); `ABSENT` for those of a row's own group, where `groups` are given."""
        cosines: FloatArray = vectors @ self.vectors.T
        if groups is not None:
            cosines[np.array(groups, dtype=object)[:, None] == self.groups[None]] = ABSENT
        return cosines

    def by_tool(self, similarity: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The nearest exemplar's cosine and the share of the retrieved ones, both of shape (b, len(self.tools)), for a
        database that holds something."""
        order = np.argsort(self.column, kind="stable")
        starts = np.searchsorted(self.column[order], np.arange(len(self.tools)))
        nearest: FloatArray = np.maximum.reduceat(similarity[:, order], starts, axis=1)
        votes = np.zeros(nearest.shape, dtype=np.float32)
        top = np.argsort(-similarity, axis=1, kind="stable")[:, : self.top]
        rows = np.repeat(np.arange(len(similarity)), top.shape[1])
        valid = similarity[rows, top.ravel()] > ABSENT
        np.add.at(votes, (rows[valid], self.column[top.ravel()[valid]]), 1 / self.top)
        return nearest, votes

    def nearest_of(self, similarity: FloatArray, tool: int) -> Sample | None:
        """The nearest exemplar that calls `tool`, None where there is none; `similarity`: of one instruction, (n,)."""
        rows = np.flatnonzero(self.tools[self.column] == tool)
        best = rows[np.argmax(similarity[rows])] if len(rows) else None
        return None if best is None or similarity[best] <= ABSENT else self.samples[best]


def features(
    evidence: Evidence,
    rows: IntArray,
    candidates: IntArray,
    exemplars: Exemplars,
    similarity: FloatArray,
    hidden: np.ndarray | bool = False,
) -> FloatArray:
    """The numbers of `FEATURES` for every candidate, shape (b, m, 7).

    `rows`: of the instructions in `evidence`, shape (b,). `candidates`: tool rows, shape (b, m). `similarity`: from
    `Exemplars.similarity` for these rows. `hidden`: candidates whose exemplars do not count, shape (b, m).
    """
    there = np.zeros(candidates.shape, dtype=bool)
    near, share = np.zeros((2, *candidates.shape), dtype=np.float32)
    if len(exemplars.tools):
        nearest, votes = exemplars.by_tool(similarity)
        column = np.searchsorted(exemplars.tools, candidates).clip(max=len(exemplars.tools) - 1)
        line = np.arange(len(rows))[:, None]
        there = (exemplars.tools[column] == candidates) & (nearest[line, column] > ABSENT) & ~np.asarray(hidden)
        near, share = (np.where(there, part[line, column], 0) for part in (nearest, votes))
    compared = (evidence.dense, evidence.words, evidence.names, evidence.servers)
    parts = (*(part[rows[:, None], candidates] for part in compared), there, near, share)
    return np.stack([part.astype(np.float32) for part in parts], axis=2)


def fit(rows: FloatArray, right: IntArray, penalty: float) -> FloatArray:
    """Weights of a conditional logit (McFadden 1974): softmax over candidates, mean cross-entropy, L2 penalty. `rows`:
    shape (b, m, f). `right`: place of the right candidate, shape (b,). Returns: shape (f,)."""
    line, data = np.arange(len(rows)), rows.astype(np.float64)

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        scores = data @ weights
        scores -= scores.max(axis=1, keepdims=True)
        chance = np.exp(scores)
        chance /= chance.sum(axis=1, keepdims=True)
        value = -np.log(chance[line, right] + 1e-300).mean() + penalty * weights @ weights / 2
        slope = (np.einsum("bm,bmf->f", chance, data) - data[line, right].sum(axis=0)) / len(data)
        return float(value), slope + penalty * weights

    weights: FloatArray = minimize(loss, np.zeros(rows.shape[2]), jac=True, method="L-BFGS-B").x.astype(np.float32)
    return weights


def pool_of(
    sample: Sample, pool: IntArray, size: int | None, duplicates: frozenset[int], rng: np.random.Generator
) -> IntArray:
    """Candidates of one instruction in random order: the right tool and others, but no duplicate of it (equally right).
    `pool`: tool rows to sample from. `size`: candidates; None takes the whole pool."""
    others = pool[~np.isin(pool, [sample.tool, *duplicates])]
    chosen = others if size is None else rng.choice(others, size=min(size - 1, len(others)), replace=False)
    return rng.permutation(np.append(chosen, sample.tool))


def duplicates(catalog: ToolCatalog) -> list[frozenset[int]]:
    """The duplicates of every tool: the other tools with the same name and description."""
    keys = [(tool.name, tool.description) for tool in catalog.tools]
    rows: dict[tuple[str, str], set[int]] = {}
    for row, key in enumerate(keys):
        rows.setdefault(key, set()).add(row)
    return [frozenset(rows[key] - {row}) for row, key in enumerate(keys)]


def candidates(bench: Bench, pool: Pool, seed: int) -> list[IntArray]:
    """Candidates of every sample; the same for every split and system, so that differences are paired."""
    labelled = np.unique([sample.tool for sample in bench.samples])
    source = labelled if pool.source == "labelled" else np.arange(len(bench.catalog.tools))
    alike, rng = duplicates(bench.catalog), np.random.default_rng([seed, len(source), pool.size or 0])
    return [pool_of(sample, source, pool.size, alike[sample.tool], rng) for sample in bench.samples]


@dataclass(frozen=True)
class Trained:
    """What one training set gives."""

    exemplars: Exemplars  # the training samples as a retrieval database
    weights: Mapping[bool, FloatArray]  # of the selector, by whether it sees exemplars
    slot_filler: SlotFiller  # of arguments


def train(bench: Bench, rows: IntArray, flow: Flow, seed: int, slot_filler: SlotFiller) -> Trained:
    """Learn selector and slot filler from the samples in `rows`. `slot_filler`: learns anew; what it has read of the
    instructions stays."""
    training = [bench.samples[row] for row in rows]
    exemplars = Exemplars(bench.evidence.vectors[rows], training, flow.exemplars)
    rng = np.random.default_rng([seed, len(rows)])
    pool, alike = np.unique([sample.tool for sample in training]), duplicates(bench.catalog)
    size = min(flow.training.distractors + 1, len(pool))
    picked = [pool_of(sample, pool, size, alike[sample.tool], rng) for sample in training]
    # Where duplicates leave too few tools, some appear twice.
    offered = np.array([np.resize(row, size) for row in picked])
    right = np.argmax(offered == np.array([[sample.tool] for sample in training]), axis=1)
    similarity = exemplars.similarity(bench.evidence.vectors[rows], [sample.group for sample in training])
    hidden = rng.random(offered.shape) < flow.training.mask
    numbers = features(bench.evidence, rows, offered, exemplars, similarity, hidden)
    widths = {True: len(FEATURES), False: PLAIN}
    weights = {seen: fit(numbers[:, :, :width], right, flow.training.penalty) for seen, width in widths.items()}
    return Trained(exemplars, weights, slot_filler.fit(training))


def scores(select: str, features: FloatArray, weights: FloatArray, rng: np.random.Generator) -> FloatArray:
    """How well each candidate fits, shape (b, m). `features`: shape (b, m, 7). `weights`: of a trained selector."""
    if select == "random":
        return rng.random(features.shape[:2], dtype=np.float32)
    by_name = dict(zip(FEATURES, np.moveaxis(features, 2, 0), strict=True))
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
        numbers = features(bench.evidence, part, several, trained.exemplars, similarity)
        for name, system in systems.items():
            fits = scores(system.select, numbers, trained.weights[system.exemplars], rng)
            order = np.argsort(-np.where(several >= 0, fits, -np.inf), axis=1, kind="stable")
            for line, row in enumerate(part):
                one, ranked, call = bench.samples[row], several[line, order[line]], None
                if ranked[0] == one.tool:  # arguments of another tool cannot count
                    call = make_call(system.call, one, trained, similarity[line])
                rank = int(np.flatnonzero(ranked == one.tool)[0]) + 1
                answers[name].append({"task_id": one.id, "rank": rank, **measures(call, one)})
    return {name: pd.DataFrame(lines) for name, lines in answers.items()}


def make_call(kind: str, sample: Sample, trained: Trained, similarity: FloatArray) -> Call:
    """The call of the right tool for an instruction; `similarity`: of it to every exemplar, shape (n,).

    ``required``: each required parameter with the first piece of the text that fits (nothing is learned). ``trained``:
    by the slot filler. ``copied``: the nearest exemplar's arguments word for word, else as required. ``borrowed``: the
    nearest exemplar's parameters, filled by the slot filler, else as trained.
    """
    text, tool = sample.text, sample.tool
    near = trained.exemplars.nearest_of(similarity, tool) if kind in ("copied", "borrowed") else None
    if kind == "copied" and near is not None:
        return Call(tool, near.arguments)
    if kind in ("required", "copied"):
        return Call(tool, trained.slot_filler.required(text, tool))
    return Call(tool, trained.slot_filler.fill(text, tool, None if near is None else list(near.arguments)))
