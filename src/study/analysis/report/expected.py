"""Expected scores against measured ones: which claims of the study hold on this machine, and by how much they miss.

An expected-scores file is a YAML list of `Expected`. In place of ``value``, ``per_task`` names a committed per-task
file (beside the expected-scores file), whose mean is expected. The judged collections are computed again, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pandas as pd
import yaml
from pydantic import Field

from study.analysis.report.runs import collect
from study.analysis.report.tables import markdown
from study.base import paths
from study.base.errors import StudyError, require_file
from study.base.files import read_csv
from study.base.settings import build_settings, parse_yaml
from study.evaluation import metrics, per_task
from study.judging import verify as judged
from study.search.all_rows import datasets

IDENTITY = ["dataset", "protocol", "system", "metric", "k"]
COLUMNS = [*IDENTITY, "profile", "expected", "tolerance", "measured", "n_seeds", "diff", "verdict", "source"]
# Decimal numbers are not exact in binary: 0.1597 - 0.1596 must lie within a tolerance of 0.0001.
SLACK = 1e-9
Text = Annotated[str, Field(min_length=1)]
Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class Expected:
    """One expected score: of a row, or with `profile` of a row made with it."""

    dataset: Text
    protocol: Text
    system: Text
    metric: Literal[metrics.NAMES]  # type: ignore[valid-type]
    k: Annotated[int, Field(ge=1)]
    tolerance: Number
    source: Text
    value: Annotated[Number, Field(le=1)] | None = None
    per_task: Text | None = None
    profile: Text | None = None

    def __post_init__(self) -> None:
        if (self.value is None) == (self.per_task is None):
            raise StudyError("needs value or per_task", column="value", fix="give one of them")


def load_expected(path: Path) -> list[tuple[Expected, float]]:
    """The entries of an expected-scores file, each with the value that it expects. Raises StudyError: naming the file,
    the entry (from 0) and the key."""
    fix = "restore it from the repository"
    require_file(path, fix, "there is no file of expected scores")  # a device would be read for ever
    try:
        content = parse_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise StudyError(f"not a YAML file: {error}", file=path, fix=fix) from error
    if not isinstance(content, list) or not content:
        raise StudyError("not a list of expected scores", file=path, fix=fix)
    seen, entries = dict[tuple[object, ...], int](), list[tuple[Expected, float]]()
    for number, values in enumerate(content):
        entry = build_settings(Expected, values, path, f"entry {number}")
        # The paper and its program may expect different values of one score; one source twice is a slip.
        identity = (*(getattr(entry, key) for key in IDENTITY), entry.profile, entry.source)
        if (earlier := seen.setdefault(identity, number)) != number:
            raise StudyError(f"repeats entry {earlier}", file=path, row=f"entry {number}", fix="remove one of them")
        value, column = entry.value, f"{entry.metric}@{entry.k}"
        if value is None:
            value = float(read_csv(path.parent / str(entry.per_task), columns=[column], fix=fix)[column].mean())
        entries.append((entry, value))
    return entries


def verdict(difference: float, tolerance: float) -> str:
    """OK within the tolerance, OKish within twice the tolerance, FAIL beyond it and for NaN."""
    if abs(difference) <= tolerance + SLACK:
        return "OK"
    return "OKish" if abs(difference) <= 2 * tolerance + SLACK else "FAIL"


def compare(expected: Path, measured: pd.DataFrame) -> pd.DataFrame:
    """Expected scores and the mean over seeds of the measured ones.

    `measured`: rows of `per_task.aggregate`, as stored in ``metrics.csv.xz``.
    Returns: one row per entry in file order, `COLUMNS`; diff is measured - expected. The verdict is MISSING, and
        measured is NaN, where the table has no such row.
    """
    by_score, rows = dict(list(measured.groupby(IDENTITY))), []
    for number, (entry, value) in enumerate(load_expected(expected)):
        keys = {key: getattr(entry, key) for key in IDENTITY}
        scores = by_score.get(tuple(keys.values()), measured.head(0))
        scores = scores[scores["profile"] == entry.profile] if entry.profile else scores
        profiles = scores["profile"].unique().tolist() or [entry.profile or ""]
        if len(profiles) > 1:
            reason = f"measured under several profiles ({', '.join(profiles)})"
            fix = "name the profile that the expected score belongs to"
            raise StudyError(reason, file=expected, row=f"entry {number}", column="profile", fix=fix)
        mean = float(scores["value"].mean(skipna=False))
        row = keys | {"profile": profiles[0], "expected": value, "tolerance": entry.tolerance, "measured": mean}
        word = verdict(mean - value, entry.tolerance) if len(scores) else "MISSING"
        rows.append(row | {"n_seeds": len(scores), "diff": mean - value, "verdict": word, "source": entry.source})
    return pd.DataFrame(rows, columns=COLUMNS)


def measured_scores(dataset: str) -> pd.DataFrame:
    """The metrics of a data set from its per-task values, which the table of the report stage may lag behind. A tool
    catalogue has its own measures and no report stage: its table is written together with its runs."""
    if dataset not in datasets():
        return read_csv(paths.tables(dataset) / "metrics.csv.xz")
    return pd.concat(
        per_task.aggregate(frame, dataset, protocol, system, record["profile"])
        for (protocol, system), (frame, record) in collect(dataset).items()
    )


def verify(expected: Path | None = None) -> tuple[list[str], str]:
    """Compare scores with the expected ones, and recompute what is printed from a judged collection. Returns: every
    verdict, and the printed form with a count per verdict."""
    results = paths.root() / "results"
    tables = sorted(results.glob("*/tables/metrics.csv.xz"))
    if not tables:
        raise StudyError("there are no metrics to verify", file=results, fix="run: make repro")
    measured = pd.concat([measured_scores(path.parent.parent.name) for path in tables])
    table = compare(expected or results / "expected.yaml", measured)
    numbers = {name: table[name].map("{:.4f}".format) for name in ("expected", "tolerance", "measured", "diff")}
    parts, verdicts = [markdown(table.drop(columns=["profile"]).assign(**numbers))], list(table["verdict"])
    for path in sorted(results.glob("*/judged/judgements.csv")):
        again = judged.verify(path.parent.parent.name)
        parts.append(markdown(again.assign(file="judged/" + again["file"])))
        verdicts += list(again["verdict"])
    counts = pd.Series(verdicts).value_counts()
    return verdicts, "\n".join(parts) + "\n" + ", ".join(f"{count} {name}" for name, count in counts.items())
