"""Grades of a language model: beside the judge's, as a second family, and to re-rank a system's first servers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tqdm import tqdm

from study import paths
from study.config.compose import build_system, load
from study.config.reader import read_settings
from study.data import dataset as datasets
from study.data.dataset import Dataset
from study.data.splits import Split
from study.errors import StudyError
from study.evaluation.metrics import ndcg
from study.evaluation.records import record
from study.evaluation.statistics import auc, bootstrap_interval
from study.evaluation.system import System
from study.files import read_csv, write_csv, write_json
from study.judging import agreement, store
from study.judging.collection import DEPTH, Collection
from study.judging.pools import load_split
from study.reranking import grades
from study.reranking.endpoint import endpoint_settings

SAVE_EVERY = 50  # grades
COLUMNS = [*store.PAIR, "expected", "model"]


@dataclass(frozen=True)
class Ranked:
    """Whose first servers are graded and re-ordered; every key is explained in ``conf/usefulness/grades.yaml``."""

    endpoint: str
    model: str
    longest: int
    system: str
    depth: int
    choice: str
    parts: list[str]
    weights: list[float]
    seed: int

    def __post_init__(self) -> None:
        """Refuse to choose the weight on a part that is not ranked."""
        if self.choice not in self.parts:
            raise StudyError(f"{self.choice!r} is none of `parts`", column="choice", fix=f"one of: {self.parts}")


@dataclass(frozen=True)
class Grades(Ranked):
    """``conf/usefulness/grades.yaml``, where every key is explained."""

    share: float


def measure(dataset: str) -> Iterator[pd.DataFrame]:
    """Ask for the grades that are not there yet, then write ``second_family.csv`` and ``graded.csv``; yields both.

    The grades lie in ``judged/model_grades.csv``: with all of them there, no model is needed.
    """
    settings = read_settings(Grades, paths.conf() / "usefulness" / "grades.yaml")
    run = first_servers(dataset, settings)
    known = ask(dataset, wanted(dataset, settings, run), settings, store.folder(dataset) / "model_grades.csv")
    judged = store.final(dataset).merge(known, on=store.PAIR)
    place = paths.results(dataset) / "usefulness"
    tables = {
        "second_family": second_family(judged.merge(sampled(dataset, settings), on=store.PAIR), seed=settings.seed),
        "graded": graded_table(Collection.load(dataset), run.merge(known, on=store.PAIR), settings),
    }
    for name, table in tables.items():
        write_csv(place / f"{name}.csv", table)
        facts: dict[str, Any] = {"settings": asdict(settings), "models": sorted(known["model"].unique())}
        write_json(place / f"{name}.json", record(dataset=dataset, result=name, **facts))
        yield table


def sampled(dataset: str, settings: Grades) -> pd.DataFrame:
    """The judged pairs that the second family grades, drawn at random: columns task_id, server_id."""
    judged = store.final(dataset)[store.PAIR]
    return judged.sample(frac=settings.share, random_state=np.random.default_rng(settings.seed))


def wanted(dataset: str, settings: Grades, run: pd.DataFrame) -> pd.DataFrame:
    """All pairs to be graded, each once, a task's own in one piece: columns task_id, server_id."""
    pieces = [run[store.PAIR], sampled(dataset, settings).sort_values(store.PAIR)]
    return pd.concat(pieces).drop_duplicates(ignore_index=True)


def fitted(data: Dataset, split: Split, name: str) -> System:
    """The system whose first servers are graded."""
    system: System = build_system(load([f"dataset={data.name}", f"protocol={split.protocol}", f"system={name}"]).system)
    (workdir := paths.cache() / "grades" / data.name).mkdir(parents=True, exist_ok=True)
    system.fit(data, split, seed=0, workdir=workdir)
    return system


def first_servers(dataset: str, settings: Ranked) -> pd.DataFrame:
    """The system's first servers for the topics of `parts`: columns task_id, server_id, rank, score, part.

    They are those of the pooled run of the judged collection, which the kept grades belong to: scores are rounded
    otherwise on another kind of processor.
    """
    runs, topics = store.read_runs(dataset), store.read_table(dataset, "topics")
    if settings.system not in runs:
        problem, fix = f"there is no run of {settings.system}", "run: study judge pool"
        raise StudyError(problem, file=store.runs_file(dataset), fix=fix)
    run = runs[settings.system].merge(topics.loc[topics["part"].isin(settings.parts), ["task_id", "part"]])
    run = run[run["rank"] <= settings.depth]
    data, split = load_split(dataset)
    asked = pd.Index(run["task_id"].unique())
    scores = fitted(data, split, settings.system).score(pd.Index(data.tasks["id"]).get_indexer(asked))
    columns = pd.Index(data.servers["id"]).get_indexer(pd.Index(run["server_id"]))
    run = run.assign(score=scores[asked.get_indexer(pd.Index(run["task_id"])), columns])
    return run[["task_id", "server_id", "rank", "score", "part"]].reset_index(drop=True)


def ask(dataset: str, pairs: pd.DataFrame, settings: Ranked, file: Path) -> pd.DataFrame:
    """The expected grade of each pair, from 0 to 2: those that `file` keeps, the others by the model.

    Returns: columns `COLUMNS`. A stop costs the last 50 grades at most.
    """
    known = read_csv(file) if file.exists() else pd.DataFrame(columns=COLUMNS)
    there = store.pairs(known)
    open_pairs = [pair for pair in pairs[store.PAIR].itertuples(index=False, name=None) if pair not in there]
    if not open_pairs:
        return known
    endpoint = replace(endpoint_settings(settings.endpoint), mode="off")
    client, data = endpoint.client(None), datasets.load(dataset)
    tasks = data.tasks.set_index("id")[["name", "description"]].to_dict("index")
    servers = data.servers.set_index("id")[["name", "description", "language"]].to_dict("index")
    found: list[tuple[Any, ...]] = []

    def save() -> pd.DataFrame:
        new = pd.DataFrame(found, columns=COLUMNS)
        table = pd.concat([known, new]) if len(known) else new
        write_csv(file, table.sort_values(store.PAIR))
        return table

    for task, server in tqdm(open_pairs, desc="grade", unit="pair", disable=not sys.stderr.isatty()):
        body = grades.question(settings.model, tasks[task], servers[server], settings.longest)
        reply = client.post("chat/completions", body)
        expected = grades.expected_grade(reply)
        if expected is None:
            reason = f"no log probability of 0, 1 or 2 for server {server}, task {task}"
            raise StudyError(reason, file=client.base_url, fix="use another endpoint or model")
        found.append((task, server, round(expected, 4), reply["model"]))
        if len(found) % SAVE_EVERY == 0:
            save()
    return save()


def second_family(rows: pd.DataFrame, *, seed: int) -> pd.DataFrame:
    """How far the model's grades agree with the judge's.

    Args:
        rows: judged pairs with columns task_id, final and expected.

    Returns: one row: pairs, useful (share with a final grade above 0), kappa_quadratic of the rounded grades with its
        95 % interval over topics, auc (chance that a useful pair has a higher expected grade than one without use),
        and the mean expected grade by final grade.
    """
    final, rounded = rows["final"].to_numpy(np.int64), np.rint(rows["expected"]).astype(np.int64)
    counts = agreement.confusions(final, rounded, rows["task_id"])
    low, high = agreement.kappa_interval(counts, "quadratic", seed=seed)
    row = {"pairs": len(rows), "useful": float((final >= 1).mean())}
    row |= {"kappa_quadratic": float(agreement.weighted_kappa(counts.sum(axis=0), "quadratic"))}
    row |= {"kappa_ci_low": low, "kappa_ci_high": high}
    useful, useless = rows.loc[final >= 1, "expected"], rows.loc[final == 0, "expected"]
    row["auc"] = auc(useful.to_numpy(), useless.to_numpy())
    return pd.DataFrame(
        [row | {f"mean_of_{grade}": float(rows.loc[final == grade, "expected"].mean()) for grade in store.GRADES}]
    )


def reordered(run: pd.DataFrame, weight: float) -> pd.DataFrame:
    """The first servers by score + weight x grade, both from 0 to 1, as `study recommend --rerank llm` has it.

    `run`: columns task_id, server_id, rank, score, expected. Returns: `run` with new ranks."""
    score = run.groupby("task_id")["score"]
    low, spread = score.transform("min"), score.transform("max") - score.transform("min")
    total = (run["score"] - low) / spread.where(spread > 0, 1.0) + weight * run["expected"] / 2
    ordered = run.assign(total=total).sort_values(["task_id", "total", "rank"], ascending=[True, False, True])
    return ordered.assign(rank=ordered.groupby("task_id").cumcount() + 1).drop(columns="total")


def graded_table(collection: Collection, run: pd.DataFrame, settings: Ranked) -> pd.DataFrame:
    """Judged NDCG@10 with and without grades; of other parts than `choice` with the weight that is best there.

    Returns: columns part, weight (0: the system alone), n, ndcg@10, diff from the system with its 95 % interval.
    """

    def values(part: str, weight: float) -> np.ndarray:
        own = reordered(run[run["part"] == part], weight)
        rows, ranked, _ = collection.look_up(own)
        return ndcg(ranked, collection.gains[rows], DEPTH, graded=True)

    best = max(settings.weights, key=lambda weight: float(np.nanmean(values(settings.choice, weight))))
    rows = []
    for part in settings.parts:
        before = values(part, 0.0)
        for weight in (0.0, *(settings.weights if part == settings.choice else [best])):
            diff = values(part, weight) - before
            diff = diff[~np.isnan(diff)]
            low, high = bootstrap_interval(diff, seed=settings.seed)
            row = {"part": part, "weight": weight, "n": len(diff), "ndcg@10": np.nanmean(values(part, weight))}
            rows.append(row | {"diff": diff.mean(), "diff_ci_low": low, "diff_ci_high": high})
    return pd.DataFrame(rows)
