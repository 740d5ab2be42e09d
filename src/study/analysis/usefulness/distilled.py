"""Distillation: a language model grades servers of training tasks once, a linear model learns the grades."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from sklearn.linear_model import Ridge
from sklearn.model_selection import PredefinedSplit, cross_val_predict

from study import paths
from study.analysis.usefulness import grades
from study.config.reader import read_settings
from study.data.dataset import Dataset, FloatArray
from study.encoders.sentence import DIMENSION, encode
from study.evaluation.metrics import Float64Array
from study.evaluation.records import record
from study.files import write_csv, write_json
from study.judging import store
from study.judging.collection import Collection
from study.judging.pools import load_split
from study.recommend.grading import scaled
from study.reranking.student import COLUMNS, FIELDS, VIEW, Student, features, file_of
from study.usefulness import texts as kinds

BLIND = "servers alone"  # the student that sees no request
FOLDS = 4  # of the training tasks; a student is tried on one of them and learns from the others
GRADE = 2.0  # the highest grade


@dataclass(frozen=True)
class Distilled(grades.Ranked):
    """``conf/usefulness/distilled.yaml``, where every key is explained."""

    also: list[str]
    tasks: int
    first: int
    deeper: int
    until: int
    anywhere: int
    penalties: list[float]


def measure(dataset: str) -> Iterator[pd.DataFrame]:
    """Ask the teacher for what is missing, train, then write ``distilled.csv`` and the weights; yields the table.

    The grades lie in ``teacher_grades.csv.xz``: with all of them there, no language model is needed. Of two students,
    one that sees no request, the better one on the topics of ``choice`` is kept and ranks those of the other parts, and
    the first servers of the systems of ``also``.
    """
    settings = read_settings(Distilled, paths.conf() / "usefulness" / "distilled.yaml")
    data, _ = load_split(dataset)
    place = paths.results(dataset) / "usefulness"
    known = grades.ask(dataset, drawn(dataset, settings), settings, place / "teacher_grades.csv.xz")
    found, truth = (
        centred(values, known["task_id"]) for values in (features(*vectors(data, known)), known["expected"])
    )
    fits = correlations(found, truth, known["task_id"], settings.penalties)
    penalty = max(fits, key=lambda one: fits[one])
    students = {name: train(kept, truth, penalty) for name, kept in (("all", found), (BLIND, unasked(found)))}
    collection, systems = Collection.load(dataset), (settings.system, *settings.also)
    runs = {system: grades.first_servers(dataset, replace(settings, system=system)) for system in systems}
    tables: dict[str, pd.DataFrame] = {}

    def measured(name: str, parts: list[str], system: str = settings.system) -> pd.DataFrame:
        own = scored(students[name], data, runs[system][runs[system]["part"].isin(parts)])
        table = grades.graded_table(collection, own, replace(settings, parts=parts))
        took = table["part"].map(own.groupby("part")["milliseconds"].median())
        return table.assign(system=system, student=name, milliseconds=took)

    for name in students:
        tables[name] = measured(name, [settings.choice])
    best = max(tables, key=lambda name: float(tables[name]["ndcg@10"].max()))
    students[best].save(file_of(dataset))
    students[best] = Student.load(file_of(dataset))  # what others read, with as many digits
    tables[best] = measured(best, settings.parts)
    others = (measured(best, settings.parts, system) for system in settings.also)
    table = pd.concat([*tables.values(), *others], ignore_index=True)
    first = ["system", "student"]
    write_csv(place / "distilled.csv", table[[*first, *table.columns.drop(first)]])
    facts: dict[str, Any] = {"settings": asdict(settings), "models": sorted(known["model"].unique())}
    facts |= {"penalty": penalty, "correlations": fits, "kept": best}
    for name in ("distilled", file_of(dataset).stem):
        write_json(place / f"{name}.json", record(dataset=dataset, result=name, **facts))
    yield table


def centred(values: Float64Array | pd.Series, tasks: pd.Series) -> Float64Array:
    """Rows less the mean of their task's rows: what tells a task's servers apart."""
    frame = pd.DataFrame(np.asarray(values))
    return np.asarray(frame - frame.groupby(tasks.to_numpy()).transform("mean"), dtype=np.float64)


def train(found: Float64Array, truth: Float64Array, penalty: float) -> Student:
    """Ridge regression of grades, shape (n, 1), on `features`, both `centred`."""
    return Student(Ridge(penalty, fit_intercept=False).fit(found, truth[:, 0]).coef_.reshape(-1, DIMENSION).T)


def correlations(
    found: Float64Array, truth: Float64Array, tasks: pd.Series, penalties: Sequence[float]
) -> dict[float, float]:
    """Pearson's r of the grades and the scores of tasks left out, as in `train`, by penalty."""
    folds, grades = PredefinedSplit(np.unique(tasks, return_inverse=True)[1] % FOLDS), truth[:, 0]

    def left_out(penalty: float) -> Float64Array:
        return np.asarray(cross_val_predict(Ridge(penalty, fit_intercept=False), found, grades, cv=folds))

    return {penalty: float(np.corrcoef(left_out(penalty), grades)[0, 1]) for penalty in penalties}


def unasked(found: Float64Array) -> Float64Array:
    """`features` without what depends on the request."""
    asked = np.repeat([name.startswith("product") for name in COLUMNS], found.shape[1] // len(COLUMNS))
    return np.where(asked, 0.0, found)


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


def vectors(data: Dataset, pairs: pd.DataFrame) -> tuple[FloatArray, dict[str, FloatArray]]:
    """The vectors of each pair's request, and of its server by field."""
    tasks, servers = (table.set_index("id", drop=False) for table in (data.tasks, data.servers))
    asked, shown = pairs["task_id"].unique(), pairs["server_id"].unique()
    requests = encode(kinds.texts(tasks.loc[asked], kinds.VIEWS, VIEW))
    rows = pd.Index(shown).get_indexer(pd.Index(pairs["server_id"]))
    fields = {name: encode(kinds.texts(servers.loc[shown], kinds.FIELDS, name))[rows] for name in FIELDS}
    return requests[pd.Index(asked).get_indexer(pd.Index(pairs["task_id"]))], fields


def scored(student: Student, data: Dataset, run: pd.DataFrame) -> pd.DataFrame:
    """`run` with columns expected, the student's score from 0 to 2 over a task's servers, and milliseconds, those that
    it took for all servers of the task once the vectors are there."""
    requests, fields = vectors(data, run)
    expected, milliseconds = np.empty(len(run)), np.empty(len(run))
    for rows in run.reset_index(drop=True).groupby("task_id").indices.values():
        started = time.perf_counter()
        scores = student.scores(requests[rows], {name: of[rows] for name, of in fields.items()})
        milliseconds[rows] = 1000 * (time.perf_counter() - started)
        expected[rows] = GRADE * scaled(scores)
    return run.assign(expected=expected, milliseconds=milliseconds)
