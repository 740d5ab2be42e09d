"""Result files, their tables and settings, in a project folder of their own."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import methods, version

from study.advisor.engine.render import tools_data
from study.base import paths
from study.base.errors import StudyError
from study.evaluation.statistics import bootstrap_interval, cluster_interval, compare_all, randomisation
from study.tools import results
from study.tools.queries import QuerySet

QUERIES = QuerySet("q", ("a", "b"), ("x", "y"), (((0, 3), (1,)), ((4,),)), ("g", "g"))


def test_measures_of_rankings_and_sets_by_hand():
    table = results.measure(np.array([[3, 0, 1, 2, 4], [0, 4, 1, -1, -1]]), QUERIES, 5, ks=(1, 2, 3))
    expected = {"recall@1": [0.5, 0], "recall@2": [0.5, 1], "precision@2": [0.5, 0.5], "recall@3": [1, 1]}
    assert table[[*expected, "mrr@5"]].to_dict("list") == expected | {"mrr@5": [1, 0.5]}
    table = results.measure_sets({3: [[2, 3, 1], []]}, QUERIES, 5)
    assert (table["recall@3"].tolist(), table["hit_rate@3"].tolist()) == ([1, 0], [1, 0])


def test_report_from_files(project, catalog):
    good = results.measure(np.array([[0, 1, 2], [4, 0, 1]]), QUERIES, 5, ks=(1, 2))
    poor = results.measure(np.array([[2, 0, 1], [0, 1, 2]]), QUERIES, 5, ks=(1, 2))
    inputs = catalog, QUERIES
    results.write_results("toy", [results.Run("query", name, good, inputs) for name in ("good", "poor")])
    # A run takes the place of the one of its name; the others stay.
    table = results.Table("extra", pd.DataFrame({"a": [1]}), {"config": 3})
    results.write_results("toy", [results.Run("query", "poor", poor, inputs, {"config": {}}), table])
    kept = results.collect_runs("toy")["query"]["good"]
    pd.testing.assert_frame_equal(kept, good, check_dtype=False, check_like=True)
    assert json.loads((paths.tables("toy") / "extra.json").read_text())["config"] == 3
    folder = results.report_runs("toy", {"query": ("poor", "recall@2"), "absent": ("x", "recall@2")})
    metrics = pd.read_csv(folder / "metrics.csv.xz")
    assert list(metrics) == ["dataset", "protocol", "system", "profile", "seed", "metric", "k", "value"]
    cell = metrics.set_index(["system", "metric", "k"])["value"]
    at = [("good", "recall", 2), ("good", "completeness", 2), ("poor", "recall", 2), ("poor", "completeness", 2)]
    assert cell[at].tolist() == [1, 1, 0.25, 0]
    compared = pd.read_csv(folder / "significance.csv")
    assert compared[["system", "reference", "diff", "n"]].to_numpy().tolist() == [["good", "poor", 0.75, 2]]
    # Both queries have one origin: a single unit gives no interval.
    assert (compared["groups"].tolist(), compared["diff_ci_low"].isna().all()) == ([1], True)
    assert "| good |" in (folder / "overall.md").read_text()
    record = results.read_records("toy")["query", "good"]
    assert (record["profile"], record["embedder"]) == ("laptop", {"kind": "minilm"})
    assert record["catalogue_sha256"] == catalog.fingerprint()
    assert record["queries_sha256"] == QUERIES.fingerprint() != replace(QUERIES, texts=("x", "z")).fingerprint()
    pairs = results.report_runs("toy", {}, {"query": [("good", "poor", "recall@1"), ("good", "gone", "recall@1")]})
    compared = pd.read_csv(pairs / "significance.csv")[["system", "reference", "metric"]]
    assert compared.to_numpy().tolist() == [["good", "poor", "recall@1"]]
    records = paths.results("toy") / "records.jsonl"
    records.write_text(records.read_text().splitlines()[1])
    for name, reason in (("toy", "no record beside"), ("nothing", "no runs")):
        with pytest.raises(StudyError, match=reason):
            results.report_runs(name, {})


def test_answers_are_tools_by_the_protocol(catalog):
    tools = [answer["tool"] for answer in tools_data(catalog, range(5))]
    # A tool without parameters too.
    assert tools[2]["inputSchema"] == {"type": "object", "properties": {}}
    methods.validate_server_result("tools/list", version.LATEST_HANDSHAKE_VERSION, {"tools": tools})


def test_queries_of_one_origin_are_one_unit():
    origins = np.random.default_rng(0).normal(size=40)
    difference, groups = np.repeat(origins, 10), np.repeat(np.arange(40), 10).astype(str)
    low, high = cluster_interval(difference, groups, seed=1)
    naive = bootstrap_interval(difference, seed=1)
    # Ten copies of an origin tell no more than the origin.
    assert (low, high) == pytest.approx(bootstrap_interval(origins, seed=1), abs=0.03)
    assert high - low > 2.5 * (naive[1] - naive[0])
    groups = {"q0": "x", "q1": "x", "q2": "x", "q3": "y", "q4": "y", "q5": "z"}
    base = pd.DataFrame({"task_id": [*groups], "seed": 0})
    measured = {"a": [1.0, 1, 1, 1, 0, 1], "b": [0.0, 0, 0, 1, 1, 0]}
    frames = {name: base.assign(**{"hit_rate@1": values}) for name, values in measured.items()}
    plain = compare_all(frames, "b", ["hit_rate@1"], 0)
    found = results.clustered(plain, frames, groups, 0).iloc[0]
    assert (found["groups"], found["n"], found["diff"]) == (3, 6, plain["diff"][0])
    assert found["randomisation_p"] == randomisation(np.array([3.0, -1.0, 1.0]), seed=0) > plain["randomisation_p"][0]
    with pytest.raises(StudyError, match="no group"):
        results.clustered(plain, frames, {"q0": "x"}, 0)


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=30), st.integers(0, 3))
def test_intervals_hold_to_what_was_seen_and_one_origin_has_none(values, seed):
    difference = np.array(values)
    low, high = cluster_interval(difference, np.arange(len(values)).astype(str), seed=seed)
    assert difference.min() - 1e-9 <= low <= high <= difference.max() + 1e-9
    assert np.isnan(cluster_interval(difference, np.array(["a"] * len(values)), seed=seed)).all()
