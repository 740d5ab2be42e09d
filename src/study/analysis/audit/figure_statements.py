"""What the paper's text states for Figures 6 to 9 beside this study's embeddings and sweeps."""

from __future__ import annotations

from typing import Any

import pandas as pd

from study import paths
from study.analysis.report import paper

REPRODUCED, NOT = "reproduced", "not reproduced"
# The system needs a task's history and the protocol asks new tasks; this study has not run what would give the value.
CANNOT, NOT_RUN = "cannot be computed", "not run here"
SWEEPS = ("fusion_weight", "temperature", "learning_rate")


def line_of(statement: dict[Any, Any], metric: str, value: float) -> dict[str, Any]:
    """The columns of verdicts.csv that the paper's text gives."""
    line = {"table": statement["figure"], "place": statement["place"], "row": statement["statement"], "metric": metric}
    return line | {"paper": value, "counterpart": "same", "trivial": False}


def sweep_lines(dataset: str) -> list[dict[str, Any]]:
    """The optima of Figures 7 to 9: reproduced where validation chooses the printed value among those of the sweep."""
    # The package of the sweeps takes a second to load, and warns in notebooks.
    from study.search.rows import chosen
    from study.search.settings import load
    from study.search.sweep import folder_of

    found, lines = {load(name).place: load(name) for name in SWEEPS}, []
    for row in paper.optima().dropna(subset=["optimum"]).to_dict("records"):
        line, sweep = line_of(row, "optimum", row["optimum"]), found.get(row["place"])
        path = folder_of(dataset, sweep.name) / "trials.csv" if sweep else None
        if sweep is None or path is None or not path.exists():
            lines.append(line | {"verdict": NOT_RUN, "reason": "its sweep has not run"})
            continue
        trials, parameter = pd.read_csv(path), next(iter(sweep.space))
        best = float(chosen(sweep, trials)["values"][parameter])
        by_value = trials.groupby(parameter)[f"valid/{sweep.objective}"]
        means, least = by_value.mean(), by_value.mean()[best] - by_value.std().fillna(0.0)[best]
        near = row["optimum"] in means.index[means >= least]
        reason = "; the printed value is within one standard deviation over seeds of it" * near
        line |= {"ours": best, "difference": best - row["optimum"], "definition": "best on validation"}
        line |= {"seeds": trials["seed"].nunique(), "verdict": REPRODUCED if best == row["optimum"] else NOT}
        lines.append(line | {"reason": f"{sweep.objective} of {len(trials)} trials{reason}"})
    return lines


def distance_line(dataset: str) -> dict[str, Any]:
    """The p-values of Figure 6: reproduced where the largest one over the categories of the test tasks is as small."""
    row = paper.optima().dropna(subset=["below"]).iloc[0]
    line, path = (
        line_of(dict(row), "largest p-value", row["below"]),
        paths.results(dataset) / "embedding" / "groups.csv",
    )
    if not path.exists():
        return line | {"verdict": NOT_RUN, "reason": "the embeddings have not been examined"}
    groups = pd.read_csv(path)
    tested = groups[(groups["level"] == "category") & (groups["part"] == "test")]
    largest = float(tested["p"].max())
    line |= {"ours": largest, "difference": largest - row["below"], "definition": "not corrected"}
    line |= {"tasks": tested["n"].sum(), "verdict": REPRODUCED if largest < row["below"] else NOT}
    return line | {"reason": f"{len(tested)} categories of test tasks"}


def figure_lines(dataset: str) -> pd.DataFrame:
    """One line per statement about Figures 6 to 9, columns as in verdicts.csv."""
    return pd.DataFrame([distance_line(dataset), *sweep_lines(dataset)])
