"""T2MRec trained on other labels than the released ones: do the labels or the model limit it?"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
import pandas as pd
import scipy.sparse as sp
from pydantic import Field

from study.advisor.encoders.sentence import encode
from study.advisor.retrieval.field_dense import FieldDense
from study.advisor.retrieval.fields import FIELDS, VIEWS, capability, texts
from study.advisor.retrieval.settings import Count, Group
from study.base.errors import StudyError
from study.data.dataset import Dataset, IntArray, relevance_from_lists
from study.data.splits import Split
from study.evaluation.ranking import chunks, tie_order, top_k

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Supervision(Group):
    """What T2MRec, architecture and training unchanged, learns from in place of the released labels.

    ``agreement``: the released labels of the training tasks that an encoder finds near the task's description;
    ``teacher``: the first servers of the teacher for the training tasks; ``cards``: one query per server, made from its
    card, whose answer is that server.
    """

    sources: Annotated[list[Literal["agreement", "teacher", "cards"]], Field(min_length=1)]
    keep: Annotated[float, Field(gt=0, le=1)] = 0.05  # agreement keeps a label within this share, nearest first
    depth: Count = 5  # servers that the teacher gives per task


def add_supervision(
    data: Dataset, split: Split, supervision: Supervision, teacher: FieldDense | None = None
) -> tuple[Dataset, Split]:
    """The data set, card queries appended as further tasks, and a split whose training part is the supervision.

    Row numbers of the given tasks stay. Validation and test parts are empty.
    """
    tasks, n = split.tasks("train"), data.n_servers
    positives = sp.csr_matrix(split.train.shape, dtype=np.float32)
    if "agreement" in supervision.sources:
        positives = positives + select_agreeing(data, split.train, tasks, supervision.keep)
    if "teacher" in supervision.sources:
        if teacher is None:
            raise StudyError("nobody teaches", column="model.teacher", fix="teacher: {model_of: field_dense}")
        positives = positives + ask_teacher(data, tasks, supervision.depth, teacher)
    if "cards" in supervision.sources:
        queries = card_queries(data.servers, data.tasks)
        # Rows without words teach nothing.
        rows = np.flatnonzero((queries["description"] != "").to_numpy())
        extra = sp.csr_matrix((np.ones(len(rows), np.float32), (np.arange(len(rows)), rows)), shape=(len(rows), n))
        positives = sp.vstack([positives, extra], format="csr")
        whole = pd.concat([data.tasks, queries.iloc[rows]], ignore_index=True)
        lists = (*data.lists, *(np.array([row], dtype=np.int64) for row in rows))
        data = replace(data, tasks=whole, lists=lists, relevance=relevance_from_lists(lists, n))
    positives.data[:] = 1
    taught_tasks, name = int((np.diff(positives.indptr) > 0).sum()), "+".join(supervision.sources)
    LOG.info("supervision %s: %d tasks with %d servers", name, taught_tasks, positives.nnz)
    if not positives.nnz:
        raise StudyError("the supervision leaves no label", column="model.supervision.keep", fix="raise keep")
    empty = sp.csr_matrix(positives.shape, dtype=np.float32)
    return data, Split(split.protocol, sp.csr_matrix(positives), empty, empty, cold=split.cold)


def select_agreeing(data: Dataset, labels: sp.csr_matrix, tasks: IntArray, keep: float) -> sp.csr_matrix:
    """The labels of `tasks` whose server's text is among the nearest share `keep` of the catalogue to the task's
    description (MiniLM cosine), shape of `labels`.
    """
    servers = encode(texts(data.servers, FIELDS, "all"))
    descriptions = encode(texts(data.tasks.iloc[tasks], VIEWS, "description"))
    most = int(np.ceil(keep * data.n_servers))
    rows, columns = [], []
    for part in chunks(np.arange(len(tasks))):
        cosines = descriptions[part] @ servers.T
        border = np.partition(cosines, data.n_servers - most, axis=1)[:, data.n_servers - most]
        row, column = labels[tasks[part]].nonzero()
        near = cosines[row, column] >= border[row]
        rows.extend(tasks[part][row[near]])
        columns.extend(column[near])
    return sp.csr_matrix((np.ones(len(rows), np.float32), (rows, columns)), shape=labels.shape)


def ask_teacher(data: Dataset, tasks: IntArray, depth: int, teacher: FieldDense) -> sp.csr_matrix:
    """The first `depth` servers of the teacher for each of `tasks`, shape (n_tasks, n_servers)."""
    teacher.index(data.servers)
    order, blocks = tie_order(data.n_servers, 0), []
    for part in chunks(np.arange(len(tasks))):
        blocks.append(top_k(teacher.score_requests(data.tasks.iloc[tasks[part]]), depth, order)[0])
    columns = np.concatenate(blocks)
    rows = np.repeat(tasks, columns.shape[1])
    values = np.ones(columns.size, np.float32)
    return sp.csr_matrix((values, (rows, columns.ravel())), shape=(data.n_tasks, data.n_servers))


def card_queries(servers: pd.DataFrame, tasks: pd.DataFrame) -> pd.DataFrame:
    """One request per server from its card: what it can do, in its language; its name is not in it.

    The columns are those of `tasks`; ids are negative, so that they are no task's.
    """
    columns = {name: [""] * len(servers) for name in tasks.columns}
    columns["description"] = [
        without(name, capability(text)) for name, text in zip(servers["name"], servers["description"], strict=True)
    ]
    columns["language"] = list(servers["language"])
    queries = pd.DataFrame(columns)
    return queries.assign(id=-1 - np.arange(len(servers)))


def without(name: str, text: str) -> str:
    """The text without a server's name, where that stands as a word of its own."""
    rest = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", " ", text, flags=re.IGNORECASE) if name else text
    return " ".join(rest.split())
