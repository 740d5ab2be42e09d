"""Small data sets made in memory, whose answers are known, and the same with other answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import scipy.sparse as sp

from study.data.dataset import SERVER_FIELDS, TASK_FIELDS, Dataset, IntArray, relevance_from_lists
from study.data.splits import PARTS, Split

LABELS = 10  # servers that a task lists
WORDS = (
    ("database", "query", "index", "storage", "record", "column", "schema", "cursor", "backup", "replica"),
    ("image", "camera", "pixel", "colour", "contrast", "shadow", "texture", "polygon", "lighting", "render"),
)


def table(rows: Sequence[dict[str, str]], columns: Sequence[str]) -> pd.DataFrame:
    """A table of texts with these columns and ids from 1; what a row lacks is the empty text."""
    frame = pd.DataFrame(rows).fillna("").reindex(columns=list(dict.fromkeys(["id", *columns])), fill_value="")
    return frame.astype(str).assign(id=np.arange(1, len(frame) + 1))


def make_dataset(
    tasks: Sequence[dict[str, str]], servers: Sequence[dict[str, str]], lists: Sequence[Sequence[int]]
) -> Dataset:
    """A data set from partial rows (absent fields are empty) and server row numbers per task."""
    rows = tuple(np.array(row, dtype=np.int64) for row in lists)
    return Dataset(
        "toy",
        table(servers, (*SERVER_FIELDS, "url", "official", "origin", "license", "stars_count")),
        table(tasks, (*TASK_FIELDS, "subcategory")),
        relevance_from_lists(rows, len(servers)),
        rows,
    )


def block_dataset(
    *, words: Sequence[Sequence[str]] = WORDS, n_tasks: int = 20, n_servers: int = 15, n_words: int = 4
) -> Dataset:
    """Blocks of tasks, which list ten servers of their own block alone and share its words. `words`, `n_tasks`,
    `n_servers` (at least ten) are those of a block, `n_words` those in the text of a task and of a server."""
    rng = np.random.default_rng(0)
    tasks, servers, lists = [], [], []
    for block, block_words in enumerate(words):
        for _ in range(n_servers):
            chosen = rng.choice(block_words, n_words, replace=False)
            servers.append({"name": chosen[0], "description": " ".join(chosen), "language": "Python"})
        for number in range(n_tasks):
            chosen = rng.choice(block_words, n_words, replace=False)
            kind = {"category": ("work", "play")[number % 2], "subcategory": f"sub{block}", "language": "Python"}
            texts = {"name": f"{chosen[0]} {chosen[1]}", "description": " ".join(chosen)}
            tasks.append(texts | kind | {"theme": f"theme{block}{number % 3}"})
            lists.append([int(row) for row in block * n_servers + rng.choice(n_servers, LABELS, replace=False)])
    return make_dataset(tasks, servers, lists)


def with_other_answers(data: Dataset, split: Split, parts: Sequence[str], seed: int = 7) -> tuple[Dataset, Split]:
    """The same training interactions, but random other servers wherever `parts` had labels (in the data set, too)."""
    rng, lists = np.random.default_rng(seed), [row.copy() for row in data.lists]
    answers: dict[str, list[IntArray]] = {name: [] for name in parts}
    for task, row in enumerate(lists):
        for name in parts:
            hidden = np.isin(row, split.part(name)[[task]].indices)
            free = np.setdiff1d(np.arange(data.n_servers), [*data.lists[task], *row])
            row[hidden] = rng.choice(free, hidden.sum(), replace=False)
            answers[name].append(row[hidden])
    changed = replace(data, lists=tuple(lists), relevance=relevance_from_lists(tuple(lists), data.n_servers))
    return changed, replace(split, **{n: relevance_from_lists(tuple(r), data.n_servers) for n, r in answers.items()})


def relabelled(data: Dataset, split: Split, seed: int = 5) -> tuple[Dataset, Split, np.ndarray]:
    """The same data with its servers in another order, and the new row of each server."""
    new_row = np.random.default_rng(seed).permutation(data.n_servers)
    old_row = np.argsort(new_row)
    lists = tuple(new_row[row] for row in data.lists)
    servers = data.servers.iloc[old_row].reset_index(drop=True).assign(id=data.servers["id"])
    moved = {part: sp.csr_matrix(split.part(part)[:, old_row]) for part in PARTS}
    other = replace(data, servers=servers, lists=lists, relevance=relevance_from_lists(lists, data.n_servers))
    return other, replace(split, **moved), new_row


# Topics of `reference_dataset`: the words of a topic's texts, its category, language, system and product.
TOPICS = (
    (WORDS[0], "Data Tools", "Python", "Linux", "Postgres"),
    (WORDS[1], "Media", "Go", "macOS", "Photolab"),
    (
        ("invoice", "ledger", "payment", "refund", "salary", "budget", "tax", "account", "auditing", "currency"),
        *("Finance", "C#", "Windows", ""),
    ),
)
COMMON = ("manage", "reliable", "workflow", "report", "monitor", "simple")


def reference_dataset(*, equal_servers: bool) -> Dataset:
    """Three topics with all that a system of the study reads: ordered label lists, equal servers and equal tasks, empty
    fields, stars, product names, templates.

    The lists of the first two topics hold two servers of each other; the third stands alone, so that counts of common
    tasks are 0, and so equal, for the servers of the others. `equal_servers`: whether there are two servers in each
    topic that nothing tells apart.
    """
    rng, n_tasks, n_servers = np.random.default_rng(0), 18, 14  # of a topic
    tasks, servers, lists = list[dict[str, str]](), list[dict[str, str]](), list[list[int]]()
    for topic, (words, category, language, system, product) in enumerate(TOPICS):
        for number in range(n_servers):
            chosen, verb = rng.choice(words, 4, replace=False), rng.choice(COMMON)
            card = {"name": f"{product or chosen[1]} {chosen[0]}" if number % 5 == 0 else f"{chosen[0]} server"}
            card["description"] = f"{'A template to' if number % 7 == 3 else 'Helps to'} {verb} {' '.join(chosen)}."
            card |= {"category": category if number % 4 else "", "subcategory": f"{category} {number % 3}"}
            card |= {"language": language if number % 6 else "", "system": system if number % 3 else ""}
            card |= {"tools": f"get_{chosen[2]}, set_{chosen[3]}", "official": str(number % 5 == 0), "license": "MIT"}
            card |= {"stars_count": str(int(10 ** rng.uniform(0, 4))) if number % 8 else ""}
            servers.append(servers[-1] if equal_servers and number == 1 else card)
        for number in range(n_tasks):
            chosen, verb = rng.choice(words, 4, replace=False), rng.choice(COMMON)
            named = f" Post it to {product}." if product and number % 4 == 0 else ""
            task = {"name": f"{chosen[0]} {chosen[1]}", "description": f"{verb} {' '.join(chosen)}.{named}"}
            task |= {"category": f"{category} work", "subcategory": f"sub{topic}{number % 2}"}
            task |= {"language": language if number % 5 else "", "theme": f"{system} {number % 3}"}
            others = (1 - topic) * n_servers + rng.permutation(np.arange(2, n_servers // 2))[: 2 if topic < 2 else 0]
            listed = rng.permutation(n_servers)[: LABELS - len(others)]
            if len(equal := np.flatnonzero(listed < 2)) == 1:  # the equal servers are listed together or not at all
                listed[equal] = np.setdiff1d(np.arange(2, n_servers), listed)[0]
            rows = [*listed[:3] + topic * n_servers, *others, *listed[3:] + topic * n_servers]
            repeated = number == n_tasks - 1  # the task before it once more
            tasks.append(tasks[-1] if repeated else task)
            lists.append(lists[-1] if repeated else [int(row) for row in rows])
    return make_dataset(tasks, servers, lists)
