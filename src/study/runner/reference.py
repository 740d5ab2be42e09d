"""Reference scores (`study reference`): what every system computes on toys, and the version that a change of it raises.

A row is current while the versions of its system and of the evaluator are those of its record, so that a change of code
that changes scores makes rows stale, and one that keeps them (a move, another name, a faster form) makes none.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from tqdm import tqdm

from study.base import files
from study.base.errors import StudyError, require_file
from study.config.compose import choices
from study.data.dataset import Dataset
from study.data.splits import Split, make
from study.data.toys import reference_dataset
from study.evaluation.metrics import per_task
from study.evaluation.ranking import mask_known, tie_order, tied, top_k
from study.evaluation.runs import CUTOFFS, KEPT, rank_tasks
from study.runner.identity import EVALUATOR, Version, normal_form, read_versions, versions_file
from study.runner.toy_fits import SEED, Case, cases, fit, model_settings, stand_ins

HEADER = """\
# The version of every system and of the evaluator, which every change of its reference scores (scores.parquet) raises,
# and the text encoders that it reads. A row is current while they are those of its record. `study reference --update`
# writes both files.
"""
SPLIT_SEED, PLACES, NEGATIVES, RANKED = 42, 1000, 20, KEPT + 1
TOLERANCE = 1e-4  # relative
# Systems, by the start of their names, whose scores differ more between processors (the largest difference between the
# AVX-512, AVX2 and SSE kernels of torch, BLAS and numba stands behind each) -> their tolerance. Adam divides a gradient
# by its size, so that rounding decides the step of one that is nearly 0.
TOLERANCES = {
    "cvh_rec": 5e-3,  # 5e-4, Adam
    "gdsrec": 5e-3,  # 5e-4, Adam
    "mpt_rec": 1e-3,  # 9e-5, Adam
    "recafr_profile": 2e-2,  # 3e-3, Adam
    "t2mrec_wo_cl_program": 2e-2,  # 6e-3, Adam
    "t2mrec_tuned": 2e-3,  # 2e-4, Adam
    "t2mrec_agreement": 1e-3,  # 1e-4, Adam
    "t2mrec_wo_structure": 1e-3,  # 7e-5, Adam
    "rrf": 1e-2,  # 5e-3: a member's two nearly equal servers change ranks; another c of 61 would move scores by 1.6e-2
    "ials_tuned": 1e-3,  # 1e-4: its 256 factors fit every label, and rounding alone scores the other servers
}
# Systems whose top tens and NDCG@10 alone are compared: rounding decides which beams TIGER's search keeps, and so which
# servers have a score at all, and where a tree splits nearly equal values. Measured between processors: 0.92 of the top
# tens shared or more, NDCG@10 at most 0.03 apart; TIGER with another seed: 0.36 shared or less.
BY_TOP_TEN, SHARED, NDCG_APART = ("tiger", "t2mrec_listwise"), 0.9, 0.04
# Systems, by the start of their names, whose toys have no equal servers: rounding alone would decide where the trees
# split and which codes the servers get, and all other scores with it.
WITHOUT_EQUAL = ("t2mrec_listwise", "lc_rec", "tiger")


class Scores(NamedTuple):
    """What a system computes for the test tasks of the toy data set.

    `scores`: at seeded places of the matrix of tasks and servers, shape (at most `PLACES`,). `top`: server rows of each
    task's first eleven, -1 where unfilled, shape (n_tasks * 11,); the last tells whether a tie decides the top ten.
    `top_scores`: their scores. `ndcg`: mean NDCG@10.
    """

    scores: np.ndarray
    top: np.ndarray
    top_scores: np.ndarray
    ndcg: float


class Run(NamedTuple):
    """Scores, the text encoders that the system read, and what the toys made it do: how many epochs it trained (None
    where it does not say), whether it went on from a checkpoint, whether a tie decided a top ten."""

    scores: Scores
    encoders: frozenset[str]
    epochs: int | None = None
    resumed: bool = False
    tie: bool = False


class Entry(NamedTuple):
    """What is stored of a case: scores, and the constructor's arguments of that day, in normal form, as JSON, so that a
    change of settings, which makes rows stale by itself, is no change of code."""

    scores: Scores
    settings: str

    def model(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return normal_form(json.loads(self.settings))  # type: ignore[no-any-return]


class Checked(NamedTuple):
    """What a system computes beside what is stored of it: what differs or is missing, in a few words, empty where only
    settings are others; whether its version is to rise; entries with today's settings; the encoders that it reads."""

    difference: str
    changed: bool
    entries: dict[Case, Entry]
    encoders: tuple[str, ...]


def scores_file() -> Path:
    """The stored entries; `study.runner.identity.versions_file` lies beside them."""
    return versions_file().with_name("scores.parquet")


@cache
def _toy(protocol: str, *, equal_servers: bool) -> tuple[Dataset, Split]:
    data = reference_dataset(equal_servers=equal_servers)
    return data, make(data, protocol, seed=SPLIT_SEED, negatives=NEGATIVES)


def compute(case: Case, model: Mapping[str, Any]) -> Run:
    """Fit the system of a case on the toys, stopped once, and ask it for the test tasks. `model`: the constructor's
    arguments, as `study.runner.toy_fits.model_settings` gives them."""
    if case.system == EVALUATOR:
        return Run(compute_evaluator(), frozenset())
    data, split = _toy(case.protocol, equal_servers=not case.system.startswith(WITHOUT_EQUAL))
    with tempfile.TemporaryDirectory() as work, stand_ins(Path(work) / "cache") as encoders:
        system, resumed = fit(case, model, data, split, Path(work) / "work", stop=True)
        tasks = split.tasks("test")
        matrix = np.asarray(system.score(tasks), dtype=np.float32)
        rows, scores = rank_tasks(system, split, tasks, part="test", k=RANKED, seed=SEED)
        report = system.report() if hasattr(system, "report") else {}
    ndcg = per_task(rows[:, :KEPT], split.test[tasks], ks=CUTOFFS)[f"ndcg@{KEPT}"].mean()
    sampled = np.random.default_rng(SEED).permutation(matrix.size)[:PLACES]
    computed = Scores(matrix.ravel()[sampled], rows.ravel(), scores.ravel(), float(ndcg))
    return Run(computed, frozenset(encoders), report.get("epochs"), resumed, bool(tied(scores, KEPT).any()))


def compute_evaluator() -> Scores:
    """The evaluator on a fixed run: ranking with known servers left out and ties, and every metric of every task."""
    rng = np.random.default_rng(SEED)
    data, split = _toy("warm", equal_servers=True)
    tasks = split.tasks("test")
    scores = np.round(rng.normal(size=(len(tasks), data.n_servers)), 1).astype(np.float32)
    scores[rng.random(scores.shape) < 0.1] = -np.inf
    scores[:3, KEPT // 2 :] = -np.inf  # ranks stay unfilled
    rows, values = top_k(mask_known(scores, tasks, split.known("test")), RANKED, tie_order(data.n_servers, SEED))
    metrics = per_task(rows[:, :KEPT], split.test[tasks], ks=CUTOFFS)
    table = metrics[sorted(metrics.columns)].to_numpy(np.float32).T
    return Scores(table.ravel(), rows.ravel(), values.ravel(), float(np.mean(metrics[f"ndcg@{KEPT}"])))


def differs(stored: Scores, computed: Scores, system: str = "") -> str | None:
    """What differs, in a few words; None where nothing does.

    Scores may differ by the system's tolerance, relative to their size or to their mean size. Two servers may change
    ranks where their scores are as near as that without being equal, since rounding differs between processors.
    """
    if stored.scores.shape != computed.scores.shape or stored.top.shape != computed.top.shape:
        return "other tasks or servers"
    tops = [each.top.reshape(-1, RANKED) for each in (stored, computed)]
    values = [each.top_scores.reshape(-1, RANKED) for each in (stored, computed)]
    if system.startswith(BY_TOP_TEN):
        pairs = zip(*(top[:, :KEPT].tolist() for top in tops), strict=True)
        shared = np.mean([len({*one} & {*other}) / len({*one}) for one, other in pairs])
        return "top ten" if shared < SHARED or abs(stored.ndcg - computed.ndcg) > NDCG_APART else None
    tolerance = next((value for name, value in TOLERANCES.items() if system.startswith(name)), TOLERANCE)
    if not _close(stored.scores, computed.scores, tolerance):
        return "scores"
    if not _close(stored.top_scores, computed.top_scores, tolerance):
        return "scores of the top ten"
    rankings = (part.tolist() for part in (tops[0], values[0], tops[1], values[1]))
    if not all(_same_ranking(*rows, tolerance=tolerance) for rows in zip(*rankings, strict=True)):
        return "top ten"
    same = np.array_equal(stored.top, computed.top)
    return "NDCG@10" if same and abs(stored.ndcg - computed.ndcg) > tolerance else None


def _close(stored: np.ndarray, computed: np.ndarray, tolerance: float) -> bool:
    finite = np.isfinite(stored)
    if not np.array_equal(stored[~finite], computed[~finite]):
        return False
    stored, computed = stored[finite].astype(np.float64), computed[finite].astype(np.float64)
    size = np.maximum(np.abs(stored), np.abs(stored).mean() if len(stored) else 0)
    return bool((np.abs(stored - computed) <= tolerance * size).all())


def _same_ranking(
    stored: list[int], stored_scores: list[float], now: list[int], now_scores: list[float], *, tolerance: float
) -> bool:
    """Whether one task's ranking is the same but for servers with nearly equal scores; those whose scores were equal
    and are so now are ranked by the rule for ties alone. What was not among the first eleven counts as their last."""
    score, score_now = dict(zip(stored, stored_scores, strict=True)), dict(zip(now, now_scores, strict=True))
    near = tolerance * max((abs(value) for value in stored_scores if np.isfinite(value)), default=0)
    for server, value in zip(now, stored_scores, strict=True):
        before = score.get(server, stored_scores[-1])
        if before != value and abs(before - value) > near:
            return False
    ties = ((a, b) for a, b in pairwise(stored) if score[a] == score[b] and a in now and b in now)
    return all(now.index(a) <= now.index(b) for a, b in ties if score_now[a] == score_now[b])


def read_entries() -> dict[Case, Entry]:
    """The stored entry of every case, the evaluator's with an empty protocol. Raises StudyError: no readable file."""
    fix = "take it from git"
    file = require_file(scores_file(), fix, "the reference scores are missing")
    try:
        rows = pd.read_parquet(file)[[*Case._fields, *Scores._fields, "settings"]].itertuples(index=False)
        return {Case(*row[:2]): Entry(Scores(*row[2:-1]), row[-1]) for row in rows}
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise StudyError(f"the reference scores cannot be read: {error}", file=file, fix=fix) from error


def check(names: Iterable[str] | None = None) -> dict[str, Checked]:
    """Compare what systems compute with their stored settings with what is stored, and compute those that differ, or
    have other settings today, with today's.

    `names`: of systems, or the `EVALUATOR`; by default all.
    Returns: by name, those that differ, and with an empty difference those whose settings alone are others.
    """
    every = [EVALUATOR, *choices("system")]
    names = list(names or every)
    if unknown := sorted({*names}.difference(every)):
        raise StudyError(f"there is no system {unknown[0]!r}", fix="study run system=? lists them")
    stored, versions = read_entries(), read_versions()
    checked = {}
    for name in tqdm(names, unit="system", leave=False, disable=not sys.stderr.isatty()):
        entries = {case: entry for case, entry in stored.items() if case.system == name}
        checked[name] = _check(name, entries, versions.get(name))
    return {name: each for name, each in checked.items() if each is not None}


def _check(system: str, before: Mapping[Case, Entry], version: Version | None) -> Checked | None:
    """As `check`, for one system and its stored entries; None where it has the same scores and settings."""
    today = {case: model_settings(case) for case in cases([system])} if system != EVALUATOR else {Case(system, ""): {}}
    changes, runs = list[str](), dict[Case, Run]()
    for case in before.keys() & today.keys():
        try:
            run = compute(case, before[case].model())
        except StudyError as error:
            changes.append(f"{case.protocol}: {error.reason}")
            continue
        if difference := differs(before[case].scores, run.scores, system):
            changes.append(f"{case.protocol}: {difference}")
        if before[case].model() == today[case]:
            runs[case] = run
    if not changes and runs.keys() == before.keys() == today.keys() and version and _encoders(runs) == version.encoders:
        return None
    runs |= {case: compute(case, model) for case, model in today.items() if case not in runs}
    missing = [f"{case.protocol}: no entry" for case in today.keys() - before.keys()]
    entries = {case: Entry(runs[case].scores, json.dumps(model)) for case, model in today.items()}
    return Checked("; ".join(sorted(changes + missing)), bool(changes) or version is None, entries, _encoders(runs))


def _encoders(runs: Mapping[Case, Run]) -> tuple[str, ...]:
    return tuple(sorted(set[str]().union(*(run.encoders for run in runs.values()))))


def update(checked: Mapping[str, Checked]) -> dict[str, int]:
    """Store what `check` found: entries with today's settings, and a version one higher where scores changed. Entries
    of systems that are gone are dropped. Returns: the versions that were raised."""
    before, same = read_versions(), {EVALUATOR, *choices("system")} - checked.keys()
    entries = {case: entry for case, entry in read_entries().items() if case.system in same}
    versions = {name: version for name, version in before.items() if name in same}
    for name, each in checked.items():
        entries |= each.entries
        versions[name] = Version(before.get(name, Version(0)).version + each.changed, each.encoders)
    rows = [case._asdict() | entry.scores._asdict() | {"settings": entry.settings} for case, entry in entries.items()]
    files.write_parquet(scores_file(), pd.DataFrame(rows).sort_values(list(Case._fields), ignore_index=True))
    lines = []
    for name, version in sorted(versions.items()):
        reads = f", encoders: [{', '.join(version.encoders)}]" if version.encoders else ""
        lines.append(f"{name}: {{version: {version.version}{reads}}}\n")
    files.write_text(versions_file(), HEADER + "".join(lines))
    return {name: versions[name].version for name, each in sorted(checked.items()) if each.changed}
