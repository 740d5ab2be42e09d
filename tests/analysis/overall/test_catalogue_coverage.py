"""What whole sets of lists show of the catalogue, on hand-made lists."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from study import paths
from study.analysis.overall.catalogue_coverage import KEPT, exposed, exposed_figure, nearly_one_list
from study.analysis.report.results import Results
from study.files import write_parquet

SERVERS = pd.Series(np.arange(101, 301))  # ids
QUALITY = {"various": 0.5, "one_list": 0.2, "chance": 0.1}
FAMILIES = {"various": "graph", "one_list": "published", "chance": "floor"}


def lists(system, tasks, first, seeds=(1, 2)):
    """Top tens of a system: task t has ten servers from `first(t, seed)` on."""
    rows = [
        (task, seed, rank, 101 + first(task, seed) + rank - 1)
        for seed in seeds
        for task in tasks
        for rank in range(1, KEPT + 1)
    ]
    frame = pd.DataFrame(rows, columns=["task_id", "seed", "rank", "server_id"])
    path = paths.results("synthetic") / "top10" / "cold" / f"{system}.parquet"
    write_parquet(path, frame)


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setenv("T2M_ROOT", str(tmp_path))
    # Task ids have gaps, as a test part has.
    lists("various", [7, 30, 41], lambda task, seed: {7: 0, 30: 5, 41: 100}[task] if seed == 1 else 0)
    lists("one_list", [7, 30, 41], lambda task, seed: 20)
    lists("chance", [7, 30, 41], lambda task, seed: 40)
    overall = pd.DataFrame(
        [("cold", name, "ndcg", 10, mean) for name, mean in QUALITY.items()],
        columns=["protocol", "system", "metric", "k", "mean"],
    )
    nothing = pd.DataFrame()
    return Results(
        "synthetic",
        "Synthetic",
        ["cold", "warm"],
        {name: name.upper() for name in QUALITY},
        FAMILIES,
        {},
        [],
        overall.rename(columns={"mean": "value"}),
        overall,
        nothing,
        nothing,
    )


def test_different_servers_are_counted_over_all_lists_and_averaged_over_seeds(results):
    popularity = np.zeros(len(SERVERS), dtype=np.int64)
    popularity[20:30] = 1  # each server of `one_list` has one interaction of ten
    table = exposed(results, "cold", SERVERS, popularity).set_index("system")
    assert list(table.index) == ["various", "one_list", "chance"]
    # Seed 1: places 0 to 14 and 100 to 109; seed 2: 0 to 9.
    assert table["servers"].tolist() == pytest.approx([(25 + 10) / 2, 10, 10])
    assert table["coverage"].tolist() == pytest.approx([17.5 / 200, 0.05, 0.05])
    assert table.loc["one_list", "gini"] == pytest.approx(0.95)
    # One is added to every count: 2 of 210.
    assert table.loc["one_list", "novelty"] == pytest.approx(-np.log2(2 / 210))
    assert table["quality"].tolist() == [0.5, 0.2, 0.1]


def test_where_hits_alone_are_kept_nothing_is_counted(results):
    assert exposed(results, "warm", SERVERS, np.zeros(len(SERVERS), dtype=np.int64)).empty


def test_nearly_one_list_is_said_of_systems_and_not_of_rules(results):
    table = exposed(results, "cold", SERVERS, np.zeros(len(SERVERS), dtype=np.int64))
    table.loc[0, "servers"] = 100.0
    assert nearly_one_list(table) == [
        "ONE_LIST: its lists of ten hold 10 different servers over all tasks together, so whatever is asked it answers "
        "nearly one list (NDCG@10 0.200)."
    ]


def test_the_figure_has_a_point_for_each_system(results):
    table = exposed(results, "cold", SERVERS, np.zeros(len(SERVERS), dtype=np.int64))
    figure = exposed_figure(table, len(SERVERS), "Question.")
    (panel,) = figure.axes
    points = {line.get_ydata()[0]: line.get_xdata()[0] for line in panel.lines if line.get_marker() != "None"}
    assert [points[y] for y in (2, 1, 0)] == pytest.approx([17.5, 10, 10])
    assert [text.get_text() for text in panel.get_yticklabels()] == ["VARIOUS", "ONE_LIST", "CHANCE"]
    figure.canvas.draw()
    assert "10" in [text.get_text() for text in panel.get_xticklabels()]
    plt.close(figure)
