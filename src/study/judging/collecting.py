"""From the judges' answers to ``judgements.csv``: every pair exactly once, or a clear error; grading by hand.

The final grade of two passes: equal grades count; 1 against 2 gives 1 ("when torn, the lower grade"); grades on both
sides of the border between 0 and 1 are graded a third time, and the median of the three counts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from study.data import dataset as datasets
from study.errors import StudyError
from study.files import write_csv, write_text
from study.judging import store
from study.judging.batches import AGAIN, ANSWER_HEADER, SERVER_CARD, TASK_CARD, card

Pair = tuple[int, int]
Grades = dict[Pair, int]
STOP = "q"
ORDER_SEED = 3


def final_grade(first: int, second: int, third: int | None = None) -> int | None:
    """The grade that counts; None where a third pass is needed and not there yet."""
    if first == second:
        return first
    if min(first, second) >= 1:
        return 1
    return None if third is None else sorted((first, second, third))[1]


def read_answers(path: Path, expected: list[Pair]) -> Grades:
    """Read one answer file.

    Args:
        expected: the pairs (task_id, server_id) of its batch.

    Raises:
        StudyError: naming the file and the line: a wrong header, a line that is not three whole numbers, a grade other
            than 0, 1, 2, a pair that the batch does not hold, that comes twice, or that is missing.
    """

    def wrong(reason: str, line: int, fix: str, column: str | None = None) -> StudyError:
        return StudyError(reason, file=path, row=line, column=column, fix=fix)

    if not path.exists():
        raise StudyError("the answers are missing", file=path, fix="have the batch judged")
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    if not lines or lines[0].replace(" ", "") != ANSWER_HEADER:
        raise wrong("the first line is not the header", 1, f"write: {ANSWER_HEADER}")
    known, grades = set(expected), Grades()
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        parts = [part.strip() for part in line.split(",")]
        if len(parts) != 3 or not all(part.isascii() and part.isdecimal() for part in parts):
            raise wrong("not three whole numbers", number, f"write: {ANSWER_HEADER}")
        task, server, grade = map(int, parts)
        if grade not in store.GRADES:
            raise wrong(f"the grade {grade} is not 0, 1 or 2", number, "grade by docs/judging-guidelines.md", "grade")
        if (task, server) not in known:
            raise wrong(f"server {server} for task {task} is not in this batch", number, "copy the ids from the batch")
        if (task, server) in grades:
            raise wrong(f"server {server} for task {task} is graded twice", number, "keep one line per server")
        grades[task, server] = grade
    if absent := [pair for pair in expected if pair not in grades]:
        first = f"the first is server {absent[0][1]} for task {absent[0][0]}"
        raise wrong(f"{len(absent)} pairs have no grade, {first}", len(lines) + 1, "grade every server of the batch")
    return grades


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a pass: dataset, round, pass, guideline_version, batches (name -> pairs)."""
    path = folder / "manifest.json"
    if not path.exists():
        raise StudyError("there are no batches here", file=path, fix="run: study judge batches")
    manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    manifest["batches"] = {name: [(int(t), int(s)) for t, s in pairs] for name, pairs in manifest["batches"].items()}
    return manifest


def read_pass(folder: Path) -> tuple[Grades, dict[str, Any]]:
    """All grades of one pass, and its manifest; every batch must be answered in full."""
    manifest, grades, answers = read_manifest(folder), Grades(), folder / "answers"
    for name, pairs in manifest["batches"].items():
        grades |= read_answers(answers / f"{name}.csv", pairs)
    if unexpected := {path.stem for path in answers.glob("*.csv")} - manifest["batches"].keys():
        file = answers / f"{min(unexpected)}.csv"
        raise StudyError("answers without a batch", file=file, fix="name the answers as their batch")
    return grades, manifest


def progress(folder: Path) -> pd.DataFrame:
    """How far a pass is: columns batch, pairs, state (complete, missing, or what is wrong with the answers)."""
    rows = []
    for name, pairs in read_manifest(folder)["batches"].items():
        path = folder / "answers" / f"{name}.csv"
        state = "complete" if path.exists() else "missing"
        if path.exists():
            try:
                read_answers(path, pairs)
            except StudyError as error:
                state = f"line {error.row}: {error.reason}"
        rows.append((name, len(pairs), state))
    return pd.DataFrame(rows, columns=["batch", "pairs", "state"])


def merge(first: Grades, second: Grades, third: Grades, **facts: Any) -> pd.DataFrame:
    """The rows of one round.

    Raises:
        StudyError: the first two passes do not hold the same pairs, or the third holds a pair without dispute.
    """
    if alone := first.keys() ^ second.keys():
        task, server = min(alone)
        fix = "write the batches of both passes from one pool"
        raise StudyError(f"server {server} for task {task} is in one of the two passes only", fix=fix)
    disputed = {pair for pair in first if final_grade(first[pair], second[pair]) is None}
    if needless := third.keys() - disputed:
        task, server = min(needless)
        fix = "write the batches of the third pass again"
        raise StudyError(f"server {server} for task {task} was graded a third time without need", fix=fix)
    rows = [
        (*pair, first[pair], second[pair], third.get(pair), final_grade(first[pair], second[pair], third.get(pair)))
        for pair in sorted(first)
    ]
    table = pd.DataFrame(rows, columns=store.COLUMNS["judgements"][:6]).astype("Int64")
    return table.assign(**facts)[store.COLUMNS["judgements"]]


def collect(dataset: str, folder: Path, *, judge: str) -> pd.DataFrame:
    """Collect one round from its folder (``pass-1``, ``pass-2`` and, once it is there, ``pass-3``).

    The rows of the round replace those collected before; other rounds stay. A finished ``pass-again`` goes to
    ``rejudged.csv``, beside those of earlier rounds.

    Args:
        judge: which model judged, as it is to be stored.

    Returns: the rows of the round; `final` is empty where a third pass is needed.

    Raises:
        StudyError: see `read_answers` and `merge`.
    """
    passes, manifests = {}, {}
    for name in ("1", "2", "3", AGAIN):
        place = folder / f"pass-{name}"
        if name in ("1", "2") or any((place / "answers").glob("*.csv")):
            passes[name], manifests[name] = read_pass(place)
            if (other := manifests[name]["dataset"]) != dataset:
                raise StudyError(f"the batches are of {other!r}", file=place, fix=f"collect with --dataset {other}")
    versions = {manifests[name]["guideline_version"] for name in passes if name != AGAIN}
    if len(versions) > 1:
        problem = f"passes by different guidelines: {', '.join(sorted(versions))}"
        raise StudyError(problem, file=folder, fix="judge a round by one version")
    number = manifests["1"]["round"]
    facts = {"round": number, "guideline_version": versions.pop(), "judge": judge}
    rows = merge(passes["1"], passes["2"], passes.get("3", {}), **facts)
    _replace_round(dataset, "judgements", rows, number, store.PAIR)
    if AGAIN in passes:
        again = [(*pair, grade) for pair, grade in sorted(passes[AGAIN].items())]
        facts["guideline_version"] = manifests[AGAIN]["guideline_version"]
        table = pd.DataFrame(again, columns=[*store.PAIR, "grade"]).assign(**facts)
        _replace_round(dataset, "rejudged", table[store.COLUMNS["rejudged"]], number, ["round", *store.PAIR])
    return rows


def _replace_round(dataset: str, name: str, rows: pd.DataFrame, number: int, order: list[str]) -> None:
    kept = store.read_table_if_there(dataset, name)
    table = pd.concat([kept[kept["round"] != number], rows]) if len(kept) else rows
    write_csv(store.file(dataset, name), table.sort_values(order))


def grade_topic(
    dataset: str,
    task_id: int,
    *,
    judge: str,
    ask: Callable[[str], str] = input,
    show: Callable[[str], object] = print,
) -> Path:
    """A person's spot check: one topic's pool in random order, without sources and other grades.

    Every grade (0, 1 or 2) is saved at once; the same command goes on where it was stopped (``q``, or the end of the
    input).

    Args:
        judge: names the file, ``by_hand/<judge>/<task_id>.csv``.
        ask, show: how to ask and to show a line.

    Returns: the file of grades, in the form of an answer file.

    Raises:
        StudyError: the task is not a topic, or the judge's name is not a plain word.
    """
    if not judge.replace("-", "").replace("_", "").isalnum():
        raise StudyError(f"{judge!r} cannot name a file", fix="use letters, digits, - and _")
    pairs = shuffled(store.read_table(dataset, "pool"), task_id)
    if not len(pairs):
        raise StudyError(f"task {task_id} is not a topic", file=store.file(dataset, "pool"), fix="see topics.csv")
    path = store.folder(dataset) / "by_hand" / judge / f"{task_id}.csv"
    data = datasets.load(dataset)
    tasks, servers = (frame.set_index("id") for frame in (data.tasks, data.servers))
    done = _read_by_hand(path, pairs)
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


def _read_by_hand(path: Path, pairs: pd.DataFrame) -> dict[int, int]:
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
