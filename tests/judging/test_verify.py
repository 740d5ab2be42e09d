"""What is released can be computed again and is read by other programs; the commands."""

import shutil

import ir_measures
import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner

from study.base.files import write_csv
from study.cli.judge import app
from study.judging import croissant, exchange, store, verify
from study.judging.collection import Collection

DATASET = "synthetic"


def test_qrels_are_read_by_another_program(shared_root, tmp_path):
    verify.write(tmp_path, exchange.qrels(Collection.load(DATASET)))
    files = (str(tmp_path / "qrels" / f"{part}.txt") for part in ("all", "valid", "test"))
    everything, valid, test = (list(ir_measures.read_trec_qrels(file)) for file in files)
    found = {(int(q.query_id), int(q.doc_id)): q.relevance for q in everything}
    judged = store.final(DATASET)
    assert found == {(t, s): g for t, s, g in judged[[*store.PAIR, "final"]].astype(int).to_numpy().tolist()}
    assert len(valid) + len(test) == len(found)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_croissant_is_valid_and_its_records_are_the_judgements(root):
    import mlcroissant  # takes seconds, and the other tests do without it

    told = yaml.safe_load((root / "conf/judging/croissant.yaml").read_text())
    for name, columns in store.COLUMNS.items():
        if file := told["files"].get(f"{name}.csv"):
            assert list(file["columns"]) == columns
    verify.write(store.folder(DATASET), {"croissant.json": croissant.judged(Collection.load(DATASET))})
    described = mlcroissant.Dataset(jsonld=str(store.folder(DATASET) / "croissant.json"))
    assert not described.metadata.issues.errors
    # The date is that of the release of the project, which this file does not know.
    assert all("datePublished" in warning for warning in described.metadata.issues.warnings)
    licence = told["facts"]["license"]
    assert described.metadata.license in (licence, [licence])
    record = next(iter(described.records(record_set="judgements")))
    first = store.final(DATASET).iloc[0]
    assert int(record["judgements/task_id"]) == first["task_id"]
    assert int(record["judgements/final"]) == first["final"]


@pytest.mark.usefixtures("few_draws")
def test_every_number_is_computed_from_committed_files_alone(root):
    shutil.rmtree(root / "data")
    shutil.rmtree(root / ".cache")
    found = verify.write_all(DATASET)
    assert set(verify.verify(DATASET)["verdict"]) == {"OK"}
    assert set(found["tables/scores.csv"]["system"]) == {"labels", "bm25", "random", "tfidf"}
    correlation = found["tables/rank_correlation.csv"].set_index("part")
    assert set(correlation.index) == {"valid", "test"}
    assert (correlation["all_systems"] >= correlation["systems"]).all()
    assert correlation["all_tau"].between(-1, 1).all()
    per_task = pd.read_csv(store.folder(DATASET) / "per_task.csv.xz").query("system == 'tfidf'")
    table = pd.read_csv(store.folder(DATASET) / "tables" / "scores.csv")
    mean = table.query("system == 'tfidf' and part == 'test' and metric == 'ndcg@10'")["mean"].iloc[0]
    test = per_task.merge(store.read_table(DATASET, "topics").query("part == 'test'"), on="task_id")
    assert test["ndcg@10"].mean() == pytest.approx(mean, rel=1e-4)
    # A changed grade, a lost table and a pool without one of its pairs are found.
    path = store.file(DATASET, "judgements")
    table, listed = pd.read_csv(path, dtype=str), store.read_runs(DATASET)["labels"].iloc[0]
    row = (table["task_id"] == str(listed["task_id"])) & (table["server_id"] == str(listed["server_id"]))
    table.loc[row, "final"] = str((int(table.loc[row, "final"].iloc[0]) + 1) % 3)
    table.to_csv(path, index=False)
    (store.folder(DATASET) / "tables" / "confusion.csv").unlink()
    write_csv(store.file(DATASET, "pool"), store.read_table(DATASET, "pool").iloc[:-1])
    found = verify.verify(DATASET).set_index("file")["verdict"]
    wrong = ["judgements.csv", "pool.csv.xz", "provenance.csv.xz", "qrels/all.txt", "croissant.json"]
    assert (found[[*wrong, "tables/scores.csv", "tables/label_precision.csv"]] == "FAIL").all()
    assert found["tables/confusion.csv"] == "MISSING"


def test_the_committed_collection_can_be_computed_again():
    found = verify.verify("task2mcp")
    assert set(found["verdict"]) == {"OK"}, found[found["verdict"] != "OK"]
    assert {"tables/scores.csv", "qrels/test.txt", "croissant.json", "judgements.csv"} <= set(found["file"])


def test_the_committed_collection_without_released_labels_can_be_checked():
    found = verify.verify("open")
    assert set(found["file"]) == {"judgements.csv", "pool.csv.xz", "provenance.csv.xz"}
    assert set(found["verdict"]) == {"OK"}, found[found["verdict"] != "OK"]


@pytest.mark.usefixtures("few_draws")
def test_commands_run(root):
    work, runner = store.work(DATASET) / "round-1", CliRunner()
    asked = [(["pool"], "round 1"), (["collect", str(work / "pass-1"), "--check"], "complete")]
    asked += [(["collect", str(work), "--judge", "simulated"], "0 wait for a third pass")]
    asked += [(["batches", "--pass", "again"], "batches in"), (["evaluate"], "kappa_quadratic")]
    asked += [(["evaluate", "--check"], "OK")]
    for words, expected in asked:
        result = runner.invoke(app, [*words, "--dataset", DATASET], catch_exceptions=False)
        assert result.exit_code == 0, words
        assert expected in result.stdout
