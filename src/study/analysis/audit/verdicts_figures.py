"""What the paper's text states for Figures 6 to 9 beside this study's embeddings and sweeps."""

from __future__ import annotations

from typing import Any

import pandas as pd

from study import paths
from study.analysis.report import paper

REPRODUCED, NOT = "reproduced", "not reproduced"
# The system needs a task's history and the protocol asks new tasks; this study has not run what would give the value.
CANNOT, NOT_RUN = "cannot be computed", "not run here"


def sweep_lines(dataset: str) -> list[dict[str, Any]]:
    """The optima of Figures 7 to 9: reproduced where validation chooses the printed value among those of the sweep."""
    # The package of the sweeps takes a second to load, and warns in notebooks.
    from study.analysis.sensitivity import tables as sensitivity

    found = {sweep.place: (sweep, table) for sweep, table in sensitivity.sweeps(dataset).values()}
    lines = []
    for row in paper.optima().dropna(subset=["optimum"]).to_dict("records"):
        line = {
            "table": row["figure"],
            "place": row["place"],
            "row": row["statement"],
            "metric": "optimum",
            "paper": row["optimum"],
            "counterpart": "same",
            "trivial": False,
        }
        if row["place"] not in found:
            lines.append(line | {"verdict": NOT_RUN, "reason": "its sweep has not run"})
            continue
        sweep, table = found[row["place"]]
        best = sensitivity.optimum(sweep, table)
        near = "; the printed value is within one standard deviation over seeds of it" * (
            row["optimum"] in best["flat"]
        )
        lines.append(
            line
            | {
                "ours": best["best"],
                "difference": best["best"] - row["optimum"],
                "reading": "best on validation",
                "seeds": table["seed"].nunique(),
                "verdict": REPRODUCED if best["best"] == row["optimum"] else NOT,
                "reason": f"{sweep.objective} of {len(table)} trials{near}",
            }
        )
    return lines


def distance_line(dataset: str) -> dict[str, Any]:
    """The p-values of Figure 6: reproduced where the largest one over the categories of the test tasks is as small."""
    row = paper.optima().dropna(subset=["below"]).iloc[0]
    line = {
        "table": row["figure"],
        "place": row["place"],
        "row": row["statement"],
        "metric": "largest p-value",
        "paper": row["below"],
        "counterpart": "same",
        "trivial": False,
    }
    path = paths.results(dataset) / "embedding" / "groups.csv"
    if not path.exists():
        return line | {"verdict": NOT_RUN, "reason": "the embeddings have not been examined"}
    groups = pd.read_csv(path)
    tested = groups[(groups["level"] == "category") & (groups["part"] == "test")]
    largest = float(tested["p"].max())
    return line | {
        "ours": largest,
        "difference": largest - row["below"],
        "reading": "not corrected",
        "tasks": tested["n"].sum(),
        "verdict": REPRODUCED if largest < row["below"] else NOT,
        "reason": f"{len(tested)} categories of test tasks",
    }


def figure_lines(dataset: str) -> pd.DataFrame:
    """One line per statement about Figures 6 to 9, columns as in verdicts.csv."""
    return pd.DataFrame([distance_line(dataset), *sweep_lines(dataset)])
