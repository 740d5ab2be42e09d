"""Figures of quality and the coverage of the catalogue: the numbers that are drawn, on hand-made values."""

import numpy as np
import pandas as pd
import pytest

from study.analysis.overall import quality
from study.analysis.overall.quality import KEPT, catalogue_coverage, coverage_figure
from study.analysis.report import plots
from tests.analysis.report.helpers import LONG_CAPTION, means, misplaced, results_of
from tests.rows import put_row


@pytest.fixture
def summary():
    columns = ["system", "title", "family", "mean", "sd", "ci_low", "ci_high"]
    rows = [
        ("best", "Best $x_{", "t2mrec", 0.5, 0.02, 0.45, 0.55),
        ("oracle", "Ceiling", "oracle", 0.4, np.nan, 0.3, 0.5),
        ("trivial", "Floor & <b>", "new", 0.1, 0.0, 0.05, 0.2),
    ]
    return pd.DataFrame(rows, columns=columns)


def test_overall_draws_means_intervals_and_deviations(summary):
    figure = quality.overall({"ndcg@10": summary, "recall@10": summary.iloc[::-1]}, "caption")
    left, right = figure.axes
    assert [label.get_text() for label in left.get_yticklabels()] == summary["title"].tolist()
    drawn = [segment.tolist() for lines in left.collections for segment in lines.get_segments()]
    assert [[0.45, 0], [0.55, 0]] in drawn
    assert [[0.48, 0], [0.52, 0]] in drawn
    # One seed has no deviation: interval and mean only.
    assert [[0.3, 1], [0.5, 1]] in drawn
    assert {line.get_xdata()[0]: line.get_ydata()[0] for line in left.get_lines()} == {0.5: 0, 0.4: 1, 0.1: 2}
    assert left.get_xlabel() == "NDCG@10 (0 to 1)"
    # The second metric keeps the order of the first.
    assert {line.get_xdata()[0]: line.get_ydata()[0] for line in right.get_lines()} == {0.5: 0, 0.4: 1, 0.1: 2}


def test_kinds_of_systems_are_named_under_what_shows_them_in_colour(summary):
    legend = ["T2MRec", "reads the answers", "other"]
    figure = quality.overall({"ndcg@10": summary}, LONG_CAPTION)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == legend
    assert misplaced(figure) == ([], [])
    drawn = {line.get_marker() for line in figure.axes[0].get_lines()} - {"None", None}
    assert drawn == {handle.get_marker() for handle in figure.legends[0].legend_handles}
    values = {title: pd.Series([0.1, 0.9]) for title in summary["title"]}
    families = dict(zip(summary["title"], summary["family"], strict=True))
    figure = quality.per_task_distribution(values, families | {"Not drawn": "dense"}, "ndcg@10", LONG_CAPTION)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == legend
    assert misplaced(figure) == ([], [])
    faces = [box.get_facecolor() for box in figure.axes[0].patches]
    assert faces == [handle.get_facecolor() for handle in figure.legends[0].legend_handles]


def test_titles_are_never_read_as_mathematics(summary, new_root):
    # "$x_{" alone is no formula; with a second dollar it would be an error or a formula.
    hostile = summary.assign(title=["$\\frac{1}$", "$$", "a $b$ c"])
    figure = quality.overall({"ndcg@10": hostile}, "caption")
    plots.save_figure(figure, "figure", "toy")
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == hostile["title"].tolist()
    assert not any(label.get_parse_math() for label in figure.axes[0].get_yticklabels())


def test_per_task_distribution_counts_the_zeros():
    values = {"A": pd.Series([0, 0, 0.5, 1.0]), "B": pd.Series([0.0, np.nan, 0, 0])}
    figure = quality.per_task_distribution(values, {"A": "lexical", "B": "trivial"}, "ndcg@10", "caption")
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts[:2] == ["50%", "100%"]  # from above: A, then B, whose undefined task does not count
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["A", "B"]


def test_win_tie_loss_adds_up():
    columns = ["system", "reference", "metric", "n", "wins", "ties", "losses", "diff"]
    rows = [("a", "t", "ndcg@10", 10, 1, 2, 7, -0.2), ("b", "t", "ndcg@10", 10, 6, 0, 4, 0.1)]
    titles = {"a": "A", "b": "B", "t": "T"}
    axes = quality.win_tie_loss(pd.DataFrame(rows, columns=columns), titles, "caption").axes[0]
    assert [[bar.get_width() for bar in container] for container in axes.containers] == [[10, 60], [20, 0], [70, 40]]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["A", "B"]
    assert axes.containers[2][0].get_x() == pytest.approx(30)


def test_mean_ranks_by_hand_with_a_tie_and_a_task_without_a_value():
    values = {"A": [0.9, 0.5, 0.2, 1], "B": [0.1, 0.5, 0.8, np.nan], "C": [0.0, 0.0, 0.0, 0]}
    table = quality.mean_ranks({name: pd.Series(row) for name, row in values.items()})
    assert dict(zip(table["title"], table["rank"], strict=True)) == pytest.approx({"A": 1.5, "B": 1.5, "C": 3})
    assert table.attrs["tasks"] == 3


# Demšar 2006, Table 5a: q at 0.05 by the number of classifiers.
@pytest.mark.parametrize(("k", "quantile"), [(2, 1.960), (3, 2.343), (5, 2.728), (10, 3.164)])
def test_critical_difference_is_the_published_one_and_drawn_to_each_side(k, quantile):
    table = quality.mean_ranks({str(i): pd.Series(np.arange(30.0) + i) for i in range(k)})
    assert table.attrs["critical_difference"] == pytest.approx(quantile * np.sqrt(k * (k + 1) / (6 * 30)), abs=1e-3)
    figure = quality.critical_difference(table, {str(i): "trivial" for i in range(k)}, "ndcg@10", "Caption.")
    bars = [ends[:, 0] for lines in figure.axes[0].collections for ends in lines.get_segments()]
    assert [float(low + high) / 2 for low, high in bars] == pytest.approx(range(1, k + 1))
    assert [float(high - low) for low, high in bars] == pytest.approx([table.attrs["critical_difference"]] * k)


def test_different_servers_are_counted_over_all_lists_averaged_over_seeds_and_drawn(new_root):
    # Top tens for three tasks, whose ids have gaps, and two seeds: ten servers from the given places on.
    lists = pd.MultiIndex.from_product([(1, 2), (7, 30, 41), range(KEPT)], names=["seed", "task_id", "rank"])
    lists = lists.to_frame(index=False)
    for system, first in {"various": [0, 5, 100, 0, 0, 0], "one_list": [20] * 6, "chance": [40] * 6}.items():
        frame = lists.assign(server_id=101 + np.repeat(first, KEPT) + lists["rank"], rank=lists["rank"] + 1)
        put_row("synthetic", "cold", system, top10=frame)
    families = {"various": "graph", "one_list": "published", "chance": "trivial"}
    tables = means(("cold", name, "ndcg", value) for name, value in zip(families, (0.5, 0.2, 0.1), strict=True))
    covered = results_of("synthetic", ["cold", "warm"], families, families=families, **tables)
    ids, popularity = pd.Series(np.arange(101, 301)), np.zeros(200, dtype=np.int64)
    popularity[20:30] = 1  # each server of `one_list` has one interaction of ten
    table = catalogue_coverage(covered, "cold", ids, popularity).set_index("system")
    assert list(table.index) == ["various", "one_list", "chance"]
    # Seed 1: places 0 to 14 and 100 to 109; seed 2: 0 to 9.
    assert table["servers"].tolist() == pytest.approx([(25 + 10) / 2, 10, 10])
    assert table["coverage"].tolist() == pytest.approx([17.5 / 200, 0.05, 0.05])
    assert table.loc["one_list", "gini"] == pytest.approx(0.95)
    # One is added to every count: 2 of 210.
    assert table.loc["one_list", "novelty"] == pytest.approx(-np.log2(2 / 210))
    assert table["quality"].tolist() == [0.5, 0.2, 0.1]
    # Where the hits of lists alone are kept, nothing is counted.
    assert catalogue_coverage(covered, "warm", ids, popularity).empty
    figure = coverage_figure(table.reset_index(), len(ids), "Question.")
    (panel,) = figure.axes
    points = {line.get_ydata()[0]: line.get_xdata()[0] for line in panel.lines if line.get_marker() != "None"}
    assert [points[y] for y in (0, 1, 2)] == pytest.approx([17.5, 10, 10])
    assert [text.get_text() for text in panel.get_yticklabels()] == ["VARIOUS", "ONE_LIST", "CHANCE"]
    figure.canvas.draw()
    assert "10" in [text.get_text() for text in panel.get_xticklabels()]
