"""Grades of a language model: beside the judge's, as a second family, and to re-rank a system's first servers. It
grades servers of training tasks once, too, and a linear model learns these grades (distillation)."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.linear_model import Ridge
from sklearn.model_selection import PredefinedSplit, cross_val_predict
from tqdm import tqdm

from study.advisor.encoders.sentence import DIMENSION, encode
from study.advisor.llm import grades as model_grades
from study.advisor.llm.settings import endpoint_settings
from study.advisor.retrieval import fields as kinds
from study.advisor.saved.grading import scaled
from study.advisor.saved.student import COLUMNS, FIELDS, VIEW, Student, features, file_of
from study.analysis.framework import Context, Tables, analysis
from study.analysis.usefulness.choosing import METRIC, judged_rows
from study.base import paths
from study.base.errors import UnavailableError, require_one_of
from study.base.files import read_csv, write_csv
from study.config.compose import build_system, load
from study.data import dataset as datasets
from study.data.dataset import Dataset, FloatArray
from study.data.splits import Split
from study.evaluation.metrics import Float64Array
from study.evaluation.statistics import auc
from study.evaluation.system import System
from study.judging import agreement, store
from study.judging.collection import Collection
from study.judging.pools import load_split

CHOICE = "valid"  # the part of the topics on which a weight is chosen
PARTS = (CHOICE, "fresh")  # whose topics are ranked, the second with the chosen weight alone
SAVE_EVERY = 50  # grades
GRADED = [*store.PAIR, "expected", "model"]
BLIND = "servers alone"  # the student that sees no request
FOLDS = 4  # of the training tasks; a student is tried on one of them and learns from the others
GRADE = 2.0  # the highest grade


@dataclass(frozen=True)
class Ranked:
    """Whose first servers are graded and re-ordered, with which weights of the grade."""

    endpoint: str
    model: str
    longest: int
    system: str
    depth: int
    weights: list[float]
    seed: int


@dataclass(frozen=True)
class Grades(Ranked):
    """And the share of the judged pairs that the model grades."""

    share: float


@dataclass(frozen=True)
class Distilled(Ranked):
    """Which servers of how many training tasks the teacher grades, and the penalties of the student's ridge."""

    also: list[str]
    tasks: int
    first: int
    deeper: int
    until: int
    anywhere: int
    penalties: list[float]


@analysis("usefulness", slow=True)
def grades(study: Context) -> Tables:
    """Do grades of a small language model agree with the judge's, and do they re-rank a system's first servers?

    Asks for the grades that ``judged/model_grades.csv`` lacks.
    """
    settings, dataset = study.settings(Grades), study.dataset
    run = first_servers(dataset, settings)
    graded = ask(dataset, pairs_to_grade(dataset, settings, run), settings, store.folder(dataset) / "model_grades.csv")
    study.facts["models"] = sorted(graded["model"].unique())
    return {
        "second_family": second_family(sample(dataset, settings).merge(graded, on=store.PAIR), seed=settings.seed),
        "graded": graded_table(Collection.load(dataset), run.merge(graded, on=store.PAIR), settings),
    }


def sample(dataset: str, settings: Grades) -> pd.DataFrame:
    """The judged pairs that the second family grades, sampled at random."""
    rng = np.random.default_rng(settings.seed)
    return store.final(dataset).sample(frac=settings.share, random_state=rng).sort_values(store.PAIR)


def pairs_to_grade(dataset: str, settings: Grades, run: pd.DataFrame) -> pd.DataFrame:
    """All pairs to be graded, each once, a task's own in one piece: columns task_id, server_id."""
    pieces = [run[store.PAIR], sample(dataset, settings)[store.PAIR]]
    return pd.concat(pieces).drop_duplicates(ignore_index=True)


def fit_system(data: Dataset, split: Split, name: str) -> System:
    """The system whose first servers are graded."""
    system: System = build_system(load([f"dataset={data.name}", f"protocol={split.protocol}", f"system={name}"]).system)
    (workdir := paths.cache() / "grades" / data.name).mkdir(parents=True, exist_ok=True)
    system.fit(data, split, seed=0, workdir=workdir)
    return system


def first_servers(dataset: str, settings: Ranked) -> pd.DataFrame:
    """The system's first servers for the topics of `PARTS`: columns task_id, server_id, rank, score, part.

    They are those of the pooled run of the judged collection, which the kept grades belong to: scores are rounded
    otherwise on another kind of processor.
    """
    runs, topics = store.read_runs(dataset), store.read_table(dataset, "topics")
    require_one_of(settings.system, "pooled run", runs, file=store.runs_file(dataset))
    run = runs[settings.system].merge(topics.loc[topics["part"].isin(PARTS), ["task_id", "part"]])
    run = run[run["rank"] <= settings.depth]
    data, split = load_split(dataset)
    tasks, row = np.unique(run["task_id"], return_inverse=True)
    scores = fit_system(data, split, settings.system).score(pd.Index(data.tasks["id"]).get_indexer(tasks))
    run = run.assign(score=scores[row, pd.Index(data.servers["id"]).get_indexer(run["server_id"])])
    return run[["task_id", "server_id", "rank", "score", "part"]].reset_index(drop=True)


def ask(dataset: str, pairs: pd.DataFrame, settings: Ranked, file: Path) -> pd.DataFrame:
    """The expected grade of each pair, from 0 to 2: those that `file` keeps, the others by the model.

    Returns: columns `GRADED`. A stop costs the last 50 grades at most.
    """
    previous = read_csv(file) if file.exists() else pd.DataFrame(columns=GRADED)
    open_pairs = pairs.loc[~store.among(pairs, previous, store.PAIR), store.PAIR].to_numpy().tolist()
    if not open_pairs:
        return previous
    endpoint = replace(endpoint_settings(settings.endpoint), mode="off")
    client, data = endpoint.client(None), datasets.load(dataset)
    tasks = data.tasks.set_index("id")[["name", "description"]].to_dict("index")
    servers = data.servers.set_index("id")[["name", "description", "language"]].to_dict("index")
    rows: list[tuple[Any, ...]] = []
    for task, server in tqdm(open_pairs, desc="grade", unit="pair", disable=None):
        body = model_grades.question(settings.model, tasks[task], servers[server], settings.longest)
        reply = client.post("chat/completions", body)
        expected = model_grades.expected_grade(reply)
        if expected is None:
            reason = f"no log probability of 0, 1 or 2 for server {server}, task {task}"
            raise UnavailableError(reason, file=client.base_url, fix="use another endpoint or model")
        rows.append((task, server, round(expected, 4), reply["model"]))
        if len(rows) % SAVE_EVERY == 0 or len(rows) == len(open_pairs):
            new = pd.DataFrame(rows, columns=GRADED)
            write_csv(file, (pd.concat([previous, new]) if len(previous) else new).sort_values(store.PAIR))
    return read_csv(file)


def second_family(rows: pd.DataFrame, *, seed: int) -> pd.DataFrame:
    """How far the model's grades agree with the judge's; `rows`: judged pairs, columns task_id, final, expected.

    Returns: one row: pairs, useful (share), kappa_quadratic of the rounded grades with its 95 % interval over topics,
        auc (of useful pairs by expected grade), and the mean expected grade by final grade.
    """
    final, rounded = rows["final"].to_numpy(np.int64), np.rint(rows["expected"]).astype(np.int64)
    counts = agreement.confusions(final, rounded, rows["task_id"])
    row = {"pairs": len(rows), "useful": (final >= 1).mean()}
    row["kappa_quadratic"] = agreement.weighted_kappa(counts.sum(axis=0), "quadratic")
    row["kappa_ci_low"], row["kappa_ci_high"] = agreement.kappa_interval(counts, "quadratic", seed=seed)
    row["auc"] = auc(rows.loc[final >= 1, "expected"].to_numpy(), rows.loc[final == 0, "expected"].to_numpy())
    row |= {f"mean_of_{grade}": rows.loc[final == grade, "expected"].mean() for grade in store.GRADES}
    return pd.DataFrame([row])


def reorder_run(run: pd.DataFrame, weight: float) -> pd.DataFrame:
    """The first servers by score + weight x grade, both from 0 to 1, as `study recommend --rerank llm` has it. `run`:
    columns task_id, server_id, rank, score, expected. Returns: `run` with new ranks."""
    score = run.groupby("task_id")["score"]
    low, spread = score.transform("min"), score.transform("max") - score.transform("min")
    total = (run["score"] - low) / spread.where(spread > 0, 1.0) + weight * run["expected"] / 2
    ordered = run.assign(total=total).sort_values(["task_id", "total", "rank"], ascending=[True, False, True])
    return ordered.assign(rank=ordered.groupby("task_id").cumcount() + 1).drop(columns="total")


def graded_table(collection: Collection, run: pd.DataFrame, settings: Ranked) -> pd.DataFrame:
    """Judged NDCG@10 with and without grades, by part; after `CHOICE` with the weight that is best there.

    Returns: columns part, weight (0: the system alone), n, ndcg@10, diff from the system with its 95 % interval.
    """
    rows, weights = [], settings.weights
    for part in [part for part in PARTS if part in set(run["part"])]:
        part_run = run[run["part"] == part].assign(seed=settings.seed)
        runs: dict[Hashable, pd.DataFrame] = {weight: reorder_run(part_run, weight) for weight in (0.0, *weights)}
        scored = judged_rows(collection, runs, seed=settings.seed)
        rows += [{"part": part, "weight": weight, **row} for weight, row in zip(runs, scored, strict=True)]
        if part == CHOICE:
            weights = [max(rows[1:], key=lambda row: row[METRIC])["weight"]]
    return pd.DataFrame(rows)[["part", "weight", "n", METRIC, "diff", "diff_ci_low", "diff_ci_high"]]


@analysis("usefulness", slow=True)
def distilled(study: Context) -> Tables:
    """Can a linear model learn the language model's grades?

    Asks the teacher for the grades that ``teacher_grades.csv.xz`` lacks. Of two students, one that sees no request, the
    better one on the topics of `CHOICE` is kept; it ranks those of the other part, and the first servers of the systems
    of `also`.
    """
    settings, dataset = study.settings(Distilled), study.dataset
    data, _ = load_split(dataset)
    grades = ask(dataset, teacher_pairs(dataset, settings), settings, study.folder / "teacher_grades.csv.xz")
    tasks = grades["task_id"]
    inputs, truth = (centre_by_task(values, tasks) for values in (features(*vectors(data, grades)), grades["expected"]))
    fits = correlations(inputs, truth, tasks, settings.penalties)
    penalty = max(fits, key=lambda one: fits[one])
    students = {
        name: train(matrix, truth, penalty) for name, matrix in (("all", inputs), (BLIND, without_request(inputs)))
    }
    collection, systems = Collection.load(dataset), (settings.system, *settings.also)
    runs = {system: first_servers(dataset, replace(settings, system=system)) for system in systems}

    def measure_student(name: str, parts: Sequence[str], system: str = settings.system) -> pd.DataFrame:
        run = score_run(students[name], data, runs[system][runs[system]["part"].isin(parts)])
        spent = run.groupby("part")["milliseconds"].median()
        table = graded_table(collection, run, settings).assign(milliseconds=lambda rows: rows["part"].map(spent))
        table.insert(0, "student", name)
        table.insert(0, "system", system)
        return table

    tables = {name: measure_student(name, [CHOICE]) for name in students}
    best = max(tables, key=lambda name: float(tables[name][METRIC].max()))
    students[best].save(file_of(dataset))
    students[best] = Student.load(file_of(dataset))  # what others read, with as many digits
    tables[best] = measure_student(best, PARTS)
    study.facts.update({"models": sorted(grades["model"].unique()), "penalty": penalty})
    study.facts.update({"correlations": fits, "kept": best})
    tables |= {system: measure_student(best, PARTS, system) for system in settings.also}
    return {"distilled": pd.concat(tables.values(), ignore_index=True)}


def centre_by_task(values: Float64Array | pd.Series, tasks: pd.Series) -> Float64Array:
    """Rows less the mean of their task's rows: what tells a task's servers apart."""
    frame = pd.DataFrame(np.asarray(values))
    return np.asarray(frame - frame.groupby(tasks.to_numpy()).transform("mean"), dtype=np.float64)


def train(inputs: Float64Array, truth: Float64Array, penalty: float) -> Student:
    """Ridge regression of grades, shape (n, 1), on `features`, both `centred`."""
    return Student(Ridge(penalty, fit_intercept=False).fit(inputs, truth[:, 0]).coef_.reshape(-1, DIMENSION).T)


def correlations(
    inputs: Float64Array, truth: Float64Array, tasks: pd.Series, penalties: Sequence[float]
) -> dict[float, float]:
    """Pearson's r of the grades and the scores of tasks left out, as in `train`, by penalty."""
    folds = PredefinedSplit(np.unique(tasks, return_inverse=True)[1] % FOLDS)
    models = {penalty: Ridge(penalty, fit_intercept=False) for penalty in penalties}
    scores = {penalty: cross_val_predict(model, inputs, truth[:, 0], cv=folds) for penalty, model in models.items()}
    return {penalty: float(np.corrcoef(predictions, truth[:, 0])[0, 1]) for penalty, predictions in scores.items()}


def without_request(inputs: Float64Array) -> Float64Array:
    """`features` without what depends on the request."""
    products = np.repeat([name.startswith("product") for name in COLUMNS], inputs.shape[1] // len(COLUMNS))
    return np.where(products, 0.0, inputs)


def teacher_pairs(dataset: str, settings: Distilled) -> pd.DataFrame:
    """The pairs that the teacher grades, a task's in one piece: columns task_id, server_id."""
    data, split = load_split(dataset)
    rng, topics = np.random.default_rng(settings.seed), set(store.read_table(dataset, "topics")["task_id"])
    ids, servers = data.tasks["id"].to_numpy(), data.servers["id"].to_numpy()
    tasks = [row for row in rng.permutation(split.tasks("train")) if ids[row] not in topics][: settings.tasks]
    scored_tasks = fit_system(data, split, settings.system).score(np.array(tasks))
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
    (task, task_ids), (server, server_ids) = pd.factorize(pairs["task_id"]), pd.factorize(pairs["server_id"])
    requests = encode(kinds.texts(tasks.loc[task_ids], kinds.VIEWS, VIEW))[task]
    return requests, {name: encode(kinds.texts(servers.loc[server_ids], kinds.FIELDS, name))[server] for name in FIELDS}


def score_run(student: Student, data: Dataset, run: pd.DataFrame) -> pd.DataFrame:
    """`run` with columns expected, the student's score from 0 to 2 over a task's servers, and milliseconds, those that
    it took for all servers of the task once the vectors are there."""
    (requests, fields), (expected, milliseconds) = vectors(data, run), np.empty((2, len(run)))
    for rows in run.groupby("task_id").indices.values():
        started = time.perf_counter()
        scores = student.scores(requests[rows], {name: of[rows] for name, of in fields.items()})
        milliseconds[rows] = 1000 * (time.perf_counter() - started)
        expected[rows] = GRADE * scaled(scores)
    return run.assign(expected=expected, milliseconds=milliseconds)
