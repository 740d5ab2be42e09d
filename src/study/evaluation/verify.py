"""Expected scores against measured ones: which claims of the study hold on this machine, and by how much they miss.

An expected-scores file is a YAML list of entries with the keys ``dataset, protocol, system, metric, k, value,
tolerance, source`` and, where several profiles are measured, ``profile``. In place of ``value``, ``per_task`` names a
committed per-task file (beside the expected-scores file), whose mean is expected. Measured values come from the metrics
table alone.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from study.config.reader import parsed
from study.errors import StudyError
from study.evaluation import metrics as measures
from study.evaluation import per_task
from study.evaluation.per_task import AGGREGATE_COLUMNS

TEXT_KEYS = ("dataset", "protocol", "system", "metric", "source")
NUMBER_KEYS = ("value", "tolerance")
REQUIRED = ("dataset", "protocol", "system", "metric", "k", "value", "tolerance", "source")
OPTIONAL = ("profile", "per_task")
IDENTITY = ["dataset", "protocol", "system", "metric", "k"]
COLUMNS = [*IDENTITY, "profile", "expected", "tolerance", "measured", "n_seeds", "diff", "verdict", "source"]
# Decimal numbers are not exact in binary: 0.1597 - 0.1596 must lie within a tolerance of 0.0001.
SLACK = 1e-9


def _fault(entry: dict[str, Any]) -> tuple[str, str, str] | None:
    """The first thing wrong with an entry: key, reason, fix."""
    required = [key for key in REQUIRED if key != "value" or "per_task" not in entry]
    if "value" in entry and "per_task" in entry:
        return "value", "value and per_task are both given", "leave one of them out"
    for key in (*required, *entry):
        if key not in entry or key not in REQUIRED + OPTIONAL:
            reason = "unknown key" if key in entry else "the key is missing"
            return str(key), reason, f"give {', '.join(REQUIRED)}, and perhaps {', '.join(OPTIONAL)}"
    for key in (*TEXT_KEYS, *(key for key in OPTIONAL if key in entry)):
        if not isinstance(entry[key], str) or not entry[key].strip():
            return key, f"{entry[key]!r} is not a text", "write a non-empty text"
    if entry["metric"] not in measures.NAMES:
        return "metric", f"unknown metric {entry['metric']!r}", f"one of: {', '.join(measures.NAMES)}"
    if not isinstance(entry["k"], int) or isinstance(entry["k"], bool) or entry["k"] < 1:
        return "k", f"{entry['k']!r} is not a cutoff", "write a whole number of at least 1"
    for key in (key for key in NUMBER_KEYS if key in entry):
        number = entry[key]
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number) or number < 0:
            return key, f"{number!r} is not a number of at least 0", "write a decimal number such as 0.1596"
    if entry.get("value", 0) > 1:
        return "value", f"{entry['value']!r} is above 1", "write the metric as a share, not per cent"
    return None


def load_expected(path: Path) -> list[dict[str, Any]]:
    """Read and check an expected-scores file; every entry returned has a ``value``.

    Raises:
        StudyError: naming the file, the entry (from 0), the key and what to write instead.
    """
    if not path.exists():
        raise StudyError("the expected-scores file is missing", file=path, fix="restore it from the repository")
    try:
        entries = parsed(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError) as error:
        raise StudyError(f"not a YAML file: {error}", file=path, fix="mend the syntax") from error
    if not isinstance(entries, list) or not entries:
        raise StudyError("not a list of expected scores", file=path, fix="start each entry with '- dataset: ...'")
    seen: dict[tuple[object, ...], int] = {}
    for number, entry in enumerate(entries):
        row = f"entry {number}"
        if not isinstance(entry, dict):
            raise StudyError("not a mapping of keys to values", file=path, row=row, fix="write key: value lines")
        fault = _fault(entry)
        if fault:
            key, reason, fix = fault
            raise StudyError(reason, file=path, row=row, column=key, fix=fix)
        # The paper and its program may expect different values of one score; one source twice is a slip.
        identity = tuple(entry.get(key) for key in (*IDENTITY, "profile", "source"))
        if identity in seen:
            raise StudyError(f"repeats entry {seen[identity]}", file=path, row=row, fix="remove one of them")
        seen[identity] = number
        if "per_task" in entry:
            entry["value"] = _mean(path.parent / entry["per_task"], f"{entry['metric']}@{entry['k']}")
    return entries


def _mean(file: Path, column: str) -> float:
    """The mean over tasks of a column of a per-task file."""
    table = per_task.read(file)
    if column not in table:
        raise StudyError("a column is missing", file=file, column=column, fix="restore it from the repository")
    return float(table[column].mean())


def verdict(difference: float, tolerance: float) -> str:
    """OK within the tolerance, OKish within twice the tolerance, FAIL beyond it and for NaN."""
    if abs(difference) <= tolerance + SLACK:
        return "OK"
    return "OKish" if abs(difference) <= 2 * tolerance + SLACK else "FAIL"


def verify(expected: Path, metrics: pd.DataFrame) -> pd.DataFrame:
    """Compare expected scores with the mean over seeds of the measured ones.

    Args:
        metrics: rows of `per_task.aggregate`, as stored in ``metrics.csv.xz``.

    Returns: one row per entry in file order with dataset, protocol, system, metric, k, profile, expected, tolerance,
    measured, n_seeds, diff (measured - expected), verdict and source. The verdict is MISSING, and
    measured is NaN, where the table has no such row.
    """
    missing = [column for column in AGGREGATE_COLUMNS if column not in metrics]
    if missing:
        raise StudyError("the metrics table lacks a column", column=missing[0], fix="run the report stage again")
    repeated = metrics.duplicated([column for column in AGGREGATE_COLUMNS if column != "value"]).to_numpy()
    if repeated.any():
        row = int(repeated.argmax())
        raise StudyError("the metrics table holds a score twice", row=row, fix="run the report stage again")
    rows = []
    for number, entry in enumerate(load_expected(expected)):
        wanted = [key for key in (*IDENTITY, "profile") if key in entry]
        found = metrics[(metrics[wanted] == pd.Series({key: entry[key] for key in wanted})).all(axis=1)]
        profiles = list(found["profile"].unique())
        if len(profiles) > 1:
            raise StudyError(
                f"measured under several profiles ({', '.join(profiles)})",
                file=expected,
                row=f"entry {number}",
                column="profile",
                fix="name the profile that the expected score belongs to",
            )
        measured = float(found["value"].mean(skipna=False)) if len(found) else float("nan")
        difference = measured - entry["value"]
        rows.append(
            {
                **{key: entry[key] for key in IDENTITY},
                "profile": profiles[0] if profiles else entry.get("profile", ""),
                "expected": float(entry["value"]),
                "tolerance": float(entry["tolerance"]),
                "measured": measured,
                "n_seeds": len(found),
                "diff": difference,
                "verdict": verdict(difference, entry["tolerance"]) if len(found) else "MISSING",
                "source": entry["source"],
            }
        )
    return pd.DataFrame(rows, columns=COLUMNS)
