"""From the judges' answer files to ``judgements.csv``: every pair exactly once, or a clear error.

The final grade of two readings: equal grades stand; 1 against 2 gives 1 ("when torn, the lower grade"); grades on both
sides of the border between 0 and 1 are read a third time, and the median of the three counts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from study.errors import StudyError
from study.files import write_csv
from study.judging import store
from study.judging.packets import AGAIN, ANSWER_HEADER


def final_grade(first: int, second: int, third: int | None = None) -> int | None:
    """The grade that counts; None where a third reading is needed and not there yet."""
    if first == second:
        return first
    if min(first, second) >= 1:
        return 1
    return None if third is None else sorted((first, second, third))[1]


def read_answers(path: Path, expected: list[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """Read one answer file.

    Args:
        expected: the pairs (task_id, server_id) of its packet.

    Raises:
        StudyError: naming the file and the line: a wrong header, a line that is not three whole numbers, a grade other
            than 0, 1, 2, a pair that the packet does not hold, that comes twice, or that is missing.
    """
    if not path.exists():
        raise StudyError("the answers are missing", file=path, fix="have the packet judged")
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    if not lines or lines[0].replace(" ", "") != ANSWER_HEADER:
        raise StudyError("the first line is not the header", file=path, row=1, fix=f"write: {ANSWER_HEADER}")
    known, grades = set(expected), dict[tuple[int, int], int]()
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        parts = [part.strip() for part in line.split(",")]
        if len(parts) != 3 or not all(part.isascii() and part.isdecimal() for part in parts):
            raise StudyError("not three whole numbers", file=path, row=number, fix=f"write: {ANSWER_HEADER}")
        task, server, grade = map(int, parts)
        if grade not in store.GRADES:
            raise StudyError(
                f"the grade {grade} is not 0, 1 or 2",
                file=path,
                row=number,
                column="grade",
                fix="grade by docs/judging-guidelines.md",
            )
        if (task, server) not in known:
            raise StudyError(
                f"server {server} for task {task} is not in this packet",
                file=path,
                row=number,
                fix="copy the ids from the packet",
            )
        if (task, server) in grades:
            raise StudyError(
                f"server {server} for task {task} is graded twice",
                file=path,
                row=number,
                fix="keep one line per server",
            )
        grades[task, server] = grade
    absent = [pair for pair in expected if pair not in grades]
    if absent:
        task, server = absent[0]
        raise StudyError(
            f"{len(absent)} pairs have no grade, the first is server {server} for task {task}",
            file=path,
            row=len(lines) + 1,
            fix="grade every server of the packet",
        )
    return grades


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a reading: dataset, round, reading, guideline_version, packets (name -> pairs)."""
    path = folder / "manifest.json"
    if not path.exists():
        raise StudyError("there are no packets here", file=path, fix="run: study judge packets")
    manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    manifest["packets"] = {
        name: [(int(task), int(server)) for task, server in pairs] for name, pairs in manifest["packets"].items()
    }
    return manifest


def read_reading(folder: Path) -> tuple[dict[tuple[int, int], int], dict[str, Any]]:
    """All grades of one reading, and its manifest; every packet must be answered in full."""
    manifest, grades = read_manifest(folder), dict[tuple[int, int], int]()
    for name, pairs in manifest["packets"].items():
        grades |= read_answers(folder / "answers" / f"{name}.csv", pairs)
    unexpected = {path.stem for path in (folder / "answers").glob("*.csv")} - manifest["packets"].keys()
    if unexpected:
        raise StudyError(
            "answers without a packet",
            file=folder / "answers" / f"{min(unexpected)}.csv",
            fix="name the answers as their packet",
        )
    return grades, manifest


def progress(folder: Path) -> pd.DataFrame:
    """How far a reading is: packet, pairs, state ("complete", "missing" or what is wrong with the answers)."""
    rows = []
    for name, pairs in read_manifest(folder)["packets"].items():
        path = folder / "answers" / f"{name}.csv"
        state = "complete" if path.exists() else "missing"
        if path.exists():
            try:
                read_answers(path, pairs)
            except StudyError as error:
                state = f"line {error.row}: {error.reason}"
        rows.append((name, len(pairs), state))
    return pd.DataFrame(rows, columns=["packet", "pairs", "state"])


def merge(
    first: dict[tuple[int, int], int],
    second: dict[tuple[int, int], int],
    third: dict[tuple[int, int], int],
    **facts: Any,
) -> pd.DataFrame:
    """The rows of one round.

    Raises:
        StudyError: the readings do not hold the same pairs, or the third one holds a pair that was not disputed.
    """
    if first.keys() != second.keys():
        task, server = min(first.keys() ^ second.keys())
        raise StudyError(
            f"server {server} for task {task} is in one of the two readings only",
            fix="write the packets of both readings from one pool",
        )
    disputed = {pair for pair in first if final_grade(first[pair], second[pair]) is None}
    if third.keys() - disputed:
        task, server = min(third.keys() - disputed)
        raise StudyError(
            f"server {server} for task {task} was read a third time without need",
            fix="write the packets of the third reading again",
        )
    rows = [
        (*pair, first[pair], second[pair], third.get(pair), final_grade(first[pair], second[pair], third.get(pair)))
        for pair in sorted(first)
    ]
    table = pd.DataFrame(rows, columns=store.COLUMNS["judgements"][:6]).astype("Int64")
    return table.assign(**facts)[store.COLUMNS["judgements"]]


def collect(dataset: str, folder: Path, *, judge: str) -> pd.DataFrame:
    """Collect one round from its folder (``reading-1``, ``reading-2`` and, once it is read, ``reading-3``).

    The rows of the round replace those collected before; those of other rounds stay. A finished ``reading-again`` goes
    to ``rejudged.csv``, beside those of earlier rounds.

    Args:
        judge: which model judged, as it is to be stored.

    Returns: the rows of the round; `final` is empty where a third reading is needed.

    Raises:
        StudyError: see `read_answers` and `merge`.
    """
    readings, manifests = {}, {}
    for name in ("1", "2", "3", AGAIN):
        place = folder / f"reading-{name}"
        if name in ("1", "2") or any((place / "answers").glob("*.csv")):
            readings[name], manifests[name] = read_reading(place)
    for name, manifest in manifests.items():
        if manifest["dataset"] != dataset:
            raise StudyError(
                f"the packets are of {manifest['dataset']!r}",
                file=folder / f"reading-{name}",
                fix=f"collect with --dataset {manifest['dataset']}",
            )
    versions = {manifests[name]["guideline_version"] for name in readings if name != AGAIN}
    if len(versions) > 1:
        raise StudyError(
            f"readings by different guidelines: {', '.join(sorted(versions))}",
            file=folder,
            fix="judge a round by one version",
        )
    number = manifests["1"]["round"]
    facts = {"round": number, "guideline_version": versions.pop(), "judge": judge}
    rows = merge(readings["1"], readings["2"], readings.get("3", {}), **facts)
    kept = store.read_if_there(dataset, "judgements")
    table = pd.concat([kept[kept["round"] != number], rows]) if len(kept) else rows
    write_csv(store.file(dataset, "judgements"), table.sort_values(store.PAIR))
    if AGAIN in readings:
        again = [(*pair, grade) for pair, grade in sorted(readings[AGAIN].items())]
        table = pd.DataFrame(again, columns=[*store.PAIR, "grade"]).assign(
            round=number, guideline_version=manifests[AGAIN]["guideline_version"], judge=judge
        )
        earlier = store.read_if_there(dataset, "rejudged")
        table = pd.concat([earlier[earlier["round"] != number], table]) if len(earlier) else table
        write_csv(store.file(dataset, "rejudged"), table.sort_values(["round", *store.PAIR])[store.COLUMNS["rejudged"]])
    return rows
