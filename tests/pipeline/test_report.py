"""What follows the runs: the tables of the report, evaluating kept lists again, and verifying expected scores."""

import json
from pathlib import Path

import pandas as pd
import pytest

from study import paths
from study.analysis.report.runs import parameters
from study.data import dataset as datasets
from study.errors import StudyError
from study.evaluation.per_task import AGGREGATE_COLUMNS
from study.pipeline.evaluate import evaluate
from study.pipeline.report import report
from study.pipeline.verify import verify
from study.runner.outputs import Outputs
from study.runner.rows import run_row
from tests.pipeline.conftest import config


def test_a_transfer_has_no_count_of_parameters() -> None:
    seeds = [{"parameters": 5}, {"parameters": 7}]
    assert parameters({"config": {"system": {"model": {"width": 2}}}, "seeds": seeds}) == 7
    assert parameters({"config": {"system": {"model": {"base": {"width": 2}}}}, "seeds": seeds}) is None


def test_report_writes_one_row_per_seed_metric_and_cutoff_and_needs_a_record_beside_every_run(root: Path) -> None:
    metrics = pd.read_csv(report(config()) / "metrics.csv.xz")
    assert list(metrics.columns) == ["dataset", "protocol", "system", "profile", "seed", "metric", "k", "value"]
    assert len(metrics) == 3 * 8 * 2  # systems, metrics, cut-offs; one seed
    assert set(metrics["metric"]) == {"recall", "precision", "f1", "f1_of_means", "ndcg", "mrr", "hit_rate", "map"}
    Outputs.of("synthetic", "cold", "tfidf").record.unlink()
    with pytest.raises(StudyError, match="no record beside it"):
        report(config())


def test_evaluating_the_kept_runs_again_gives_the_same_files(root: Path) -> None:
    before = {path: path.read_bytes() for path in (root / "results").rglob("per_task/**/*.csv.xz")}
    assert len(before) == 3
    for path in before:
        path.unlink()
    evaluate(config())
    assert {path: path.read_bytes() for path in before} == before


def test_of_known_tasks_the_hits_alone_are_kept_and_give_the_same_values(root: Path) -> None:
    run_row(config("system=random", "protocol=warm", "run_depth=30"))
    outputs = Outputs.of("synthetic", "warm", "random")
    long = pd.read_parquet(paths.results("synthetic") / "runs" / "warm" / "random.parquet")
    data = datasets.load("synthetic")
    split = pd.read_parquet(paths.splits("synthetic") / "warm.parquet").query("part == 'test'")
    hits = long[long["rank"] <= 10].merge(split, on=["task_id", "server_id"])
    top = pd.read_parquet(outputs.top10)
    assert len(data.tasks) < len(long) > len(hits) == len(top) > 0
    assert set(top.itertuples(index=False, name=None)) == set(hits[list(top)].itertuples(index=False, name=None))
    before = outputs.per_task.read_bytes()
    outputs.per_task.unlink()
    evaluate(config())
    assert outputs.per_task.read_bytes() == before


def test_a_seed_without_any_hit_keeps_its_zeros(root: Path) -> None:
    run_row(config("system=random", "protocol=warm"))
    outputs = Outputs.of("synthetic", "warm", "random")
    top = pd.read_parquet(outputs.top10)
    top.iloc[:0].to_parquet(outputs.top10)
    evaluate(config())
    assert set(pd.read_csv(outputs.per_task)["recall@10"]) == {0}


def test_verify_reads_the_runs_and_not_an_old_table(root: Path) -> None:
    report(config())
    value = float(pd.read_csv(paths.tables("synthetic") / "metrics.csv.xz").query("system == 'tfidf'")["value"].iloc[0])
    expected = root / "expected.yaml"
    entry = {"dataset": "synthetic", "protocol": "cold", "system": "tfidf", "metric": "recall", "k": 5}
    expected.write_text(json.dumps([entry | {"value": value, "tolerance": 0.0001, "source": "this run"}]))
    assert verify(expected)[0] == ["OK"]
    # A tool catalogue keeps other records and is verified by its own table.
    tools = paths.results("livemcpbench")
    for folder, text in (("per_task/query", "task_id,seed"), ("records/query", '{"seeds": [{"seed": 0}]}')):
        (tools / folder).mkdir(parents=True)
        (tools / folder / "x").write_text(text)
    (tools / "tables").mkdir()
    row = ["livemcpbench", "query", "x", "laptop", 0, "recall", 5, 0.5]
    pd.DataFrame([row], columns=AGGREGATE_COLUMNS).to_csv(tools / "tables" / "metrics.csv.xz", index=False)
    assert verify(expected)[0] == ["OK"]
    outputs = Outputs.of("synthetic", "cold", "tfidf")
    pd.read_csv(outputs.per_task).assign(**{"recall@5": 1.0}).to_csv(outputs.per_task, index=False)
    assert verify(expected)[0] == ["FAIL"]
