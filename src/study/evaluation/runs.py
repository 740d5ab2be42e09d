"""One seed of one system: fit, rank, measure."""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from study.base.errors import StudyError
from study.data.dataset import Dataset, FloatArray, IntArray
from study.data.splits import Split
from study.evaluation.metrics import per_task
from study.evaluation.per_task import table
from study.evaluation.ranking import chunks, mask_known, restrict, tie_order, tied, top_k
from study.evaluation.system import Ranker, System

# Metrics are reported at 5 and 10.
KEPT = 10
CUTOFFS = (5, 10)


class SeedRun(NamedTuple):
    """What one seed leaves behind: `per_task` (task_id, seed, one column per metric and cut-off), `top` (task_id, seed,
    rank from 1, server_id, score: the best ten or as many as asked for), `facts` (seconds, memory, parameters, ties).
    """

    per_task: pd.DataFrame
    top: pd.DataFrame
    facts: dict[str, Any]


def rank_tasks(
    system: System, split: Split, tasks: IntArray, *, part: str, k: int, seed: int, ids: IntArray | None = None
) -> tuple[IntArray, FloatArray]:
    """Ask a fitted system for the tasks of a part, `k` servers each, known interactions left out. Sampled candidates
    are those of test tasks; on validation the whole catalogue is ranked.

    `ids`: of all tasks, for messages (default: their row numbers). Returns: server rows (-1 where unfilled) and scores,
    both (len(tasks), k). Raises StudyError: scores of another shape, or one that is NaN or above all numbers.
    """
    known, name, n_servers = split.known(part), type(system).__name__, split.train.shape[1]
    order = tie_order(n_servers, seed)
    candidates = split.candidates if part == "test" else None
    rows = np.full((len(tasks), k), -1, dtype=np.int64)
    values = np.full((len(tasks), k), -np.inf, dtype=np.float32)
    for piece in chunks(tasks):
        asked = tasks[piece]
        named = asked if ids is None else ids[asked]
        if isinstance(system, Ranker) and candidates is None:
            found, scores = map(np.asarray, system.rank(asked, k, known))
            if found.shape != scores.shape or found.ndim != 2 or len(found) != len(asked) or found.shape[1] > k:
                reason = (
                    f"rank() of {name} gave shapes {found.shape} and {scores.shape}, expected {(len(asked), k)} twice"
                )
                raise StudyError(reason, fix="return servers and scores, one row per task")
            _require_numbers(name, scores, named, seed)
        else:
            matrix = _scores(system, asked, n_servers)
            _require_numbers(name, matrix, named, seed)
            if candidates is None:
                matrix = mask_known(matrix, asked, known)
            else:
                matrix = restrict(matrix, candidates[np.searchsorted(split.tasks("test"), asked)])
            found, scores = top_k(matrix, k, order)
        rows[piece, : found.shape[1]], values[piece, : found.shape[1]] = found, scores
    return rows, values


def _scores(system: System, asked: IntArray, n_servers: int) -> FloatArray:
    """A copy of the system's scores, shape (len(asked), n_servers). Raises StudyError: they are no such table."""
    name, expected = type(system).__name__, (len(asked), n_servers)
    try:
        matrix = np.array(system.score(asked), dtype=np.float32)
    except (TypeError, ValueError) as error:
        if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
            raise  # the system's own
        fix = "return one number per task and server"
        raise StudyError(f"score() of {name} gave no table of numbers", fix=fix) from error
    if matrix.shape != expected:
        fix = "return one row per task, one column per server"
        raise StudyError(f"score() of {name} gave shape {matrix.shape}, expected {expected}", fix=fix)
    return matrix


def _require_numbers(name: str, scores: FloatArray, ids: IntArray, seed: int) -> None:
    """Raise for NaN and for infinity; -inf says that a server is not ranked. `scores`: shape (len(ids), any)."""
    wrong = np.isnan(scores) | np.isposinf(scores)
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        reason = f"{name} gave the score {scores[row, column]} for task {ids[row]} with seed {seed}"
        fix = "give finite scores, and -inf to servers that are not ranked; a training that diverged needs a smaller "
        raise StudyError(reason, fix=f"{fix}learning rate")


def run_seed(
    system: System, data: Dataset, split: Split, *, seed: int, workdir: Path, part: str = "test", depth: int = KEPT
) -> SeedRun:
    """Fit a system with one seed and measure it on one part: ``test``, or ``valid`` where a choice is being made.

    `depth`: places of the run to return, at least ten. Raises StudyError: the catalogue is smaller than the cut-off.
    """
    if data.n_servers <= KEPT:
        reason = f"the catalogue has {data.n_servers} servers, metrics are taken at {KEPT}"
        raise StudyError(reason, fix="use a data set with more servers")
    started = time.perf_counter()
    system.fit(data, split, seed=seed, workdir=workdir)
    fitted = time.perf_counter()
    tasks = split.tasks(part)
    asked = max(depth, KEPT + 1)  # one place beyond the last that counts shows whether a tie decides it
    ids = data.tasks["id"].to_numpy()
    rows, scores = rank_tasks(system, split, tasks, part=part, k=asked, seed=seed, ids=ids)
    ranked = time.perf_counter()
    ties = tied(scores, KEPT)
    values = table(ids[tasks], seed, per_task(rows[:, :KEPT], split.part(part)[tasks], ks=CUTOFFS))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    facts: dict[str, Any] = {
        "seed": seed,
        "seconds_fit": round(fitted - started, 3),
        "seconds_score": round(ranked - fitted, 3),
        "peak_memory_mib": round(peak, 1),
        "parameters": getattr(system, "parameters", lambda: 0)(),
        "tasks": len(tasks),
        "tie_rate": round(float(ties.mean()), 6),
        "unfilled": int((rows[:, :KEPT] < 0).sum()),
    }
    if hasattr(system, "report"):
        facts["report"] = system.report()
        # A training that was taken up, or was finished before, took longer than this fit.
        facts["seconds_fit"] = max(facts["seconds_fit"], facts["report"].get("seconds_trained", 0.0))
    return SeedRun(values, run_table(data, ids[tasks], rows[:, :depth], scores[:, :depth], seed), facts)


def run_table(data: Dataset, task_ids: np.ndarray, rows: IntArray, scores: FloatArray, seed: int) -> pd.DataFrame:
    """The run in long form: task_id, seed, rank, server_id, score; unfilled places left out."""
    filled = rows >= 0
    task, place = np.nonzero(filled)
    ids = data.servers["id"].to_numpy()[rows[filled]]
    keys = {"task_id": np.asarray(task_ids)[task], "seed": seed, "rank": place + 1}
    return pd.DataFrame(keys | {"server_id": ids, "score": scores[filled]})
