"""What means over tasks can be: rows of real rankings always pass, planted impossibilities never do."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import OptimizeResult

from study.analysis.audit import consistency as rules
from study.analysis.audit.protocols import Definition, measures, printed_form
from study.analysis.framework import read_group_table, run_analyses
from study.analysis.report.paper import printed_rows
from study.base import paths
from study.base.errors import StudyError
from study.config.compose import load
from study.data import dataset, splits
from study.evaluation import metrics, per_task
from tests.analysis.toys import small_study
from tests.rows import put_row
from tests.tiny_study import SIZE

CELLS = list(metrics.PAPER_METRICS)
N_SERVERS = 40


def row_of(relevant, ranked):
    """The eight cells of a ranking by the study's evaluator."""
    return metrics.per_task(ranked, relevant)[CELLS].mean().to_numpy()


def row_with(**cells):
    """A row of zeros but for some cells (recall_5 is recall@5), and which cells these are."""
    named = {name.replace("_", "@"): value for name, value in cells.items()}
    return np.array([named.get(name, 0.0) for name in CELLS]), np.isin(CELLS, list(named))


def random_tasks(counts, seed, *, skill=0.0):
    """Labels with the given numbers of relevant servers, and a ranking that finds them with some skill."""
    rng = np.random.default_rng(seed)
    relevant = np.zeros((len(counts), N_SERVERS), np.float32)
    for line, n in zip(relevant, counts, strict=True):
        line[rng.choice(N_SERVERS, n, replace=False)] = 1
    ranked = np.argsort(-(skill * relevant + rng.random(relevant.shape)), axis=1)[:, :10].astype(np.int64)
    return sp.csr_matrix(relevant), ranked


@settings(max_examples=25)
@given(
    counts=st.lists(st.integers(1, 14), min_size=1, max_size=12), seed=st.integers(0, 10_000), skill=st.floats(0, 1.5)
)
def test_every_real_row_is_possible_under_its_own_labels(counts, seed, skill):
    row = row_of(*random_tasks(counts, seed, skill=skill))
    shares = rules.shares(np.array(counts))
    assert rules.smallest_change([row], rules.points(shares), shares=shares) < 1e-7
    assert rules.smallest_change([row], rules.points(range(1, 15))) < 1e-7


def test_rows_of_the_same_tasks_stand_together_and_those_of_different_labels_alone():
    counts, possible = np.random.default_rng(3).integers(1, 12, size=30), rules.points(range(1, 13))
    relevant, first = random_tasks(counts, 4, skill=0.8)
    second = np.argsort(-np.random.default_rng(5).random((30, N_SERVERS)), axis=1)[:, :10].astype(np.int64)
    assert rules.smallest_change([row_of(relevant, first), row_of(relevant, second)], possible) < 1e-7
    one, ten = (row_of(*random_tasks([n] * 40, seed, skill=0.7)) for n, seed in ((1, 1), (10, 2)))
    assert max(rules.smallest_change([row], possible) for row in (one, ten)) < 1e-7
    assert rules.smallest_change([one, ten], possible) > 0.05


def test_the_least_change_by_hand_and_fixed_shares_are_kept():
    # With one relevant server per task P@5 = R@5 / 5. From R = 0.5 and P = 0.16 both must move by t, with
    # 0.16 - t = (0.5 + t) / 5, so t = 0.06 / 1.2.
    row, used = row_with(recall_5=0.5, precision_5=0.16)
    assert rules.smallest_change([row], rules.points([1]), cells=used) == pytest.approx(0.05)
    # Half of the tasks have one relevant server, half have two: mean P@10 is at most (0.1 + 0.2) / 2.
    row, used = row_with(precision_10=0.2)
    found = rules.smallest_change([row], rules.points([1, 2]), shares={1: 0.5, 2: 0.5}, cells=used)
    assert found == pytest.approx(0.05)
    assert rules.smallest_change([row], rules.points([1, 2]), cells=used) == 0


def test_ranges_of_a_mean_and_the_implied_number_of_relevant_servers_by_hand():
    given_cells = ["precision@5", "recall@5"]
    # P = 0.4 and R = 0.2 at 5 with ten relevant servers: two hits in every task give F1 = 4 / 15, the most there is.
    row, _ = row_with(precision_5=0.4, recall_5=0.2)
    low, high = rules.possible_range(row, "f1@5", given_cells, rules.points(range(1, 31)), rounding=1e-9)
    assert high == pytest.approx(4 / 15, abs=1e-6)
    assert low < high - 0.05
    ten = rules.possible_range(row, "f1@5", given_cells, rules.points([10]), rounding=1e-9)
    assert ten == pytest.approx((4 / 15, 4 / 15), abs=1e-6)
    # One relevant server, always among the first five (R@5 = 1): NDCG@5 from 1 / log2(6) at rank 5 to 1 at rank 1.
    row, _ = row_with(recall_5=1.0, precision_5=0.2)
    found = rules.possible_range(row, "ndcg@5", given_cells, rules.points([1]), rounding=1e-9)
    assert found == pytest.approx((1 / np.log2(6), 1.0), abs=1e-6)
    row, _ = row_with(precision_5=0.05, recall_5=0.5)  # these contradict each other
    assert np.isnan(rules.possible_range(row, "f1@5", given_cells, rules.points(range(1, 31)), rounding=1e-4)).all()
    found = rules.implied_relevant(0.25, 0.5, 5, rounding=0.001)
    assert found == pytest.approx((2.5, 5 * 0.249 / 0.501, 5 * 0.251 / 0.499))
    assert rules.implied_relevant(0.0, 0.0, 5, rounding=0.001)[1:] == (0.0, float("inf"))


@settings(max_examples=25)
@given(counts=st.lists(st.integers(1, 14), min_size=1, max_size=10), seed=st.integers(0, 10_000))
def test_every_real_row_is_possible_by_the_other_reading_of_its_columns(counts, seed):
    """The reading is one of the protocol grid, which computes it from rankings."""
    relevant, ranked = random_tasks(counts, seed, skill=0.7)
    row = printed_form(measures(ranked, relevant).mean(), Definition("hit_rate", "f1", "ndcg_found"))
    assert rules.smallest_change([row], rules.points(set(counts), other_reading=True)) < 1e-7


def test_the_other_reading_by_hand_is_tried_on_printed_rows_alone():
    # Ten relevant servers and one hit per task, at rank 5: hit rate 1, precision 0.2, NDCG over what was found
    # 1 / log2(6). By the paper's definitions recall is 0.1.
    row, used = row_with(recall_5=1.0, precision_5=0.2, ndcg_5=1 / np.log2(6))
    assert rules.smallest_change([row], rules.points([10], other_reading=True), cells=used) < 1e-7
    assert rules.smallest_change([row], rules.points([10]), cells=used) > 0.1
    planted = row_of(*random_tasks([10] * 20, 2, skill=0.7))
    rows = pd.DataFrame([planted, planted], columns=CELLS)
    rows = rows.assign(table=["table3", "own"], place="", row=["a", "b"], own="")
    assumed = {"ten": (rules.points([10]), {10: 1.0})}
    table = rules.feasibility(rows, assumed, 1e-4).set_index(["row", "cells"])["possible"]
    assert table["a"].to_dict() == dict.fromkeys(rules.CELL_SETS, True) | {rules.OTHER_READING: False}
    assert table["b"].to_dict() == dict.fromkeys(rules.CELL_SETS, True)


def test_what_the_printed_cells_allow_alone_and_in_pairs():
    rows = printed_rows().set_index("row")
    one, wide = rules.points([1]), rules.points(range(1, 31))
    values = {name: rows.loc[name, CELLS].to_numpy(np.float64) for name in rows.index}
    assert rules.smallest_change([values["LightGCN"]], one) < 1e-4
    assert rules.smallest_change([values["T2MRec"]], one) > 0.2
    ten = {"shares": {10: 1.0}, "cells": rules.WITHOUT_F1}
    assert rules.smallest_change([values["T2MRec"]], rules.points([10]), **ten) > 0.25
    read = rules.points([10], other_reading=True)
    assert 0.02 < rules.smallest_change([values["T2MRec"]], read, **ten) < 0.03
    assert rules.smallest_change([values["GDSRec"]], wide) > 0.05  # NDCG@5 far under what its precision leaves
    chosen = rows.loc[["LightGCN", "MSBPR", "T2MRec"]].reset_index()
    table = rules.pairs(chosen, rules.points(range(1, 41)), 1e-4)
    found = {(row["row_a"], row["row_b"]): row["together"] for row in table.to_dict("records")}
    assert found == {("LightGCN", "MSBPR"): True, ("LightGCN", "T2MRec"): False, ("MSBPR", "T2MRec"): False}
    assert table.loc[~table["together"], "conflict"].all()


def test_cell_checks_name_the_broken_bound():
    good = row_of(*random_tasks([4] * 30, 8, skill=0.5))
    bad = good.copy()
    bad[CELLS.index("f1@5")] += 0.05
    bad[CELLS.index("ndcg@10")] = 1.0
    rows = pd.DataFrame([good, bad], columns=CELLS).assign(table="t", place="", row=["good", "bad"], own="")
    checks = rules.cell_checks(rows, rules.points(range(1, 31)), 1e-4).set_index(["row", "k"])
    broken = {("bad", 5): "f1 too high", ("bad", 10): "ndcg too high"}
    assert checks["breaks"].to_dict() == {("good", 5): "", ("good", 10): ""} | broken
    assert checks.loc[("good", 5), "implied_relevant"] == pytest.approx(4)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A small synthetic data set, split, with a table of two systems: a real one and one with a planted fault."""
    with small_study(tmp_path_factory.mktemp("audit"), SIZE, {"audit/consistency.yaml": {"max_relevant": 12}}):
        data = dataset.load("synthetic")
        cold = splits.load(paths.splits("synthetic") / "cold.parquet", data)
        tasks = cold.tasks("test")
        ranked = np.argsort(np.random.default_rng(0).random((len(tasks), data.n_servers)), axis=1)[:, :10]
        values = metrics.per_task(ranked.astype(np.int64), cold.test[tasks])
        for name, factor in (("tfidf", 1.0), ("bm25", 0.5)):
            table = per_task.table(tasks, 1, values.assign(**{"recall@10": values["recall@10"] * factor}))
            put_row("synthetic", "cold", name, table)
        put_row("synthetic", "cold", "a_system_of_ones_own", table)
        yield data


def test_tables_on_synthetic_data_find_the_planted_fault(data):
    written = list(run_analyses(["audit/consistency"], load(["dataset=synthetic"])))
    assert [path.name for path in written] == ["consistency.csv", "feasibility.csv"]
    table = read_group_table("synthetic", "audit", "feasibility")
    assert "ours: a_system_of_ones_own" not in set(table["row"])
    table = table.set_index(["row", "labels", "cells"])
    assert table.loc[("ours: tfidf", "task split", "all eight cells"), "change"] < 1e-6
    assert table.loc[("ours: bm25", "task split", "all eight cells"), "change"] > 0.01
    assert not table.loc[("ours: tfidf", "one server per task", "all eight cells"), "possible"]
    own = read_group_table("synthetic", "audit", "consistency").set_index("row").loc["ours: tfidf"]
    for name in ("f1", "ndcg"):  # bounds, not intervals: of a real row they hold the value
        assert own[name].between(own[f"{name}_low"] - 1e-4, own[f"{name}_high"] + 1e-4).all()
    with pytest.raises(StudyError, match=r"has not been made[\s\S]*study analyse audit"):
        read_group_table("synthetic", "audit", "row_pairs")


def test_a_program_that_the_solver_gives_up_is_named(monkeypatch):
    monkeypatch.setattr(rules, "linprog", lambda *_, **__: OptimizeResult(status=4, message="numbers", fun=None))
    with pytest.raises(StudyError, match="not solved: numbers"):
        rules.possible_range(np.full(8, 0.5), "f1@5", ["recall@5"], rules.points([1]), rounding=1e-4)


def test_scenarios_take_their_shares_from_the_splits(data):
    found = rules.scenarios(data, 30)
    lists = ["any lists of up to 30", "any lists of up to 18", "one server per task"]
    assert list(found) == [*lists, "task split", "task split, longer lists", "interaction split"]
    assert sum(found["task split"][1].values()) == pytest.approx(1)
    assert set(found["interaction split"][1]) == {2}
