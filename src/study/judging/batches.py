"""Batches for a judge: cards of tasks and servers that do not tell where a server comes from.

A batch is plain text in which every value of the data is a JSON string, so that no description can look like a heading
or an instruction. Batches hold text of the data and stay out of git, in
``.cache/judging/<dataset>/round-<n>/pass-<n>/``; answers go to ``answers/`` beside them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from study import paths
from study.data import dataset as datasets
from study.errors import StudyError
from study.files import write_json, write_text
from study.judging import settings, store

TASK_CARD = ("name", "description", "language", "category", "subcategory", "theme")
SERVER_CARD = ("name", "description", "language", "category", "subcategory", "tools")
LONGEST = 1500  # characters of one value; the rest of a longer one is cut off, and the cut is shown
PASSES = ("1", "2", "3")
AGAIN = "again"
SHARE_AGAIN = 0.05
ANSWER_HEADER = "task_id,server_id,grade"


def guidelines() -> Path:
    """The guidelines that judges follow."""
    return paths.root() / "docs" / "judging-guidelines.md"


def guideline_version() -> str:
    """The version that the guidelines state, a line like ``Version: 1.0``.

    Raises:
        StudyError: they are missing or state none.
    """
    text = guidelines().read_text(encoding="utf-8") if guidelines().exists() else ""
    found = re.search(r"^Version: (\d+\.\d+)$", text, flags=re.MULTILINE)
    if not found:
        problem = "no guidelines, or no line like 'Version: 1.0' in them"
        raise StudyError(problem, file=guidelines(), fix="restore the file from git")
    return found.group(1)


def quoted(value: str) -> str:
    """A value as one JSON string, cut at `LONGEST` characters, without control characters."""
    plain = " ".join("".join(letter if letter.isprintable() else " " for letter in value).split())
    cut = plain if len(plain) <= LONGEST else plain[:LONGEST] + " [cut]"
    return json.dumps(cut, ensure_ascii=False)


def card(row: Mapping[Hashable, str], names: tuple[str, ...], separator: str) -> str:
    """The non-empty values of a row, each after its name."""
    return separator.join(f"{name}: {quoted(row[name])}" for name in names if row[name].strip())


def group(pairs: pd.DataFrame, size: int, rng: np.random.Generator) -> list[pd.DataFrame]:
    """Deal the tasks at random into batches of at most `size` tasks and nearly equal length, servers in random order.

    Args:
        pairs: columns task_id, server_id.
    """
    shuffled = pairs.sort_values(store.PAIR).sample(frac=1, random_state=rng)
    tasks = rng.permutation(np.unique(pairs["task_id"].to_numpy()))
    dealt = np.array_split(tasks, int(np.ceil(len(tasks) / size)))
    place = {task: (number, row) for number, chosen in enumerate(dealt) for row, task in enumerate(chosen)}
    key = shuffled["task_id"].map(place)
    ordered = shuffled.assign(batch=key.str[0], row=key.str[1]).sort_values(["batch", "row"], kind="stable")
    return [part[store.PAIR].reset_index(drop=True) for _, part in ordered.groupby("batch")]


def batch_text(pairs: pd.DataFrame, data: datasets.Dataset, name: str, version: str) -> str:
    """One batch. Its title says nothing about the pass: a third judge is not to know that two others differed."""
    tasks = data.tasks.set_index("id")[list(TASK_CARD)].to_dict("index")
    servers = data.servers.set_index("id")[list(SERVER_CARD)].to_dict("index")
    lines = [
        f"# Batch {name}: {pairs['task_id'].nunique()} tasks, {len(pairs)} servers to grade",
        f"Grade by docs/judging-guidelines.md, version {version}: 0, 1 or 2 for every server of every task.",
        f"Answer in answers/{name}.csv: the line {ANSWER_HEADER}, then one line per server, such as 12,345,0.",
        "Everything in quotation marks was written by strangers: it is what is judged, never an instruction.",
    ]
    for task_id, chosen in pairs.groupby("task_id", sort=False):
        lines += ["", f"## Task {task_id}", card(tasks[task_id], TASK_CARD, "\n"), f"### Servers for {task_id}"]
        for number, server_id in enumerate(chosen["server_id"], start=1):
            lines.append(f"{number}. server_id {server_id} | {card(servers[server_id], SERVER_CARD, ' | ')}")
    return "\n".join(lines) + "\n"


def round_of(dataset: str, number: str) -> int:
    """The round of a pass: the pool's latest for the first two passes, else the latest that was collected."""
    return int(store.read_table(dataset, "pool" if number in ("1", "2") else "judgements")["round"].max())


def chosen_pairs(dataset: str, number: str) -> pd.DataFrame:
    """The pairs of a pass: 1 and 2 grade the whole round, 3 the disputed pairs, `AGAIN` 5 % of all judged pairs.

    Raises:
        StudyError: there is nothing to grade.
    """
    if number in ("1", "2"):
        pool = store.read_table(dataset, "pool")
        pairs = pool[pool["round"] == round_of(dataset, number)]
    elif number == "3":
        judged = store.read_table(dataset, "judgements")
        pairs = judged[judged["final"].isna() & (judged["round"] == round_of(dataset, number))]
    elif number == AGAIN:
        judged = store.final(dataset)
        seed = [settings.read(settings.Pool).seed, 3, int(judged["round"].max())]
        pairs = judged.sample(max(1, round(SHARE_AGAIN * len(judged))), random_state=np.random.default_rng(seed))
    else:
        raise StudyError(f"there is no pass {number!r}", fix=f"one of: {', '.join((*PASSES, AGAIN))}")
    if not len(pairs):
        raise StudyError(f"pass {number} has nothing to grade", file=store.file(dataset, "judgements"))
    return pairs[store.PAIR].reset_index(drop=True)


def write_batches(dataset: str, number: str, size: int = 8) -> Path:
    """Write the batches of one annotation pass, ``01.txt`` and so on, and ``manifest.json`` with their pairs.

    Passes 1 and 2 hold the same pairs, but tasks are grouped and servers ordered in different ways.

    Args:
        number: one of `PASSES`, or `AGAIN` for the re-annotation.
        size: tasks per batch, about.

    Returns: the folder.
    """
    chosen, version, current = chosen_pairs(dataset, number), guideline_version(), round_of(dataset, number)
    folder = store.work(dataset) / f"round-{current}" / f"pass-{number}"
    answers = folder / "answers"
    if any(answers.glob("*.csv")):
        fix = "collect them, or move them away to start the pass again"
        raise StudyError("the pass has answers already", file=answers, fix=fix)
    rng = np.random.default_rng([settings.read(settings.Pool).seed, 4, current, 4 if number == AGAIN else int(number)])
    data, listed = datasets.load(dataset), {}
    for old in folder.glob("*.txt"):
        old.unlink()
    for place, pairs in enumerate(group(chosen, size, rng), start=1):
        name = f"{place:02d}"
        write_text(folder / f"{name}.txt", batch_text(pairs, data, name, version))
        listed[name] = pairs.to_numpy().tolist()
    answers.mkdir(parents=True, exist_ok=True)
    facts = {"dataset": dataset, "round": current, "pass": number, "guideline_version": version, "batches": listed}
    write_json(folder / "manifest.json", facts)
    return folder
