"""Mean ranks and Nemenyi's critical difference: by hand, and against the printed quantiles of Demšar (2006)."""

import numpy as np
import pandas as pd
import pytest

from study.analysis.report import ranks

# Demšar 2006, Table 5a: q at 0.05 by the number of classifiers.
QUANTILES = {2: 1.960, 3: 2.343, 5: 2.728, 10: 3.164}


def test_mean_ranks_by_hand_with_a_tie_and_a_task_without_a_value():
    values = {"A": [0.9, 0.5, 0.2, 1], "B": [0.1, 0.5, 0.8, np.nan], "C": [0.0, 0.0, 0.0, 0]}
    table = ranks.mean_ranks({name: pd.Series(row) for name, row in values.items()})
    assert table["title"].tolist() == ["A", "B", "C"]
    assert table["rank"].tolist() == pytest.approx([(1 + 1.5 + 2) / 3, (2 + 1.5 + 1) / 3, 3])
    assert table.attrs["tasks"] == 3


@pytest.mark.parametrize("k", QUANTILES)
def test_critical_difference_is_the_published_one(k):
    values = {str(i): pd.Series(np.arange(30.0) + i) for i in range(k)}
    table = ranks.mean_ranks(values)
    assert table.attrs["difference"] == pytest.approx(QUANTILES[k] * np.sqrt(k * (k + 1) / (6 * 30)), abs=1e-3)
    assert table["title"].iloc[0] == str(k - 1)


def test_bars_reach_half_the_difference_to_each_side():
    table = ranks.mean_ranks({"A": pd.Series([1.0, 0.0]), "B": pd.Series([0.5, 0.5])})
    figure = ranks.critical_difference(table, {"A": "t2mrec", "B": "floor"}, "ndcg@10", "Caption.")
    panel = figure.axes[0]
    bars = [line.get_xdata() for line in panel.get_lines() if len(line.get_xdata()) == 2]
    assert [float(low + high) / 2 for low, high in bars] == pytest.approx([1.5, 1.5])
    assert [float(high - low) for low, high in bars] == pytest.approx([table.attrs["difference"]] * 2)
    assert [label.get_text() for label in panel.get_yticklabels()] == ["A", "B"]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["T2MRec", "floor (rules, popularity, chance)"]
    drawn = [(line.get_marker(), line.get_color()) for line in panel.get_lines() if len(line.get_xdata()) == 1]
    assert [(handle.get_marker(), handle.get_color()) for handle in legend.legend_handles] == drawn
