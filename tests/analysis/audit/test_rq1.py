"""How near runs come to Table 3: the distance by hand, the metric definitions against rankings, and planted rows."""

import shutil

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from study import paths
from study.analysis.audit import figures_paper, protocols, rq1, tables
from study.analysis.audit.settings import Definition, Protocols, Verdicts, read
from study.analysis.report import paper
from study.config.compose import load
from study.evaluation import metrics, per_task
from study.files import write_csv
from tests.tiny_study import REPOSITORY

CHOSEN = Verdicts(tolerance=0.01, relative_tolerance=0.05, stated_protocol="cold", resamples=9, level=0.95, seed=0)
CELLS = list(metrics.PAPER_METRICS)
DEFINED = {"as defined": Definition("recall", "f1", "ndcg")}


def test_the_distance_and_both_tolerances_by_hand():
    printed = np.array([0.5, 0.5, 0.08, 0.08, 0.2, 0.2, 0.4, 0.4])
    # Off by 0.02 (4 %), 0.008 (10 %) and 0.01 (2.5 %).
    near = rq1.Candidate("a", 2, CELLS, np.add(printed, [0.02, 0, 0.008, 0, 0, 0, -0.01, 0]))
    far = rq1.Candidate("b", 1, CELLS, printed + 0.1)
    line = rq1.nearest([far, near], printed, DEFINED, CHOSEN)
    assert line["distance"] == pytest.approx(np.sqrt((0.02**2 + 0.008**2 + 0.01**2) / 8))
    assert (line["system"], line["seed"], line["largest_cell"], line["compared"]) == ("a", 2, "recall@5", 2)
    assert line["largest"] == pytest.approx(0.02)
    counts = [line[f"cells_within{ending}"] for ending in ("", "_relative", "_both")]
    assert counts == [7, 7, 6]  # recall@5 breaks the absolute tolerance, precision@5 the relative one


@pytest.mark.parametrize("most", [1, 3, 12])
def test_measures_of_a_per_task_table_are_those_of_the_ranking(most):
    rng = np.random.default_rng(most)
    ranked = np.array([rng.permutation(30)[:10] for _ in range(200)])
    relevant = sp.lil_matrix((200, 30), dtype=np.float32)
    for row in range(200):
        relevant[row, rng.choice(30, rng.integers(1, most + 1), replace=False)] = 1
    relevant = relevant.tocsr()
    expected = protocols.measures(ranked, relevant).mean()
    values = metrics.per_task(ranked, relevant, ks=(5, 10)).round(6)  # as files keep them
    found = rq1.definition_means(per_task.table(range(200), 1, values))
    assert len(found) == 14
    assert found.to_numpy() == pytest.approx(expected[found.index].to_numpy(), abs=1e-5)


@pytest.fixture
def planted(new_root):
    """ReCAFR's printed row is its second seed under loo; T2MRec's is a grid protocol, by another metric definition."""
    shutil.copytree(REPOSITORY / "conf", new_root / "conf")
    printed = paper.wide(paper.load(), "table3")
    exact = pd.DataFrame(printed.loc["ReCAFR"].to_dict(), index=range(20))
    for protocol, name, seeds in (
        ("warm", "recafr", (0.5, 0.6)),
        ("loo", "recafr", (0.9, 1)),
        ("loo", "neumf", (0.3,)),
    ):
        frame = pd.concat([per_task.table(range(20), seed, exact * part) for seed, part in enumerate(seeds, 1)])
        write_csv(paths.results("task2mcp") / "per_task" / protocol / f"{name}.csv.xz", frame)
    row = printed.loc["T2MRec"]
    means = {"hit_rate": "recall", "precision": "precision", "ndcg_found": "ndcg"}
    mean = {f"{name}@{k}": row[f"{column}@{k}"] for name, column in means.items() for k in (5, 10)}
    mean |= {f"{name}@{k}": 0.0 for name in ("recall", "recall_capped", "f1", "ndcg") for k in (5, 10)}
    kept = pd.DataFrame({"measure": list(mean), "mean": list(mean.values())})
    protocols.protocol_fits("task2mcp").add(kept.assign(protocol="exposed", system="t2mrec", seed=1, settings="{}"))


def test_planted_rows_are_found_and_missing_runs_say_why(planted):
    rq1.compute(load(["dataset=task2mcp"]))
    made = tables.AuditTables("task2mcp")
    table, grid = made["rq1"], read(Protocols)
    n_places = len(load(["dataset=task2mcp"]).dataset.protocols) + len(grid.variants)
    assert len(table) == 12 * n_places * 2
    best = table[table["nearest"] & (table["counterpart"] != "other")].set_index(["row", "choice"])
    found = best.loc[("ReCAFR", "as defined")]
    assert found[["protocol", "system", "seed", "cells_within_both"]].tolist() == ["loo", "recafr", 2, 8]
    assert found["distance"] < 1e-6
    found = best.loc[("T2MRec", "nearest definition")]
    assert found[["protocol", "counterpart", "seed"]].tolist() == ["exposed", "stand-in", 1]
    assert found["definition"] == "hit rate as recall, NDCG over what was found"
    assert found["largest"] < 1e-3 < best.loc[("T2MRec", "as defined"), "distance"]  # F1 as printed is rounded
    lines = table[table["choice"] == "as defined"].set_index(["row", "protocol"])
    assert lines.loc[("NeuMF", "cold"), "reason"] == "neumf needs a task's history, and cold asks new tasks"
    assert lines.loc[("NeuMF", "warm"), ["reason", "counterpart"]].tolist() == ["neumf has not run under warm", "none"]
    # In the grid another system stands in; the nearest such run is marked apart from the method's own.
    assert lines.loc[("NeuMF", "exposed"), ["counterpart", "system", "nearest"]].tolist() == ["other", "t2mrec", True]
    assert lines.loc[("NeuMF", "loo"), ["counterpart", "system", "nearest"]].tolist() == ["same", "neumf", True]
    assert len(figures_paper.plot_rq1(made).axes[0].patches) == 3 + 12  # runs of the study, and of the grid
    assert rq1.compute(load(["dataset=synthetic"])) == []
