"""Which of some candidate tools an instruction means: evidence, retrieval of exemplars, and a trained selector.

It stands in for the paper's fine-tuned language models: a conditional logit over seven numbers per candidate, with
exemplars hidden at random in training, or it would only learn that tools with exemplars are right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from sklearn.feature_extraction.text import CountVectorizer

from study.advisor.retrieval.documents import ToolCatalog
from study.advisor.retrieval.lexical import Bm25, words_of
from study.data.dataset import FloatArray, IntArray
from study.tools.flow.samples import Sample

FEATURES = ("dense", "bm25", "tool_name", "server_name", "known", "nearest", "votes")
PLAIN = 4  # of them need no exemplars
ABSENT = -1.0  # below every cosine that text vectors reach


@dataclass(frozen=True)
class Evidence:
    """What is known of every instruction and every tool, all shapes (n, n_tools)."""

    vectors: FloatArray  # of the instructions, shape (n, d), length 1
    dense: FloatArray  # cosine of instruction and tool document
    words: FloatArray  # BM25 of the same, divided by the largest of the row
    names: FloatArray  # names, servers: share of the words of the tool's (its server's) name that the instruction holds
    servers: FloatArray


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
        """The nearest exemplar's cosine and the share of the retrieved ones, both of shape (b, len(self.tools))."""
        nearest = np.full((len(similarity), len(self.tools)), ABSENT, dtype=np.float32)
        votes = np.zeros_like(nearest)
        if len(self.tools):
            order = np.argsort(self.column, kind="stable")
            starts = np.searchsorted(self.column[order], np.arange(len(self.tools)))
            nearest = np.maximum.reduceat(similarity[:, order], starts, axis=1)
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
    compared = [
        part[rows[:, None], candidates] for part in (evidence.dense, evidence.words, evidence.names, evidence.servers)
    ]
    return np.stack([part.astype(np.float32) for part in (*compared, there, near, share)], axis=2)


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

    solution = minimize(loss, np.zeros(rows.shape[2]), jac=True, method="L-BFGS-B")
    weights: FloatArray = solution.x.astype(np.float32)
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
    rows: dict[tuple[str, str], list[int]] = {}
    for row, key in enumerate(keys):
        rows.setdefault(key, []).append(row)
    return [frozenset(rows[key]) - {row} for row, key in enumerate(keys)]
