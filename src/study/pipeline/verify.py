"""Stage `verify`: the expected scores of the study against the tables on disk."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from study import paths
from study.analysis.report.runs import collect
from study.analysis.report.tables import markdown
from study.errors import StudyError
from study.evaluation import per_task
from study.evaluation import verify as check
from study.judging import verify as judged
from study.search.all_rows import datasets


def measured(dataset: str) -> pd.DataFrame:
    """The metrics of a data set from its per-task files, which the table of the report stage may lag behind. A tool
    catalogue has its own measures and no report stage: its table is written together with its runs."""
    if dataset not in datasets():
        return pd.read_csv(paths.tables(dataset) / "metrics.csv.xz")
    return pd.concat(
        per_task.aggregate(frame, dataset, protocol, system, record["profile"])
        for (protocol, system), (frame, record) in collect(dataset).items()
    )


def verify(expected: Path | None = None) -> tuple[list[str], str]:
    """Compare scores with the expected ones, and recompute what is printed from a judged collection. Returns: every
    verdict, and the printed form with a count per verdict."""
    expected = expected or paths.root() / "results" / "expected.yaml"
    if expected.exists() and not (expected.is_file() or expected.is_dir()):  # a device or a pipe may never end
        raise StudyError("is no file of scores", file=expected, fix="name a yaml file")
    found = sorted((paths.root() / "results").glob("*/tables/metrics.csv.xz"))
    if not found:
        raise StudyError("there are no metrics to verify", file=paths.root() / "results", fix="run: make repro")
    table = check.verify(expected, pd.concat([measured(path.parent.parent.name) for path in found]))
    shown = table.drop(columns=["profile"]).assign(
        **{name: table[name].map("{:.4f}".format) for name in ("expected", "tolerance", "measured", "diff")}
    )
    parts, verdicts = [markdown(shown)], list(table["verdict"])
    for collection in sorted((paths.root() / "results").glob("*/judged/judgements.csv")):
        again = judged.verify(collection.parent.parent.name)
        parts.append(markdown(again.assign(file="judged/" + again["file"])))
        verdicts += list(again["verdict"])
    counts = pd.Series(verdicts).value_counts()
    return verdicts, "\n".join(parts) + "\n" + ", ".join(f"{count} {name}" for name, count in counts.items())
