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
from omegaconf import DictConfig, OmegaConf
from tqdm import tqdm

from study import files, paths
from study.config.changes import changed, with_tuned_values
from study.config.compose import build_system, choices, load, plain
from study.config.registry import OWN, folder_of, system_file
from study.data.dataset import Dataset
from study.data.splits import Split, make
from study.data.toys import reference_dataset
from study.encoders import mpnet, sentence
from study.errors import StudyError, require_file
from study.evaluation.metrics import per_task
from study.evaluation.ranking import mask_known, tie_order, tied, top_k
from study.evaluation.runs import CUTOFFS, KEPT, rank_tasks
from study.llm.client import Client
from study.runner.identity import EVALUATOR, Version, normal_form, read_versions, versions_file
from study.runner.processes import limit_threads

HEADER = """\
# The version of every system and of the evaluator, which every change of its reference scores (scores.parquet) raises,
# and the text encoders that it reads. A row is current while they are those of its record. `study reference --update`
# writes both files.
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
    """Scores, the text encoders that the system read (of `ENCODERS`), and what the toys made it do: how many epochs it
    trained (None where it does not say), whether it went on from a checkpoint, whether a tie decided a top ten."""

    scores: Scores
    encoders: frozenset[str]
    epochs: int | None
    resumed: bool
    tie: bool


def scores_file() -> Path:
    """The stored entries; `study.runner.identity.versions_file` lies beside them."""
    return versions_file().with_name("scores.parquet")


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
    config = load(["dataset=task2mcp", "profile=smoke", f"system={system}"])
    best = paths.tuned("task2mcp", system) / "best.yaml"
    return with_tuned_values(config) if best.exists() else config


@cache
def _toy(protocol: str, *, equal_servers: bool = True) -> tuple[Dataset, Split]:
    data = reference_dataset(equal_servers=equal_servers)
    return data, make(data, protocol, seed=SPLIT_SEED, negatives=NEGATIVES)


def model_settings(case: Case) -> dict[str, Any]:
    """The constructor's arguments of a case's system in normal form, with `CHANGES` and `SCHEDULES`."""
    config = changed(composed(case.system), {"protocol.name": case.protocol})
    return normal_form(_shortened(plain(config.system)["model"]))  # type: ignore[no-any-return]


def _shortened(value: Any) -> Any:
    if isinstance(value, list):
        return [_shortened(item) for item in value]
    if not isinstance(value, dict):
        return value
    chosen = dict(CHANGES)
    for key, schedule in SCHEDULES.items():
        chosen |= schedule if value.get(key) is not None else {}
    return {key: chosen.get(key, _shortened(item)) for key, item in value.items()}


def compute(case: Case, model: Mapping[str, Any]) -> Run:
    """Fit the system of a case on the toys, stopped once at its second checkpoint, and ask it for the test tasks.

    Vectors of texts and replies of language models are stand-ins; nothing is read from the cache or written to it.

    `model`: the constructor's arguments, as `model_settings` gives them.
    """

    def build() -> Any:
        return build_system(OmegaConf.create({"name": case.system, "model": model}))

    limit_threads(1)
    data, split = _toy(case.protocol, equal_servers=not case.system.startswith(WITHOUT_EQUAL))
    with tempfile.TemporaryDirectory() as place, _stand_ins(Path(place) / "cache") as encoders:
        work = Path(place) / "work"
        work.mkdir()
        system, resumed = build(), False
        try:
            with _stopped_at_second_checkpoint(work):
                system.fit(data, split, seed=SEED, workdir=work)
        except _Stopped:
            system, resumed = build(), True
            system.fit(data, split, seed=SEED, workdir=work)
        tasks = split.tasks("test")
        matrix = np.asarray(system.score(tasks), dtype=np.float32)
        rows, scores = rank_tasks(system, split, tasks, part="test", k=RANKED, seed=SEED)
        report = system.report() if hasattr(system, "report") else {}
    ndcg = per_task(rows[:, :KEPT], split.test[tasks], ks=CUTOFFS)[f"ndcg@{KEPT}"].mean()
    places = np.random.default_rng(SEED).permutation(matrix.size)[:PLACES]
    kept = Scores(matrix.ravel()[places], rows.ravel(), scores.ravel(), float(ndcg))
    return Run(kept, frozenset(encoders), report.get("epochs"), resumed, bool(tied(scores, KEPT).any()))


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
def _stand_ins(cache_folder: Path) -> Iterator[set[str]]:
    """Within the block, texts are encoded by their words, language models answer by hash, the cache is a folder, and
    systems are silent. Yields the names of the encoders that are asked."""
    asked = set[str]()

    def encode(texts: list[str], *_: str) -> np.ndarray:
        asked.add("minilm")
        return _embedded(texts, sentence.DIMENSION)

    def encode_by_mpnet(texts: list[str]) -> np.ndarray:
        asked.add("mpnet")
        return _embedded(texts, mpnet.DIMENSION)

    with (
        patch.object(paths, "cache", lambda: cache_folder),
        patch.object(sentence, "_embed", encode),
        patch.object(mpnet, "_embed", encode_by_mpnet),
        patch.object(Client, "post", _reply),
        patch.dict(os.environ, {"T2M_LLM_MODE": "off"}),
    ):
        logging.disable(logging.WARNING)
        try:
            yield asked
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


class Entry(NamedTuple):
    """What is stored of a case: what was computed, and the constructor's arguments, in normal form, as JSON.

    The arguments are those of the day of the version, so that a change of settings, which makes rows stale by itself,
    is no change of code.
    """

    scores: Scores
    settings: str

    def model(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return normal_form(json.loads(self.settings))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Reference:
    """What is stored: an entry for every case (the evaluator's with an empty protocol), and versions by system."""

    entries: dict[Case, Entry]
    versions: dict[str, Version]

    @classmethod
    def read(cls) -> Reference:
        """Read the stored reference. Raises StudyError: a file is missing or damaged."""
        fix = "take it from git"
        table = require_file(scores_file(), fix, "the reference scores are missing")
        try:
            rows = pd.read_parquet(table)[[*Case._fields, *Scores._fields, "settings"]].itertuples(index=False)
            entries = {Case(*row[:2]): Entry(Scores(*row[2:-1]), row[-1]) for row in rows}
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise StudyError(f"the reference scores cannot be read: {error}", file=table, fix=fix) from error
        return cls(entries, read_versions())

    def write(self) -> None:
        """Write the scores and the versions, in the order of names."""
        rows = [
            case._asdict() | entry.scores._asdict() | {"settings": entry.settings}
            for case, entry in sorted(self.entries.items(), key=lambda item: item[0])
        ]
        files.write_parquet(scores_file(), pd.DataFrame(rows))
        lines = [f"{name}: {{{_shown(own)}}}\n" for name, own in sorted(self.versions.items())]
        files.write_text(versions_file(), HEADER + "".join(lines))


def _shown(own: Version) -> str:
    return f"version: {own.version}" + (f", encoders: [{', '.join(own.encoders)}]" if own.encoders else "")


@dataclass(frozen=True)
class Checked:
    """What a system computes beside what is stored of it.

    `difference`: what differs or is missing, in a few words; empty where only the settings are others.
    `changed`: whether it computes something else, so that its version is to rise.
    `entries`: with today's settings. `encoders`: that it reads.
    """

    difference: str
    changed: bool
    entries: dict[Case, Entry]
    encoders: tuple[str, ...]


def stored_reference() -> Reference:
    """The stored reference; an empty one where there is none yet."""
    return Reference.read() if versions_file().exists() else Reference({}, {})


def check(names: Iterable[str] | None = None) -> dict[str, Checked]:
    """Compare what systems compute with their stored settings with what is stored, and compute those that differ, or
    have other settings today, with today's.

    `names`: of systems, or the `EVALUATOR`; by default all.
    Returns: by name, those that differ, and with an empty difference those whose settings alone are others.
    """
    known = [EVALUATOR, *choices("system")]
    names = list(names or known)
    if unknown := sorted(set(names) - set(known)):
        raise StudyError(f"there is no system {unknown[0]!r}", fix="study run system=? lists them")
    stored, found = stored_reference(), dict[str, Checked]()
    for name in tqdm(names, unit="system", leave=False, disable=not sys.stderr.isatty()):
        checked = _check_evaluator(stored) if name == EVALUATOR else _check(name, stored)
        found |= {name: checked} if checked else {}
    return found


def _check_evaluator(stored: Reference) -> Checked | None:
    case, computed = Case(EVALUATOR, ""), compute_evaluator()
    difference = differs(stored.entries[case].scores, computed) if case in stored.entries else "no entry"
    return Checked(difference, True, {case: Entry(computed, "{}")}, ()) if difference else None


def _check(system: str, stored: Reference) -> Checked | None:
    """As `check`, for one system; None where it has the same scores and settings."""
    today = {case: model_settings(case) for case in cases([system])}
    own = {case: entry for case, entry in stored.entries.items() if case.system == system}
    changes, runs = list[str](), dict[Case, Run]()
    for case in own.keys() & today.keys():
        model = own[case].model()
        try:
            run = compute(case, model)
        except StudyError as error:
            changes.append(f"{case.protocol}: {error.reason}")
            continue
        if difference := differs(own[case].scores, run.scores, TOLERANCES.get(system, TOLERANCE)):
            changes.append(f"{case.protocol}: {difference}")
        if model == _through_json(today[case]):
            runs[case] = run
    missing = [f"{case.protocol}: no entry" for case in today.keys() - own.keys()]
    new = system not in stored.versions
    current = not changes and runs.keys() == own.keys() == today.keys()
    if current and not new and _encoders(runs) == stored.versions[system].encoders:
        return None
    runs |= {case: compute(case, model) for case, model in today.items() if case not in runs}
    entries = {case: Entry(runs[case].scores, json.dumps(model)) for case, model in today.items()}
    difference = "; ".join(sorted(changes + missing))
    return Checked(difference, bool(changes) or new, entries, _encoders(runs))


def _through_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _encoders(runs: Mapping[Case, Run]) -> tuple[str, ...]:
    return tuple(sorted(set[str]().union(*(run.encoders for run in runs.values()))))


def update(checked: Mapping[str, Checked]) -> dict[str, int]:
    """Store what `check` found: entries with today's settings, and a version one higher where scores changed. Entries
    of systems that are gone are dropped.

    Returns: the versions that were raised.
    """
    stored = stored_reference()
    known = {EVALUATOR, *choices("system")} - checked.keys()
    entries = {case: entry for case, entry in stored.entries.items() if case.system in known}
    versions = {name: own for name, own in stored.versions.items() if name in known}
    raised = dict[str, int]()
    for name, found in sorted(checked.items()):
        before = stored.versions.get(name, Version(0)).version
        entries |= found.entries
        versions[name] = Version(before + found.changed, found.encoders)
        raised |= {name: versions[name].version} if found.changed else {}
    Reference(entries, versions).write()
    return raised


def refresh_own(system: str) -> None:
    """Bring the entry of a system of ``conf/system/own`` up to date, so that its rows are stale once its class computes
    something else. The entries of all others change by `study reference --update` alone.

    Raises StudyError: the system fails on toy data.
    """
    if system not in choices("system") or folder_of(system) != OWN:
        return
    try:
        checked = check([system])
    except StudyError:
        raise
    except Exception as error:  # code of others: whatever it raises is its own fault
        reason = f"it fails on toy data: {type(error).__name__}: {error}"
        raise StudyError(reason, file=system_file(system), fix=f"see: study check {system}") from error
    if checked:
        update(checked)
