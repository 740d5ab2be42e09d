"""Reference scores: what every system computes on a toy data set, and the version that a change of it raises.

A row of the tables is current while the version of its system and that of the evaluator are those of its record. The
version stands beside scores that were computed with the code of that version, so that a change of code that changes
scores is seen, and one that keeps them (a move, another name, a faster form) makes no row stale.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pandas as pd
import yaml
from omegaconf import DictConfig
from tqdm import tqdm

from study import files, paths
from study.config.compose import build_system, choices, load, plain
from study.config.registry import changed, system_settings, with_tuned_values
from study.data.dataset import Dataset
from study.data.splits import Split, make
from study.data.toys import reference_dataset
from study.encoders import mpnet, sentence
from study.errors import StudyError, require_file
from study.evaluation.metrics import per_task
from study.evaluation.ranking import mask_known, tie_order, tied, top_k
from study.evaluation.runs import CUTOFFS, KEPT, rank_tasks
from study.llm.client import Client
from study.runner.processes import limit_threads

EVALUATOR = "evaluator"
VERSIONS_HEADER = """\
# Version of every system and of the evaluator: how often its reference scores (scores.parquet) were replaced. A row is
# current while these are the versions in its record. `study reference --update` writes both files.
"""
SEED, SPLIT_SEED, PLACES, NEGATIVES, RANKED = 1, 42, 1000, 20, KEPT + 1
TOLERANCE = 1e-4  # relative
# Systems whose scores differ more between processors -> their tolerance. Each has its reason beside it.
TOLERANCES: dict[str, float] = {}
# Systems, by the start of their names, whose toys have no equal servers: rounding alone would decide where the trees
# split and which codes the servers get, and all other scores with it.
WITHOUT_EQUAL = ("t2mrec_listwise", "lc_rec", "tiger")
# Settings by name, wherever they stand in a model: training can be stopped after each epoch, and parts are used that
# the smallest sizes leave out.
CHANGES: dict[str, Any] = {"checkpoint_seconds": 0, "hard_pool": 14, "contrasted": 16, "tags_every": 2}
# Fewer codes than servers: a code for each leaves nothing for the next level, whose codes rounding then decides.
CHANGES |= {"codes": 8}
# A setting that tells how a training is scheduled -> settings beside it: one that can stop early does.
SCHEDULES = {
    "patience": {"patience": 1, "evaluate_every": 1, "epochs": 30},
    "evaluations": {"epochs": 2},
    "checkpoint_every": {"checkpoint_every": 1, "epochs": 2},
}


class Case(NamedTuple):
    """A system under a protocol."""

    system: str
    protocol: str


class Scores(NamedTuple):
    """What a system computes for the test tasks of the toy data set.

    Attributes:
        scores: at seeded places of the matrix of tasks and servers, shape (at most `PLACES`,).
        top: server rows of each task's first eleven, -1 where unfilled, shape (n_tasks * 11,). The last one tells
            whether a tie decides the top ten.
        top_scores: their scores, shape (n_tasks * 11,).
        ndcg: mean NDCG@10.
    """

    scores: np.ndarray
    top: np.ndarray
    top_scores: np.ndarray
    ndcg: float


class Run(NamedTuple):
    """Scores, and what the toys made the system do: how many epochs it trained (None where it does not say), whether it
    went on from a checkpoint, whether a tie decided the top ten of a task."""

    scores: Scores
    epochs: int | None
    resumed: bool
    tie: bool


def folder() -> Path:
    """Where the reference lies: scores.parquet and versions.yaml."""
    return paths.root() / "tests" / "reference"


def cases(systems: Iterable[str] | None = None) -> list[Case]:
    """Every system of ``conf/system`` under every protocol that it applies to. A system that starts a program of its
    own for each fit has one case alone, since this takes ten seconds."""
    found = []
    for name in systems or choices("system"):
        config = composed(name)
        protocols = list(config.system.protocols)
        found += [Case(name, protocol) for protocol in (protocols[:1] if starts_program(name) else protocols)]
    return found


def starts_program(system: str) -> bool:
    """Whether a fit of the system starts a program of its own."""
    return bool(composed(system).system.subprocess)


@cache
def composed(system: str) -> DictConfig:
    """The settings of a system at the smallest size, with the values that were chosen for it on Task2MCP."""
    config = changed(_frame(), {"system": system_settings(system)}, merge=False)
    best = paths.results("task2mcp") / "sweeps" / system / "best.yaml"
    return with_tuned_values(config) if best.exists() else config


@cache
def _frame() -> DictConfig:
    """What the settings of all systems have in common; composing takes long."""
    return load(["dataset=task2mcp", "profile=smoke", f"system={choices('system')[0]}"])


@cache
def _toy(protocol: str, *, equal_servers: bool = True) -> tuple[Dataset, Split]:
    data = reference_dataset(equal_servers=equal_servers)
    return data, make(data, protocol, seed=SPLIT_SEED, negatives=NEGATIVES)


def model_settings(case: Case) -> dict[str, Any]:
    """The constructor's arguments of a case's system, with `CHANGES` and `SCHEDULES`."""
    config = changed(composed(case.system), {"protocol.name": case.protocol})
    return _shortened(plain(config.system)["model"])  # type: ignore[no-any-return]


def build(case: Case) -> Any:
    """The system of a case."""
    return build_system(changed(composed(case.system), {"system.model": model_settings(case)}, merge=False).system)


def _shortened(value: Any) -> Any:
    if isinstance(value, list):
        return [_shortened(item) for item in value]
    if not isinstance(value, dict):
        return value
    chosen = dict(CHANGES)
    for key, schedule in SCHEDULES.items():
        chosen |= schedule if value.get(key) is not None else {}
    return {key: chosen.get(key, _shortened(item)) for key, item in value.items()}


def compute(case: Case) -> Run:
    """Fit the system of a case on the toys, stopped once at its second checkpoint, and ask it for the test tasks.

    Vectors of texts and replies of language models are stand-ins; nothing is read from the cache or written to it.
    """
    limit_threads(1)
    data, split = _toy(case.protocol, equal_servers=not case.system.startswith(WITHOUT_EQUAL))
    with tempfile.TemporaryDirectory() as place, _stand_ins(Path(place) / "cache"):
        work = Path(place) / "work"
        work.mkdir()
        system, resumed = build(case), False
        try:
            with _stopped_at_second_checkpoint(work):
                system.fit(data, split, seed=SEED, workdir=work)
        except _Stopped:
            system, resumed = build(case), True
            system.fit(data, split, seed=SEED, workdir=work)
        tasks = split.tasks("test")
        matrix = np.asarray(system.score(tasks), dtype=np.float32)
        rows, scores = rank_tasks(system, split, tasks, part="test", k=RANKED, seed=SEED, n_servers=data.n_servers)
        report = system.report() if hasattr(system, "report") else {}
    ndcg = per_task(rows[:, :KEPT], split.test[tasks], ks=CUTOFFS)[f"ndcg@{KEPT}"].mean()
    places = np.random.default_rng(SEED).permutation(matrix.size)[:PLACES]
    kept = Scores(matrix.ravel()[places], rows.ravel(), scores.ravel(), float(ndcg))
    return Run(kept, report.get("epochs"), resumed, bool(tied(scores, KEPT).any()))


class _Stopped(BaseException):
    """A training was stopped; no `except Exception` takes it for a failure."""


@contextmanager
def _stopped_at_second_checkpoint(work: Path) -> Iterator[None]:
    """Within the block, the second file that is put in place below `work` is not, and `_Stopped` is raised."""
    replace, count = os.replace, 0

    def counted(source: Any, target: Any, **options: Any) -> None:
        nonlocal count
        if work in Path(target).parents:
            count += 1
            if count == 2:
                raise _Stopped
        replace(source, target, **options)

    with patch.object(os, "replace", counted):
        yield


@contextmanager
def _stand_ins(cache_folder: Path) -> Iterator[None]:
    """Within the block, texts are encoded by their words, language models answer by hash, the cache is a folder, and
    systems are silent."""
    with (
        patch.object(paths, "cache", lambda: cache_folder),
        patch.object(sentence, "_embed", lambda texts, *_: _embedded(texts, sentence.DIMENSION)),
        patch.object(mpnet, "_embed", lambda texts: _embedded(texts, mpnet.DIMENSION)),
        patch.object(Client, "post", _reply),
        patch.dict(os.environ, {"T2M_LLM_MODE": "off"}),
    ):
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


def _embedded(texts: list[str], dimension: int) -> np.ndarray:
    """Unit vectors of texts, shape (len(texts), dimension): the sum of a seeded normal vector for each word."""
    words = [re.findall(r"\w+", text.lower()) or ["nothing"] for text in texts]
    sums = np.array([sum(_word(word, dimension) for word in each) for each in words])
    return np.asarray(sums / np.linalg.norm(sums, axis=1, keepdims=True), dtype=np.float32)


@cache
def _word(word: str, dimension: int) -> np.ndarray:
    return np.random.default_rng(zlib.crc32(word.encode())).standard_normal(dimension)


def _reply(client: Client, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """A reply that the text of a request decides: a grade, or the first ten candidates in an order with one exchanged
    for a candidate below them."""
    text = json.dumps(body["messages"], sort_keys=True)
    if "logprobs" in body:
        chance = zlib.crc32(text.encode()) % 1000 / 1000
        top = [
            {"token": digit, "logprob": float(np.log(p))} for digit, p in (("0", 1.01 - chance), ("2", chance + 0.01))
        ]
        return {"choices": [{"message": {"content": "2"}, "logprobs": {"content": [{"top_logprobs": top}]}}]}
    asked = body["messages"][-1]["content"]
    task = int(re.findall(r'<task>\n\{"id": (\d+)', asked)[0])
    candidates = [int(number) for number in re.findall(r'^\{"id": (\d+)', asked.split("<candidates>")[1], re.MULTILINE)]
    order = np.random.default_rng(zlib.crc32(text.encode()))
    servers = [candidates[place] for place in order.permutation([*range(9), 9 + order.integers(0, 5)])]
    content = json.dumps({"task": task, "servers": servers, "explanation": ""})
    return {"choices": [{"message": {"content": content}}]}


def compute_evaluator() -> Scores:
    """The evaluator on a fixed run: ranking with known servers left out and ties, and every metric of every task."""
    rng = np.random.default_rng(SEED)
    data, split = _toy("warm")
    tasks = split.tasks("test")
    scores = np.round(rng.normal(size=(len(tasks), data.n_servers)), 1).astype(np.float32)
    scores[rng.random(scores.shape) < 0.1] = -np.inf
    scores[:3, KEPT // 2 :] = -np.inf  # places stay unfilled
    rows, values = top_k(mask_known(scores, tasks, split.known("test")), RANKED, tie_order(data.n_servers, SEED))
    metrics = per_task(rows[:, :KEPT], split.test[tasks], ks=CUTOFFS)
    table = metrics[sorted(metrics.columns)].to_numpy(np.float32).T
    return Scores(table.ravel(), rows.ravel(), values.ravel(), float(np.mean(metrics[f"ndcg@{KEPT}"])))


def differs(stored: Scores, computed: Scores, tolerance: float = TOLERANCE) -> str | None:
    """What differs, in a few words; None where nothing does.

    Scores may differ by `tolerance` of their size or of their mean size. Two servers may change places where their
    scores are as near as that without being equal, since rounding differs between processors; equal scores are ranked
    by the rule for ties alone.
    """
    if stored.scores.shape != computed.scores.shape or stored.top.shape != computed.top.shape:
        return "other tasks or servers"
    if not _close(stored.scores, computed.scores, tolerance):
        return "scores"
    if not _close(stored.top_scores, computed.top_scores, tolerance):
        return "scores of the top ten"
    rankings = [(each.top.reshape(-1, RANKED), each.top_scores.reshape(-1, RANKED)) for each in (stored, computed)]
    if not all(_same_ranking(*rows, tolerance) for rows in zip(*rankings[0], *rankings[1], strict=True)):
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
    stored: np.ndarray, stored_scores: np.ndarray, found: np.ndarray, found_scores: np.ndarray, tolerance: float
) -> bool:
    """Whether one task's ranking is the same but for the order within groups of nearly equal scores."""
    if np.array_equal(stored, found):
        return True
    with np.errstate(invalid="ignore"):  # unfilled places have the score -inf
        steps, other_steps = np.diff(stored_scores), np.diff(found_scores)
    tied_in_both = (steps == 0) & (other_steps == 0)
    if ((stored != found)[:-1] & tied_in_both).any():
        return False
    near = np.abs(steps) <= tolerance * np.abs(stored_scores[np.isfinite(stored_scores)]).max(initial=0)
    groups = np.split(np.arange(len(stored)), np.flatnonzero(~near) + 1)
    return all(set(stored[group]) == set(found[group]) for group in groups[:-1])  # the last may go on below


@dataclass(frozen=True)
class Reference:
    """What is stored: the scores of every case (the evaluator's with an empty protocol), and versions by name."""

    scores: dict[Case, Scores]
    versions: dict[str, int]

    @classmethod
    def read(cls) -> Reference:
        """Read the stored reference. Raises StudyError: a file is missing or damaged."""
        table, listed = folder() / "scores.parquet", folder() / "versions.yaml"
        for file in (table, listed):
            require_file(file, "take it from git", "the reference scores are missing")
        try:
            rows = pd.read_parquet(table)
            scores = {
                Case(*row[:2]): Scores(*row[2:])
                for row in rows[[*Case._fields, *Scores._fields]].itertuples(index=False)
            }
            versions = {str(name): int(version) for name, version in yaml.safe_load(listed.read_text()).items()}
        except (ValueError, KeyError, AttributeError, OSError, yaml.YAMLError) as error:
            raise StudyError(
                f"the reference scores cannot be read: {error}", file=table, fix="take it from git"
            ) from error
        return cls(scores, versions)

    def write(self) -> None:
        """Write scores.parquet and versions.yaml, in the order of names."""
        rows = [case._asdict() | scores._asdict() for case, scores in sorted(self.scores.items())]
        files.write_parquet(folder() / "scores.parquet", pd.DataFrame(rows))
        versions = "".join(f"{name}: {version}\n" for name, version in sorted(self.versions.items()))
        files.write_text(folder() / "versions.yaml", f"{VERSIONS_HEADER}{versions}")


def check(names: Iterable[str] | None = None) -> tuple[dict[str, str], dict[Case, Scores]]:
    """Compute the systems `names` (and the `EVALUATOR`; by default all) and compare them with what is stored.

    Returns: what differs, by name, and what was computed for those that differ, all their protocols.
    """
    known = [EVALUATOR, *choices("system")]
    names = list(names or known)
    if unknown := sorted(set(names) - set(known)):
        raise StudyError(f"there is no system {unknown[0]!r}", fix="study run system=? lists them")
    stored = Reference.read() if (folder() / "versions.yaml").exists() else Reference({}, {})
    reasons, found = dict[str, str](), dict[Case, Scores]()
    for name in tqdm(names, unit="system", leave=False, disable=not sys.stderr.isatty()):
        computed = _computed(name)
        entries = {case for case in stored.scores if case.system == name}
        differing = {case.protocol: _difference(stored, case, scores) for case, scores in computed.items()}
        shown = [f"{protocol}: {reason}".removeprefix(": ") for protocol, reason in differing.items() if reason]
        if shown or entries - computed.keys():
            reasons[name] = "; ".join(shown) or "a protocol is gone"
            found |= computed
    return reasons, found


def _computed(name: str) -> dict[Case, Scores]:
    if name == EVALUATOR:
        return {Case(EVALUATOR, ""): compute_evaluator()}
    return {case: compute(case).scores for case in cases([name])}


def _difference(stored: Reference, case: Case, computed: Scores) -> str | None:
    if case not in stored.scores or case.system not in stored.versions:
        return "no entry"
    return differs(stored.scores[case], computed, TOLERANCES.get(case.system, TOLERANCE))


def update(computed: Mapping[Case, Scores]) -> dict[str, int]:
    """Store what `check` computed in place of the entries of the same systems, raise their versions by one, and drop
    the entries of systems that are gone.

    Returns: the new versions.
    """
    stored = Reference.read() if (folder() / "versions.yaml").exists() else Reference({}, {})
    names, known = {case.system for case in computed}, {EVALUATOR, *choices("system")}
    raised = {name: stored.versions.get(name, 0) + 1 for name in sorted(names)}
    kept = {case: scores for case, scores in stored.scores.items() if case.system in known - names}
    versions = {name: version for name, version in stored.versions.items() if name in known}
    Reference(kept | dict(computed), versions | raised).write()
    return raised
