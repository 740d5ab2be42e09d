"""The figures draw what the tables say; positions of the needle grid are those of the published grid."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from study.analysis import tools as figures
from study.tools import mcp_zero as needle


def frame(values, column="recall@3", tasks=None):
    return pd.DataFrame({"task_id": tasks or range(len(values)), "seed": 0, column: values})


def test_intervals_hold_the_mean_best_first():
    measured = {"poor": frame([0, 0, 1, 0]), "good": frame([1, 1, 1, 0]), "other": frame([1], "mrr@3")}
    found = figures.intervals(measured, "recall@3")
    assert found[["system", "mean"]].to_numpy().tolist() == [["good", 0.75], ["poor", 0.25]]
    assert ((found["ci_low"] <= found["mean"]) & (found["mean"] <= found["ci_high"])).all()
    assert figures.intervals({}, "recall@3").empty


def test_figures_load_nothing_that_talks():
    # What fetches files prints a warning in notebooks without widgets, and so would the executed notebook.
    modules = "study.analysis.tools, study.advisor.engine.intent.settings"
    code = f"import sys, {modules}\nsys.exit('tqdm.auto' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def trials(n_tools, hit):
    points = needle.grid(n_tools)
    return frame([float(hit(*point)) for point in points], "hit_rate@1", [f"{size}:0" for size, _ in points])


def test_positions_of_the_grid():
    grid = figures.needle_grid(trials(100, lambda size, index: index == 0), 100)
    assert len(grid) == len(needle.grid(100))
    assert grid["position"].between(0, 1).all()
    # Every size is found at its first position only.
    assert grid[grid["hit"] == 1].groupby("size").size().eq(1).all()
    assert set(grid.loc[grid["hit"] == 1, "position"]) == {0.0, 0.5}
    with pytest.raises(ValueError, match="not those of the grid"):
        figures.needle_grid(trials(50, lambda *_: True), 100)
    # It is drawn where the trials are.
    panel = figures.needle_grids({"x": grid}, "caption").axes[0]
    image = np.asarray(panel.images[0].get_array())
    sizes = np.unique(grid["size"])
    assert image.shape == (needle.POSITIONS, len(sizes))
    assert not np.isnan(image).any()
    # One tool: found everywhere; the largest collection: its first position alone, the top row.
    assert image[:, 0].all()
    assert image[0].all()
    assert image[1:, -1].sum() == 0
    assert "% of" in panel.get_title(loc="left")


def test_lines_hold_the_values():
    table = pd.DataFrame({"system": ["a", "a", "b", "b"], "size": [1, 10, 1, 10]})
    table = table.assign(tokens_per_success=[5, 6, 7, 8.0], tokens_all_in_prompt=[5, 50, 5, 50.0])
    panel = figures.needle_tokens(table, {"a": "A"}, "caption").axes[0]
    lines = {"all schemas in the prompt": [5, 50], "A, per success": [5, 6], "b, per success": [7, 8]}
    assert {line.get_label(): line.get_ydata().tolist() for line in panel.lines} == lines
    hits = frame([1, 0, 1, 1], "hit_rate@1", ["10:1", "10:2", "9:1", "9:2"])
    panel = figures.needle_cross({"a": hits}, {}, "caption").axes[0]
    assert panel.lines[0].get_xydata().tolist() == [[9, 1], [10, 0.5]]
    routed = pd.DataFrame({"stage": "x", "budget": [500, 1000], "tool_recall": [0.1, 0.2], "ci_low": 0.0, "ci_high": 1})
    assert figures.budgets(routed, {}, "caption").axes[0].lines[0].get_ydata().tolist() == [0.1, 0.2]
    pools = pd.DataFrame({"tools": [5, 50], "mrr": [0.5, 0.4]})
    pools = pools.assign(system="s", **{"recall@10": 0.1, "requests_recall@3": 0.2})
    assert [len(panel.lines) for panel in figures.pools(pools, {}, "caption").axes] == [1, 1, 1]
    rows = pd.DataFrame({"learned_on": "log", "factor": ["a", "b"], "mean": [0.7, 0.3], "least": 0.2, "greatest": 0.8})
    panel = figures.weights(rows, {"b": 0.6, "a": 0.4}, {}, "caption").axes[0]
    drawn = [dict(zip(line.get_ydata(), line.get_xdata(), strict=True)) for line in panel.lines]
    assert drawn == [{-0.1: 0.6, 0.9: 0.4}, {0.1: 0.3, 1.1: 0.7}]
    listed = figures.intervals({"poor": frame([0, 1]), "good": frame([1, 1])}, "recall@3")
    panel = figures.dots(listed, {"good": "Good"}, "x", "t", "caption").axes[0]
    assert [label.get_text() for label in panel.get_yticklabels()] == ["Good", "poor"]
    assert panel.lines[0].get_xdata().tolist() == [1, 0.5]
