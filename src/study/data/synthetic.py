"""A generative model of the annotation process, with its truth on record.

It writes the same raw files as Task2MCP, with the same kinds of defects, so the same loader reads them. Beside them
stand truth files that real data cannot have: why each label was given, and how useful each server really is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import yaml

from study.base import files, paths
from study.base.settings import build_settings, read_yaml
from study.data import annotation
from study.data.annotation import SOURCES, Parameters
from study.data.dataset import IntArray


class Facet(NamedTuple):
    """One facet of a topic: its name, and the words that tasks, servers, or both use for it."""

    name: str
    task: tuple[str, ...]
    server: tuple[str, ...]
    shared: tuple[str, ...]


_LISTS: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("words.yaml").read_text(encoding="utf-8"))
TOPICS = {
    topic: tuple(
        Facet(name, *(tuple(words[side].split()) for side in Facet._fields[1:])) for name, words in facets.items()
    )
    for topic, facets in _LISTS["topics"].items()
}
TASK_CATEGORIES: dict[str, tuple[str, ...]] = {name: tuple(parts) for name, parts in _LISTS["task_categories"].items()}
LANGUAGES: dict[str, tuple[float, float]] = {name: tuple(shares) for name, shares in _LISTS["languages"].items()}
SIDE_LANGUAGES, LICENCES, SYSTEMS, TASK_VERBS, SERVER_VERBS, THEME_ENDINGS = (
    tuple(_LISTS[name])
    for name in ("side_languages", "licences", "systems", "task_verbs", "server_verbs", "theme_endings")
)
SYLLABLES = tuple(first + vowel for first in "bcdfgklmnprstv" for vowel in "aeio")
FACETS = [facet for topic in TOPICS.values() for facet in topic]
PER_TOPIC = 3


def generate(folder: Path, **choices: Any) -> Path:
    """Write a synthetic data set into `folder`: the four raw files of Task2MCP, and the truth files. Returns: it.

    ``truth_labels.csv`` has one row per label of the longer lists (task_id, server_id, position, source, grade,
    in_list: whether ``mcp_task.csv`` still shows the label at that position, in spite of planted defects).
    ``truth_servers.csv`` and ``truth_tasks.csv`` hold topics and facets, by which any pair has a grade: 2 for the same
    facet, 1 for the same topic or second topic, else 0.

    `choices`: `Parameters` other than those of ``conf/dataset/synthetic.yaml``; StudyError for impossible ones.
    """
    file = paths.conf() / "dataset" / "synthetic.yaml"
    p = build_settings(Parameters, read_yaml(file)["generator"] | choices, file)
    # One stream per part, so that a change in one part leaves the others as they were.
    streams = np.random.default_rng(p.seed).spawn(4)
    servers, server_truth = make_servers(streams[0], p)
    tasks, task_truth = make_tasks(streams[1], p)
    labels = annotation.annotate(streams[2], p, server_truth, task_truth)
    task_truth["copied_from"] = labels.copied_from
    truth = label_truth(labels, server_truth, task_truth, p.list_length)
    # As in the release, a few servers stand at the top of the file, out of the order of their ids.
    head = streams[3].choice(p.n_servers, size=max(1, p.n_servers // 200), replace=False)
    order = np.concatenate([head, np.setdiff1d(np.arange(p.n_servers), head)])
    _write_json_lines(folder / "mcp_raw.json", [servers[row] for row in order])
    _write_json_lines(folder / "task_raw.json", [{"task_raw": task} for task in tasks])
    ids = server_truth["server_id"].to_numpy()
    listed = np.where(labels.listed >= 0, ids[labels.listed], 0)
    _write_lists(folder / "mcp_task.csv", [row.tolist() for row in listed])
    _write_lists(folder / "mcp_task_all.csv", [ids[row[row >= 0]].tolist() for row in labels.servers])
    files.write_csv(folder / "truth_labels.csv", truth)
    files.write_csv(folder / "truth_servers.csv", server_truth.drop(columns="popularity"))
    files.write_csv(folder / "truth_tasks.csv", task_truth)
    counted = truth.loc[truth["in_list"], "source"].value_counts(normalize=True)
    files.write_json(
        folder / "truth.json",
        {
            "parameters": asdict(p),
            "topics": list(TOPICS),
            "facets": [facet.name for facet in FACETS],
            # Sources run dry in small catalogues and are replaced by random, so the mixture drawn is stated too.
            "mixture_drawn": {source: float(counted.get(source, 0.0)) for source in SOURCES},
        },
    )
    return folder


def make_servers(rng: np.random.Generator, p: Parameters) -> tuple[list[dict[str, Any]], pd.DataFrame]:
    """Servers in alphabetical order, ids ascending with a few gaps, and their truth. Returns: raw objects, and columns
    server_id, topic, facet, second_topic (-1 for none), language, popularity; both of length n_servers."""
    n = p.n_servers
    weights = 1 / np.arange(1, len(TOPICS) + 1) ** 0.5
    topic = rng.choice(len(TOPICS), n, p=rng.permutation(weights) / weights.sum())
    facet = topic * PER_TOPIC + rng.integers(PER_TOPIC, size=n)
    second = np.where(rng.random(n) < 0.15, (topic + rng.integers(1, len(TOPICS), n)) % len(TOPICS), -1)
    shares = np.array([share for share, _ in LANGUAGES.values()])
    language = rng.choice(len(shares), n, p=shares / shares.sum())
    language[rng.random(n) < p.null_share] = -1
    popularity = np.exp(rng.normal(0, p.popularity_sd, n))
    content = _draw_words(rng, facet, 6, p, side="server")
    brands = ["".join(parts).capitalize() for parts in rng.choice(SYLLABLES, (n, 3)).tolist()]
    names = [f"{brand} {row[0].capitalize()} MCP" for brand, row in zip(brands, content, strict=True)]
    order = np.array(sorted(range(n), key=lambda row: (names[row].casefold(), row)))
    ids = np.arange(1, n + 1) + np.searchsorted(np.sort(rng.choice(n, max(1, n // 100), replace=False)), np.arange(n))
    extras = rng.random((n, len(SIDE_LANGUAGES))) < 0.2
    pick = {key: rng.integers(1000, size=n) for key in ("verb", "licence", "system", "watch")}
    chance = {key: rng.random(n) for key in ("variant", "licence", "tools", "system", "official")}
    rows = []
    for server_id, row in zip(ids.tolist(), order.tolist(), strict=True):
        main = [list(LANGUAGES)[language[row]]] if language[row] >= 0 else []
        also = f", also for {list(TOPICS)[second[row]]}" if second[row] >= 0 else ""
        a, b, c, d, e, f = content[row]
        verb = SERVER_VERBS[pick["verb"][row] % len(SERVER_VERBS)]
        category = list(TOPICS)[topic[row]].replace(" ", "-")
        variant = chance["variant"][row] < p.variant_share
        licence = None if chance["licence"][row] < p.null_share else LICENCES[pick["licence"][row] % 5]
        rows.append(
            {
                "id": server_id,
                "name": names[row],
                "url": f"https://example.org/{brands[row].lower()}/{server_id}",
                "description": f"An MCP server to {verb} {a} and {b}: {c}, {d} with {e} and {f}{also}.",
                "author": brands[row].lower(),
                "stars_count": int(10 * popularity[row]),
                "watching_count": int(pick["watch"][row] % 9),
                "license": licence,
                "language": ", ".join([*main, *np.extract(extras[row], SIDE_LANGUAGES)]) if main else None,
                "activity": 1,
                "category": category.replace("-", " ").title() if variant else category,
                "subcategory": f"{FACETS[facet[row]].server[0].title()} Tools",
                "system": SYSTEMS[pick["system"][row] % 4] if chance["system"][row] < 0.02 else None,
                "official": "official" if chance["official"][row] < 0.02 else "non-official",
                "tools": f"{verb}_{a}, {verb}_{b}" if chance["tools"][row] < 0.02 else None,
                "origin": "synthetic",
                "web_url": None,
            }
        )
    per_server = {"topic": topic, "facet": facet, "second_topic": second, "language": language}
    truth = pd.DataFrame(per_server | {"popularity": popularity}).iloc[order].reset_index(drop=True)
    truth.insert(0, "server_id", ids)
    return rows, truth


def make_tasks(rng: np.random.Generator, p: Parameters) -> tuple[list[dict[str, Any]], pd.DataFrame]:
    """Tasks in id order and their truth. Returns: raw objects, and columns task_id, topic, facet, language; both of
    length n_tasks."""
    n = p.n_tasks
    subcategories = [(group, name) for group, names in TASK_CATEGORIES.items() for name in names]
    # Each subcategory leans towards a few topics, as an activity does.
    leaning = rng.dirichlet(np.full(len(TOPICS), 0.5), len(subcategories))
    # As many tasks per subcategory as the sizes allow, as in the release.
    subcategory = np.arange(n) % len(subcategories)
    topic = (leaning.cumsum(axis=1)[subcategory] < rng.random((n, 1))).sum(axis=1).clip(max=len(TOPICS) - 1)
    facet = topic * PER_TOPIC + rng.integers(PER_TOPIC, size=n)
    shares = np.array([share for _, share in LANGUAGES.values()])
    language = rng.choice(len(shares), n, p=shares / shares.sum())
    content = _draw_words(rng, facet, 6, p, side="task")
    verb = rng.integers(len(TASK_VERBS), size=n)
    ending = rng.integers(len(THEME_ENDINGS), size=n)
    variant = rng.random(n) < p.variant_share
    rows = []
    for row in range(n):
        a, b, c, d, e, f = content[row]
        theme = FACETS[facet[row]].name.capitalize() + THEME_ENDINGS[ending[row]]
        rows.append(
            {
                "id": row + 1,
                "name": f"{TASK_VERBS[verb[row]]} {a} {b}",
                "description": f"Build a program that handles {c} and {d}, so that {e} and {f} become easier.",
                "language": list(LANGUAGES)[language[row]],
                "category": subcategories[subcategory[row]][0],
                "subcategory": subcategories[subcategory[row]][1],
                "theme": theme.title() if variant[row] else theme,
            }
        )
    truth = pd.DataFrame({"task_id": np.arange(1, n + 1), "topic": topic, "facet": facet, "language": language})
    return rows, truth


def _draw_words(rng: np.random.Generator, facet: IntArray, count: int, p: Parameters, *, side: str) -> list[list[str]]:
    """`count` words per row: shared ones, words of one side, and off-topic words. Shape (len(facet), count)."""
    words = np.array([getattr(entry, side) for entry in FACETS]), np.array([entry.shared for entry in FACETS])
    shape = (len(facet), count)
    source = np.where(rng.random(shape) < p.off_topic_words, rng.integers(len(FACETS), size=shape), facet[:, None])
    # Cycling through a random order keeps a text from repeating one word while others are unused.
    turns = [rng.permuted(np.tile(np.arange(table.shape[1]), (len(facet), 1)), axis=1) for table in words]
    one_sided, common = (
        table[source, turn[:, np.arange(count) % turn.shape[1]]] for table, turn in zip(words, turns, strict=True)
    )
    texts: list[list[str]] = np.where(rng.random(shape) < p.shared_words, common, one_sided).tolist()
    return texts


def label_truth(
    labels: annotation.Labels, servers: pd.DataFrame, tasks: pd.DataFrame, list_length: int
) -> pd.DataFrame:
    """One row per label of the longer lists, in task and position order."""
    task, rank = np.nonzero(labels.servers >= 0)
    server = labels.servers[task, rank]
    of_server, of_task = servers.iloc[server].reset_index(drop=True), tasks.iloc[task].reset_index(drop=True)
    on_topic = (of_server["topic"] == of_task["topic"]) | (of_server["second_topic"] == of_task["topic"])
    listed = labels.listed[task, np.minimum(rank, list_length - 1)]
    keys = {"task_id": of_task["task_id"], "server_id": of_server["server_id"], "position": rank + 1}
    keys["source"] = np.array(SOURCES)[labels.sources[task, rank]]
    grade = on_topic.astype(int) + (of_server["facet"] == of_task["facet"])
    return pd.DataFrame(keys | {"grade": grade, "in_list": (rank < list_length) & (listed == server)})


def _write_json_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """A JSON list with one object per line: readable, and much faster to write than indented JSON."""
    body = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    files.write_text(path, f"[\n{body}\n]\n")


def _write_lists(path: Path, lists: list[list[int]]) -> None:
    table = pd.DataFrame({"task_id": np.arange(1, len(lists) + 1), "mcp_ids": [str(row) for row in lists]})
    files.write_csv(path, table)
