"""What is released can be computed again, is read by other programs, and scores runs of others; the commands."""

import shutil

import ir_datasets
import ir_measures
import numpy as np
import pandas as pd
import pytest
import yaml

from study.base.errors import StudyError
from study.base.files import write_csv
from study.judging import croissant, exchange, store, verify
from study.judging.collection import Collection
from study.judging.evaluate import per_task
from tests.judging.conftest import DATASET


def test_the_exported_collection_is_read_by_other_programs_and_scores_as_here(collection, tmp_path):
    exchange.export(collection, tmp_path)
    files = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert files == sorted(f"{name}.trec" for name in store.read_runs(DATASET))
    lines = [line for line in (tmp_path / "runs" / "bm25.trec").read_text().splitlines() if not line.startswith("#")]
    (tmp_path / "plain.trec").write_text("\n".join(lines))
    scored = exchange.submitted(collection, tmp_path / "runs" / "bm25.trec").set_index("part")
    read = {part: list(ir_measures.read_trec_qrels(str(tmp_path / f"qrels/{part}.txt"))) for part in ("valid", "test")}
    for part, qrels in read.items():
        measure = ir_measures.parse_measure("nDCG(dcg='exp-log2')@10")
        run = list(ir_measures.read_trec_run(str(tmp_path / "plain.trec")))
        values = {m.query_id: m.value for m in ir_measures.iter_calc([measure], qrels, run)}
        useful = {q.query_id for q in qrels if q.relevance > 0}
        assert scored.loc[part, "n"] == len(useful)
        assert scored.loc[part, "ndcg@10"] == pytest.approx(np.mean([values[query] for query in useful]))
    assert (scored["holes"] == 0).all()
    assert (scored["low"] == scored["high"]).all()
    everything = {(int(q.query_id), int(q.doc_id)): q.relevance for qrels in read.values() for q in qrels}
    judged = store.final(DATASET)
    assert everything == {(t, s): g for t, s, g in judged[[*store.PAIR, "final"]].astype(int).to_numpy().tolist()}
    # The same collection as a data set of another library.
    assert "toy-judged/test" in exchange.register(tmp_path, "toy-judged")
    data = ir_datasets.load("toy-judged/test")
    grades = {(q.query_id, q.doc_id): q.relevance for q in data.qrels_iter()}
    assert grades == {(q.query_id, q.doc_id): q.relevance for q in read["test"]}
    texts = {query.query_id: query.text for query in data.queries_iter()}
    assert ({task for task, _ in grades} <= set(texts), all(texts.values())) == (True, True)
    assert {server for _, server in grades} <= {document.doc_id for document in data.docs_iter()}


def test_holes_widen_the_bounds_and_missing_topics_count_zero(collection, tmp_path):
    finals = store.final(DATASET)
    best = finals.query("final >= 1").sort_values("final", ascending=False).iloc[0]
    topic, server = int(best["task_id"]), int(best["server_id"])
    part = collection.topics.set_index("task_id").loc[topic, "part"]
    judged = set(finals.query("task_id == @topic")["server_id"])
    other = next(one for one in store.read_table(DATASET, "lengths")["server_id"] if one not in judged)
    run = tmp_path / "run.trec"
    run.write_text(f"{topic} Q0 {server} 2 0.5 me\n{topic} Q0 {other} 1 0.9 me\n")
    row = exchange.submitted(collection, run).set_index("part").loc[part]
    assert (row["answered"], row["holes"]) == (1, 0.5)
    assert row["ndcg@10"] == row["low"] < row["high"]
    answers = pd.DataFrame({"task_id": topic, "seed": 0, "rank": [1, 2], "server_id": [other, server]})
    assert row["ndcg@10"] * row["n"] == pytest.approx(per_task(collection, answers)["ndcg@10"].iloc[0])
    # A line of a table of others holds no foreign marks.
    row = {"tag": "<b>|x", "collection": "1", "part": "test", "n": 3, "holes": 0.5, "ndcg@10": 0.25}
    row |= dict.fromkeys(("ci_low", "ci_high", "low", "high"), 0.5)
    assert exchange.leaderboard_line(row) == "| bx | 1 | test | 3 | 0.250 [0.500, 0.500] | 50.0% | 0.500 to 0.500 |"
    assert "| no answer |" in exchange.leaderboard_line(row | {"holes": np.nan})


WRONG = [("1 Q0 2 1 0.5 a\n1 Q0 3\n", "not a line of a run", "line 2"), ("", "answers none of the topics", None)]
WRONG += [("1 Q0 2 1 nan a\n", "not a finite number", "line 1"), ("7 Q0 2 1 0.5 a\n", "none of the topics", None)]
WRONG += [("1 Q0 2 1 0.5 a\n1 Q0 3 2 0.4 b\n", "holds two runs: a, b", "line 2")]
WRONG += [("# made by hand\n1 Q0 2 1 0.5 a\n1 Q0 999999 2 0.4 a\n", "there is no server 999999", "line 3")]
WRONG += [("1 Q0 2 1 0.5 a\n1 Q0 2 2 0.4 a\n", "server 2 stands twice for task 1", None)]


@pytest.mark.parametrize(("text", "reason", "row"), WRONG)
def test_a_wrong_run_is_refused(tmp_path, text, reason, row):
    path = tmp_path / "run.trec"
    path.write_text(text)
    with pytest.raises(StudyError, match=reason) as caught:
        exchange.read_trec(path, pd.DataFrame({"task_id": [1]}), {2, 3})
    assert caught.value.row == row


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "latin-1"])
def test_a_run_is_utf_8_with_or_without_a_byte_order_mark(shared_root, tmp_path, call, encoding):
    path = tmp_path / "run.trec"
    path.write_text("1 Q0 2 1 0.5 ä\n1 Q0 3 2 0.4 ä\n", encoding=encoding)
    if encoding.startswith("utf-8"):
        run, tag = exchange.read_trec(path, pd.DataFrame({"task_id": [1]}), {2, 3})
        assert (run["server_id"].tolist(), tag) == ([2, 3], "ä")
    else:
        code, _, err = call("judge", "submit", str(path), "--dataset", DATASET)
        assert (code, "run.trec" in err, "not UTF-8 text" in err) == (2, True, True)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_croissant_is_valid_and_its_records_are_the_judgements(root):
    import mlcroissant

    settings = yaml.safe_load((root / "conf/judging/croissant.yaml").read_text())
    for name, columns in store.COLUMNS.items():
        if file := settings["files"].get(f"{name}.csv"):
            assert list(file["columns"]) == columns
    verify.write(store.folder(DATASET), {"croissant.json": croissant.judged(Collection.load(DATASET))})
    described = mlcroissant.Dataset(jsonld=str(store.folder(DATASET) / "croissant.json"))
    assert not described.metadata.issues.errors
    # The date is that of the release of the project, which this file does not know.
    assert all("datePublished" in warning for warning in described.metadata.issues.warnings)
    licence = settings["facts"]["license"]
    assert described.metadata.license in (licence, [licence])
    record, first = next(iter(described.records(record_set="judgements"))), store.final(DATASET).iloc[0]
    for column in ("task_id", "final"):
        assert int(record[f"judgements/{column}"]) == first[column]


@pytest.mark.usefixtures("few_draws")
def test_every_number_is_computed_from_committed_files_alone(root):
    for folder in ("data", ".cache"):
        shutil.rmtree(root / folder)
    tables = verify.write_all(DATASET)
    assert set(verify.verify(DATASET)["verdict"]) == {"OK"}
    assert set(tables["scores"]["system"]) == {"labels", "bm25", "random", "tfidf"}
    correlation = tables["rank_correlation"].set_index("part")
    assert set(correlation.index) == {"valid", "test"}
    assert (correlation["all_systems"] >= correlation["systems"]).all()
    assert correlation["all_tau"].between(-1, 1).all()
    per_task = pd.read_csv(store.folder(DATASET) / "per_task.csv.xz").query("system == 'tfidf'")
    table = pd.read_csv(store.folder(DATASET) / "tables" / "scores.csv")
    mean = table.query("system == 'tfidf' and part == 'test' and metric == 'ndcg@10'")["mean"].iloc[0]
    test = per_task.merge(store.read_table(DATASET, "topics").query("part == 'test'"), on="task_id")
    assert test["ndcg@10"].mean() == pytest.approx(mean, rel=1e-4)
    # A changed grade, a lost table and a pool without one of its pairs are found; the version is another.
    path, before = store.file(DATASET, "judgements"), Collection.load(DATASET).version
    table, listed = pd.read_csv(path, dtype=str), store.read_runs(DATASET)["labels"].iloc[0]
    row = (table["task_id"] == str(listed["task_id"])) & (table["server_id"] == str(listed["server_id"]))
    table.loc[row, "final"] = str((int(table.loc[row, "final"].iloc[0]) + 1) % 3)
    table.to_csv(path, index=False)
    (store.folder(DATASET) / "tables" / "confusion.csv").unlink()
    write_csv(store.file(DATASET, "pool"), store.read_table(DATASET, "pool").iloc[:-1])
    verdicts = verify.verify(DATASET).set_index("file")["verdict"]
    wrong = ["judgements.csv", "pool.csv.xz", "provenance.csv.xz", "qrels/all.txt", "croissant.json"]
    assert (verdicts[[*wrong, "tables/scores.csv", "tables/label_precision.csv"]] == "FAIL").all()
    assert verdicts["tables/confusion.csv"] == "MISSING"
    assert before.startswith("1.0.0+")
    assert Collection.load(DATASET).version != before


@pytest.mark.usefixtures("few_draws")
def test_commands_run(root, call):
    work = store.work(DATASET) / "round-1"
    commands = [(["pool"], "round 1"), (["collect", str(work / "pass-1"), "--check"], "complete")]
    commands += [(["collect", str(work), "--judge", "simulated"], "0 wait for a third pass")]
    commands += [(["batches", "--pass", "again"], "batches in"), (["evaluate"], "kappa_quadratic")]
    commands += [(["evaluate", "--check"], "OK")]
    for words, expected in commands:
        code, out, _ = call("judge", *words, "--dataset", DATASET)
        assert (code, expected in out) == (0, True), words
