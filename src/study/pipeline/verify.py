"""Stage `verify`: the expected scores of the study against the metrics tables on disk."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from study import paths
from study.analysis.tables import markdown
from study.errors import StudyError
from study.evaluation import verify as check


def verify(expected: Path | None = None) -> tuple[pd.DataFrame, str]:
    """Compare; returns the table of verdicts and its printed form with a count per verdict."""
    expected = expected or paths.root() / "results" / "expected.yaml"
    found = sorted((paths.root() / "results").glob("*/tables/metrics.csv"))
    if not found:
        raise StudyError("there are no metrics to verify", file=paths.root() / "results", fix="run: make repro")
    table = check.verify(expected, pd.concat([pd.read_csv(path) for path in found]))
    shown = table.drop(columns=["profile"]).assign(
        **{name: table[name].map("{:.4f}".format) for name in ("expected", "tolerance", "measured", "difference")}
    )
    counts = table["verdict"].value_counts()
    return table, markdown(shown) + "\n" + ", ".join(f"{count} {name}" for name, count in counts.items())
