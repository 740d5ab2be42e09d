"""`QuerySet`: queries over a catalogue of tools, with their labels.

A label is a *set* of acceptable tools: a published label that names a tool without its server accepts every tool of
that name, and a published list of equivalent tools accepts each of them. A label is found as soon as one of its tools
is ranked; a second tool of the same label is then one more useless tool. So recall counts labels, not tools.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from study.advisor.arrays import FloatArray, IntArray
from study.base.errors import StudyError
from study.evaluation.ranking import tie_order, top_k

Label = tuple[int, ...]


@dataclass(frozen=True)
class QuerySet:
    """Queries over one catalogue."""

    name: str  # of the set
    ids: tuple[str, ...]  # one id per query
    texts: tuple[str, ...]  # what is asked
    labels: tuple[tuple[Label, ...], ...]  # per query, each the rows of the tools that satisfy it; disjoint
    groups: tuple[str, ...]  # queries of one origin share a group (for resampling and splits)

    def __post_init__(self) -> None:
        if len({len(self.ids), len(self.texts), len(self.labels), len(self.groups)}) > 1:
            raise StudyError(f"the query set {self.name} has columns of different length", fix="build it again")
        if len(set(self.ids)) < len(self.ids):
            raise StudyError(f"the query set {self.name} repeats an id", fix="number the repeats")
        for row, labels in enumerate(self.labels):
            tools = [tool for label in labels for tool in label]
            if len(set(tools)) < len(tools) or not all(labels):
                raise StudyError(f"labels of {self.name} are empty or overlap", row=row, fix="join the labels")

    def __len__(self) -> int:
        return len(self.ids)

    def fingerprint(self) -> str:
        """SHA-256 of ids, texts, labels and groups, in hex."""
        content = [self.ids, self.texts, self.labels, self.groups]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def rows(self) -> list[tuple[str, str, tuple[Label, ...], str]]:
        """Id, text, labels and group of every query."""
        return list(zip(self.ids, self.texts, self.labels, self.groups, strict=True))

    def take(self, rows: Sequence[int]) -> QuerySet:
        """The queries at `rows`."""
        return query_set(self.name, [self.rows()[row] for row in rows])


def query_set(name: str, rows: Iterable[Sequence[Any]]) -> QuerySet:
    """Queries from rows of id, text, labels and group."""
    ids, texts, labels, groups = zip(*rows, strict=True)
    return QuerySet(name, ids, texts, labels, groups)


def rank_all(scores: FloatArray, k: int | None = None, order: IntArray | None = None) -> IntArray:
    """Every row's tools, best first (the first `k`), -1 where not ranked. `order`: of tools with one score; default: a
    seeded random one."""
    ranked, _ = top_k(scores, k or scores.shape[1], tie_order(scores.shape[1], 0) if order is None else order)
    return ranked


def credit(ranked: IntArray, labels: Sequence[Sequence[Label]], n_tools: int) -> tuple[IntArray, sp.csr_matrix]:
    """Rankings and relevance in the form that `study.evaluation.metrics` takes, one column per label.

    Inside every row the first ranked tool of a label changes places with the label's first tool, which stands for the
    label in the relevance matrix; no tool repeats. `ranked`: tool rows, best first, shape (b, K); -1 is unfilled.
    Returns: the rewritten rankings, shape (b, K), and the relevance, CSR of shape (b, n_tools).
    """
    rewritten = ranked.copy()
    rows, columns = [], []
    for row, task_labels in enumerate(labels):
        for label in task_labels:
            rows.append(row)
            columns.append(label[0])
            places = np.flatnonzero(np.isin(ranked[row], label))
            if len(places):
                rewritten[row, ranked[row] == label[0]] = ranked[row, places[0]]
                rewritten[row, places[0]] = label[0]
    values = np.ones(len(rows), dtype=np.float32)
    return rewritten, sp.csr_matrix((values, (rows, columns)), shape=(len(labels), n_tools))
