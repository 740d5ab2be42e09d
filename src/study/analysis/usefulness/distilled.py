"""Distillation: a language model grades servers of training tasks once, a small cross-encoder learns the grades."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm

from study import paths
from study.analysis.usefulness import grades
from study.config.reader import read_settings
from study.data.dataset import Dataset
from study.evaluation.records import record
from study.files import write_csv, write_json
from study.judging import store
from study.judging.collection import Collection
from study.judging.pools import load_split
from study.recommend.grading import scaled
from study.reranking.student import FACTS, GRADE, Graded, Learning, Student, folder_of, train


@dataclass(frozen=True)
class Distilled(grades.Ranked, Learning):
    """``conf/usefulness/distilled.yaml``, where every key is explained."""

    tasks: int
    first: int
    deeper: int
    until: int
    anywhere: int

    def learning(self) -> Learning:
        """What concerns the training."""
        return Learning(**{field.name: getattr(self, field.name) for field in fields(Learning)})


def measure(dataset: str) -> Iterator[pd.DataFrame]:
    """Ask the teacher for what is missing, train where no student is kept, then write ``distilled.csv``; yields it.

    The grades lie in ``teacher_grades.csv.xz``: with all of them there, no language model is needed.
    """
    settings = read_settings(Distilled, paths.conf() / "usefulness" / "distilled.yaml")
    data, _ = load_split(dataset)
    place = paths.results(dataset) / "usefulness"
    known = grades.ask(dataset, drawn(dataset, settings), settings, place / "teacher_grades.csv.xz")
    student, seconds = trained(lists(data, known, settings), settings, folder_of(dataset))
    run = scored(student, data, grades.first_servers(dataset, settings))
    table = grades.graded_table(Collection.load(dataset), run, settings)
    table["milliseconds"] = table["part"].map(run.groupby("part")["milliseconds"].median())
    write_csv(place / "distilled.csv", table)
    facts: dict[str, Any] = {"settings": asdict(settings), "models": sorted(known["model"].unique())}
    facts |= {"seconds_trained": seconds, "threads": torch.get_num_threads()}
    write_json(place / "distilled.json", record(dataset=dataset, result="distilled", **facts))
    yield table


def drawn(dataset: str, settings: Distilled) -> pd.DataFrame:
    """The pairs that the teacher grades, a task's in one piece: columns task_id, server_id."""
    data, split = load_split(dataset)
    rng, topics = np.random.default_rng(settings.seed), set(store.read_table(dataset, "topics")["task_id"])
    ids, servers = data.tasks["id"].to_numpy(), data.servers["id"].to_numpy()
    tasks = [row for row in rng.permutation(split.tasks("train")) if ids[row] not in topics][: settings.tasks]
    scored_tasks = grades.fitted(data, split, settings.system).score(np.array(tasks))
    pairs = []
    for row, scores in zip(tasks, scored_tasks, strict=True):
        order = np.argsort(-scores, kind="stable")
        deeper = rng.choice(order[settings.first : settings.until], settings.deeper, replace=False)
        chosen = [*order[: settings.first], *deeper, *rng.choice(len(servers), settings.anywhere)]
        pairs += [(ids[row], servers[column]) for column in chosen]
    return pd.DataFrame(pairs, columns=store.PAIR).drop_duplicates(ignore_index=True)


def texts(data: Dataset) -> dict[Any, str]:
    """Requests by task."""
    return dict(zip(data.tasks["id"], data.tasks["name"] + ". " + data.tasks["description"], strict=True))


def lists(data: Dataset, known: pd.DataFrame, settings: Distilled) -> list[Graded]:
    """The graded lists, task by task, without those in which a server drawn from all was another one of the list."""
    tasks, servers = texts(data), data.servers.set_index("id")
    length = settings.first + settings.deeper + settings.anywhere
    short = dict(servers["name"] + ". " + servers["description"].str[: settings.longest])
    return [
        Graded(tasks[task], tuple(short[server] for server in own["server_id"]), own["expected"].to_numpy())
        for task, own in known.groupby("task_id", sort=True)
        if len(own) == length
    ]


def trained(found: Sequence[Graded], settings: Distilled, folder: Path) -> tuple[Student, float]:
    """The student of these lists and settings, kept or trained now, and the seconds of its training."""
    content = "\n".join(f"{one.task}\t{one.servers}\t{one.grades.tolist()}" for one in found)
    made_of = asdict(settings.learning()) | {"lists": hashlib.sha256(content.encode()).hexdigest()}
    if (folder / FACTS).is_file() and (kept := json.loads((folder / FACTS).read_text())).get("made_of") == made_of:
        return Student.load(folder), kept["seconds"]
    started = time.perf_counter()
    with tqdm(desc="distil", unit="step", disable=not sys.stderr.isatty()) as bar:

        def progress(step: int, steps: int, loss: float) -> None:
            bar.total = steps
            bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
            bar.update(step - bar.n)

        student = train(found, settings.learning(), paths.cache() / "distilled.pt", progress)
    seconds = round(time.perf_counter() - started, 1)
    student.save(folder, made_of=made_of, seconds=seconds)
    return student, seconds


def scored(student: Student, data: Dataset, run: pd.DataFrame) -> pd.DataFrame:
    """`run` with columns expected, the student's score from 0 to 2 over a task's servers, and milliseconds, those that
    it took for all servers of the task."""
    tasks, servers = texts(data), data.servers.set_index("id")[["name", "description"]]
    frames = []
    for task, own in run.groupby("task_id", sort=False):
        shown = [student.text(*servers.loc[server]) for server in own["server_id"]]
        started = time.perf_counter()
        scores = student.scores(tasks[task], shown)
        seconds = time.perf_counter() - started
        frames.append(own.assign(expected=GRADE * scaled(scores), milliseconds=1000 * seconds))
    return pd.concat(frames, ignore_index=True)
