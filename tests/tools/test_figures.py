"""The figures draw what the tables say; positions of the needle grid are those of the published grid."""

import numpy as np
import pandas as pd
import pytest

from study.analysis import tools as figures
from study.tools import mcp_zero as needle


def frame(values, column="recall@3", tasks=None):
    return pd.DataFrame({"task_id": tasks or range(len(values)), "seed": 0, column: values})


def trials(n_tools):
    points = needle.grid(n_tools)
    return frame([float(index == 0) for _, index in points], "hit_rate@1", [f"{size}:0" for size, _ in points])


def test_positions_of_the_grid():
    grid = figures.needle_grid(trials(100), 100)
    assert len(grid) == len(needle.grid(100))
    # Every size is found at its first position only.
    assert grid[grid["hit"] == 1].groupby("size").size().eq(1).all()
    assert set(grid.loc[grid["hit"] == 1, "position"]) == {0.0, 0.5}
    with pytest.raises(ValueError, match="not those of the grid"):
        figures.needle_grid(trials(50), 100)
    image = np.asarray(figures.needle_grids({"x": grid}, "caption").axes[0].images[0].get_array())
    assert image.shape == (needle.POSITIONS, grid["size"].nunique())
    # One tool: found everywhere; the largest collection: its first position alone, the top row.
    assert (image[:, 0].all(), image[0].all(), image[1:, -1].sum()) == (True, True, 0)


def test_lines_hold_the_values():
    table = pd.DataFrame({"system": ["a", "a", "b", "b"], "size": [1, 10, 1, 10]})
    table = table.assign(tokens_per_success=[5, 6, 7, 8.0], tokens_all_in_prompt=[5, 50, 5, 50.0])
    routed = pd.DataFrame({"stage": "x", "budget": [500, 1000], "tool_recall": [0.1, 0.2], "ci_low": 0.0, "ci_high": 1})
    pools = pd.DataFrame(
        {"tools": [5, 50], "mrr": [0.5, 0.4], "recall@10": 0.1, "requests_recall@3": 0.2, "system": "s"}
    )
    pools["system"] = "s"
    rows = pd.DataFrame({"learned_on": "log", "factor": ["a", "b"], "mean": [0.7, 0.3], "least": 0.2, "greatest": 0.8})
    listed = figures.intervals({"poor": frame([0, 1]), "good": frame([1, 1]), "x": frame([1], "mrr@3")}, "recall@3")
    assert (listed["system"].tolist(), listed["mean"].tolist()) == (["good", "poor"], [1, 0.5])
    assert figures.intervals({}, "recall@3").empty
    hits = frame([1, 0, 1, 1], "hit_rate@1", ["10:1", "10:2", "9:1", "9:2"])
    drawn = {
        "tokens": (figures.needle_tokens(table, {"a": "A"}, "caption"), [5, 50, 5, 6, 7, 8]),
        "cross": (figures.needle_cross({"a": hits}, {}, "caption"), [1, 0.5]),
        "budgets": (figures.budgets(routed, {}, "caption"), [0.1, 0.2]),
        "pools": (figures.pools(pools, {}, "caption"), [0.5, 0.4]),
        "weights": (figures.weights(rows, {"b": 0.6, "a": 0.4}, {}, "caption"), [-0.1, 0.9, 0.1, 1.1]),
        "dots": (figures.dots(listed, {"good": "Good"}, "x", "t", "caption"), [0, 1]),
    }
    for name, (figure, values) in drawn.items():
        found = [value for line in figure.axes[0].lines for value in line.get_ydata()]
        assert sorted(found) == pytest.approx(sorted(values)), name
