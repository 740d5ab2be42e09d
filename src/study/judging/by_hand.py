"""A person's spot check: one topic's pool, blind, graded from the keyboard and saved as the grades come."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from study.data import dataset as datasets
from study.errors import StudyError
from study.files import write_text
from study.judging import store
from study.judging.collecting import read_answers
from study.judging.packets import ANSWER_HEADER, SERVER_CARD, TASK_CARD, card

STOP = "q"
ORDER_SEED = 3


def grade_topic(
    dataset: str,
    task_id: int,
    *,
    judge: str,
    ask: Callable[[str], str] = input,
    show: Callable[[str], object] = print,
) -> Path:
    """Show the task and its servers one by one in random order, without sources and other grades, and take 0, 1 or 2.

    Every grade is saved at once; the same command goes on where it was stopped (``q``, or the end of the input).

    Args:
        judge: names the file, ``by_hand/<judge>/<task_id>.csv``.
        ask, show: how to ask and to show a line.

    Returns: the file of grades, in the form of an answer file.

    Raises:
        StudyError: the task is not a topic, or the judge's name is not a plain word.
    """
    if not judge.replace("-", "").replace("_", "").isalnum():
        raise StudyError(f"{judge!r} cannot name a file", fix="use letters, digits, - and _")
    pool = store.read(dataset, "pool")
    pairs = shuffled(pool, task_id)
    if not len(pairs):
        raise StudyError(f"task {task_id} is not a topic", file=store.file(dataset, "pool"), fix="see topics.csv")
    path = store.folder(dataset) / "by_hand" / judge / f"{task_id}.csv"
    data = datasets.load(dataset)
    tasks, servers = (frame.set_index("id") for frame in (data.tasks, data.servers))
    done = _read(path, pairs)
    show(card(tasks.loc[[task_id]].to_dict("records")[0], TASK_CARD, "\n"))
    for number, server_id in enumerate(map(int, pairs["server_id"]), start=1):
        if server_id in done:
            continue
        show(f"\n{number}/{len(pairs)}  " + card(servers.loc[[server_id]].to_dict("records")[0], SERVER_CARD, "\n  "))
        answer = _ask(ask)
        if answer is None:
            break
        done[server_id] = answer
        lines = [ANSWER_HEADER, *(f"{task_id},{server},{grade}" for server, grade in done.items())]
        write_text(path, "\n".join(lines) + "\n")
    return path


def shuffled(pool: pd.DataFrame, task_id: int) -> pd.DataFrame:
    """A topic's pairs in one random order over all rounds, since each round brought other systems."""
    own = pool[pool["task_id"] == task_id].sort_values("server_id")
    return own.sample(frac=1, random_state=np.random.default_rng([ORDER_SEED, abs(task_id)]))


def _read(path: Path, pairs: pd.DataFrame) -> dict[int, int]:
    """The grades given so far by server, checked like any answer file."""
    if not path.exists():
        return {}
    listed = [tuple(map(int, line.split(",")[:2])) for line in path.read_text().splitlines()[1:]]
    known = set(map(tuple, pairs[store.PAIR].to_numpy().tolist()))
    if not known.issuperset(listed):
        raise StudyError("holds servers outside the topic's pool", file=path, fix="move the file away")
    return {server: grade for (_, server), grade in read_answers(path, [(t, s) for t, s in listed]).items()}


def _ask(ask: Callable[[str], str]) -> int | None:
    """A grade from the keyboard; None to stop."""
    while True:
        try:
            answer = ask(f"grade 0, 1, 2 ({STOP} stops): ").strip()
        except EOFError:
            return None
        if answer == STOP:
            return None
        if answer in ("0", "1", "2"):
            return int(answer)
        sys.stderr.write("0, 1 or 2, please\n")
