"""Stages around the runs: the report, evaluating kept lists again, expected scores, and saved models."""

import json
from pathlib import Path

import pandas as pd
import pytest

from study.analysis.report.expected import verify
from study.analysis.report.main import headline, report
from study.analysis.report.runs import parameters
from study.base import paths
from study.base.errors import StudyError
from study.evaluation.per_task import AGGREGATE_COLUMNS
from study.runner.row_store import long_files, read_row
from study.runner.rows import run_row
from study.search.export import export
from study.t2mrec.system import T2MRec
from tests.pipeline.conftest import config
from tests.rows import change_row


def test_a_transfer_has_no_count_of_parameters():
    seeds = [{"parameters": 5}, {"parameters": 7}]
    assert parameters({"config": {"system": {"model": {"width": 2}}}, "seeds": seeds}) == 7
    assert parameters({"config": {"system": {"model": {"base": {"width": 2}}}}, "seeds": seeds}) is None


def test_the_headline_holds_every_row_s_ndcg_at_ten_and_recall_of_named_systems():
    rows = [("cold", "t2mrec", "ndcg", 10, 0.2), ("cold", "t2mrec", "ndcg", 5, 0.9), ("cold", "t2mrec", "f1", 10, 0.3)]
    rows += [("cold", "bm25", "ndcg", 10, 0.1), ("cold", "bm25", "recall", 10, 0.4)]
    rows += [("warm", "item_knn", "recall", 10, 0.6)]
    assert headline(pd.DataFrame(rows, columns=["protocol", "system", "metric", "k", "mean"])) == {
        "cold": {"t2mrec": {"ndcg@10": 0.2}, "bm25": {"ndcg@10": 0.1}},
        "warm": {"item_knn": {"recall@10": 0.6}},
    }


def test_report_writes_one_row_per_seed_metric_and_cutoff_and_counts_complete_rows(root):
    record = read_row("synthetic", "cold", "random").record
    record["seeds"][0]["report"] = {"replayed": 3}
    change_row("synthetic", "cold", "random", record=record)
    folder = report(config())
    metrics = pd.read_csv(folder / "metrics.csv.xz")
    assert list(metrics.columns) == ["dataset", "protocol", "system", "profile", "seed", "metric", "k", "value"]
    assert len(metrics) == 3 * 8 * 2  # systems, metrics, cut-offs; one seed
    assert set(metrics["metric"]) == {"recall", "precision", "f1", "f1_of_means", "ndcg", "mrr", "hit_rate", "map"}
    runs = pd.read_csv(folder / "runs.csv").set_index("system")
    assert runs.index[runs["seconds_score"].isna()].tolist() == ["random"]  # whose replies were replayed
    (row,) = (line for line in (folder / "overall.md").read_text().splitlines() if line.startswith("| Random"))
    assert row.endswith("|  |")
    (records,) = long_files("synthetic", "records")
    records.write_text("".join(line for line in records.read_text().splitlines(True) if '"tfidf"' not in line))
    assert set(pd.read_csv(report(config()) / "metrics.csv.xz")["system"]) == {"random", "popularity"}
    records.unlink()
    with pytest.raises(StudyError, match="no runs to report"):
        report(config())


def test_report_names_the_file_of_a_table_that_holds_no_metrics(root):
    wrong = read_row("synthetic", "cold", "tfidf").per_task.assign(**{"recall@10": 1.5})
    change_row("synthetic", "cold", "tfidf", per_task=wrong)
    with pytest.raises(StudyError, match="outside") as caught:
        report(config())
    assert [caught.value.file] == long_files("synthetic", "per_task")
    assert caught.value.fix


def test_a_row_of_tasks_without_labels_is_refused_with_the_fix(root):
    path = paths.prepared("synthetic") / "labels.parquet"
    pd.read_parquet(path).iloc[:0].to_parquet(path)
    with pytest.raises(StudyError, match="no task has a label") as caught:
        run_row(config("system=tfidf"))
    assert (caught.value.file, caught.value.fix) == (path, "run: study prepare dataset=synthetic")


def test_of_known_tasks_the_hits_alone_are_kept(root):
    run_row(config("system=random", "protocol=warm", "run_depth=30"))
    long = pd.read_parquet(paths.results("synthetic") / "runs" / "warm" / "random.parquet")
    split = pd.read_parquet(paths.splits("synthetic") / "warm.parquet").query("part == 'test'")
    hits = long[long["rank"] <= 10].merge(split, on=["task_id", "server_id"])
    top = read_row("synthetic", "warm", "random").top10
    assert 80 < len(long) > len(hits) == len(top) > 0
    assert set(top.itertuples(index=False, name=None)) == set(hits[list(top)].itertuples(index=False, name=None))


def test_verify_reads_the_runs_and_not_an_old_table(root):
    report(config())
    row = read_row("synthetic", "cold", "tfidf")
    expected = root / "expected.yaml"
    entry = {"dataset": "synthetic", "protocol": "cold", "system": "tfidf", "metric": "recall", "k": 5}
    value = float(row.per_task["recall@5"].mean())
    expected.write_text(json.dumps([entry | {"value": value, "tolerance": 0.0001, "source": "this run"}]))
    # A tool catalogue keeps other records and is verified by its own table.
    tools = paths.results("livemcpbench")
    for folder, text in (("per_task/query", "task_id,seed"), ("records/query", '{"seeds": [{"seed": 0}]}')):
        (tools / folder).mkdir(parents=True)
        (tools / folder / "x").write_text(text)
    (tools / "tables").mkdir()
    line = ["livemcpbench", "query", "x", "laptop", 0, "recall", 5, 0.5]
    pd.DataFrame([line], columns=AGGREGATE_COLUMNS).to_csv(tools / "tables" / "metrics.csv.xz", index=False)
    assert verify(expected)[0] == ["OK"]
    change_row("synthetic", "cold", "tfidf", per_task=row.per_task.assign(**{"recall@5": 1.0}))
    assert verify(expected)[0] == ["FAIL"]
    for file in ("nowhere.yaml", ".", "/dev/zero"):
        with pytest.raises(StudyError, match="there is no file of expected scores"):
            verify(Path(file))


def test_a_current_model_stays_and_a_stale_or_damaged_one_is_made_again(root, monkeypatch):
    fits, fit = [], T2MRec.fit
    monkeypatch.setattr(T2MRec, "fit", lambda self, *args, **kw: fits.append(1) or fit(self, *args, **kw))
    once, twice = (config("system=t2mrec", f"system.model.training.epochs={epochs}") for epochs in (1, 2))
    folder = export(once)
    assert export(once) == folder
    assert len(fits) == 1
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    export(once)
    assert len(fits) == 2
    export(twice)
    assert len(fits) == 3
    path = paths.prepared("synthetic") / "tasks.parquet"
    tasks = pd.read_parquet(path)
    tasks.loc[0, "description"] += " more"
    tasks.to_parquet(path)
    export(twice)
    assert len(fits) == 4
