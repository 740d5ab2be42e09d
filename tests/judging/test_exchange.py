"""A run of one's own on the collection, and the collection in other programs."""

import ir_datasets
import ir_measures
import numpy as np
import pandas as pd
import pytest

from study.base.errors import StudyError
from study.judging import exchange, store
from study.judging.collection import Collection
from study.judging.evaluate import per_task
from tests.judging.conftest import useful_judgements

DATASET = "synthetic"


def test_the_pooled_runs_are_read_by_another_program_and_score_as_here(shared_root, tmp_path):
    exchange.export(Collection.load(DATASET), tmp_path)
    files = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert files == sorted(f"{name}.trec" for name in store.read_runs(DATASET))
    lines = [line for line in (tmp_path / "runs" / "bm25.trec").read_text().splitlines() if not line.startswith("#")]
    (tmp_path / "plain.trec").write_text("\n".join(lines))
    found = exchange.submitted(Collection.load(DATASET), tmp_path / "runs" / "bm25.trec").set_index("part")
    for part in ("valid", "test"):
        qrels = list(ir_measures.read_trec_qrels(str(tmp_path / "qrels" / f"{part}.txt")))
        measure = ir_measures.parse_measure("nDCG(dcg='exp-log2')@10")
        run = list(ir_measures.read_trec_run(str(tmp_path / "plain.trec")))
        values = {m.query_id: m.value for m in ir_measures.iter_calc([measure], qrels, run)}
        useful = {q.query_id for q in qrels if q.relevance > 0}
        assert found.loc[part, "n"] == len(useful)
        assert found.loc[part, "ndcg@10"] == pytest.approx(np.mean([values[query] for query in useful]))
    assert (found["holes"] == 0).all()
    assert (found["low"] == found["high"]).all()


def test_the_exported_collection_is_a_data_set_of_another_library(shared_root, tmp_path):
    exchange.export(Collection.load(DATASET), tmp_path)
    names = exchange.register(tmp_path, "toy-judged")
    assert "toy-judged/test" in names
    data = ir_datasets.load("toy-judged/test")
    judged = store.final(DATASET).merge(store.read_table(DATASET, "topics").query("part == 'test'"), on="task_id")
    grades = {(q.query_id, q.doc_id): q.relevance for q in data.qrels_iter()}
    assert grades == {(str(t), str(s)): g for t, s, g in judged[[*store.PAIR, "final"]].to_numpy().tolist()}
    texts = {query.query_id: query.text for query in data.queries_iter()}
    assert {task for task, _ in grades} <= set(texts)
    assert all(texts.values())
    assert {server for _, server in grades} <= {document.doc_id for document in data.docs_iter()}


def test_holes_widen_the_bounds_and_missing_topics_count_zero(shared_root, tmp_path):
    collection = Collection.load(DATASET)
    topic = int(useful_judgements()["task_id"].iloc[0])
    part = collection.topics.set_index("task_id").loc[topic, "part"]
    best = useful_judgements().query("task_id == @topic").sort_values("final", ascending=False)["server_id"].iloc[0]
    run = tmp_path / "run.trec"
    judged = set(store.final(DATASET).query("task_id == @topic")["server_id"])
    other = next(server for server in store.read_table(DATASET, "lengths")["server_id"] if server not in judged)
    run.write_text(f"{topic} Q0 {best} 2 0.5 me\n{topic} Q0 {other} 1 0.9 me\n")
    row = exchange.submitted(Collection.load(DATASET), run).set_index("part").loc[part]
    assert row["answered"] == 1
    assert row["holes"] == 0.5
    assert row["ndcg@10"] == row["low"] < row["high"]
    own = pd.DataFrame({"task_id": topic, "seed": 0, "rank": [1, 2], "server_id": [other, best]})
    assert row["ndcg@10"] * row["n"] == pytest.approx(per_task(collection, own)["ndcg@10"].iloc[0])


def test_the_leaderboard_line_holds_no_foreign_marks():
    row = {"tag": "<b>|x", "collection": "1", "part": "test", "n": 3, "holes": 0.5, "ndcg@10": 0.25}
    row |= dict.fromkeys(("ci_low", "ci_high", "low", "high"), 0.5)
    assert exchange.leaderboard_line(row) == "| bx | 1 | test | 3 | 0.250 [0.500, 0.500] | 50.0% | 0.500 to 0.500 |"


@pytest.mark.parametrize(
    ("text", "reason", "row"),
    [
        ("1 Q0 2 1 0.5 a\n1 Q0 3\n", "not a line of a run", "line 2"),
        ("1 Q0 2 1 nan a\n", "not a finite number", "line 1"),
        ("1 Q0 2 1 0.5 a\n1 Q0 3 2 0.4 b\n", "holds two runs: a, b", "line 2"),
        ("# made by hand\n1 Q0 2 1 0.5 a\n1 Q0 999999 2 0.4 a\n", "there is no server 999999", "line 3"),
        ("1 Q0 2 1 0.5 a\n1 Q0 2 2 0.4 a\n", "server 2 stands twice for task 1", None),
        ("7 Q0 2 1 0.5 a\n", "answers none of the topics", None),
        ("", "answers none of the topics", None),
    ],
)
def test_a_wrong_run_is_refused(tmp_path, text, reason, row):
    path = tmp_path / "run.trec"
    path.write_text(text)
    with pytest.raises(StudyError, match=reason) as caught:
        exchange.read_trec(path, pd.DataFrame({"task_id": [1]}), {2, 3})
    assert caught.value.row == row


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_run_may_begin_with_a_byte_order_mark(tmp_path, encoding):
    (path := tmp_path / "run.trec").write_text("1 Q0 2 1 0.5 a\n1 Q0 3 2 0.4 a\n", encoding=encoding)
    run, tag = exchange.read_trec(path, pd.DataFrame({"task_id": [1]}), {2, 3})
    assert (run["server_id"].tolist(), tag) == ([2, 3], "a")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "latin-1"])
def test_a_run_in_another_encoding_ends_with_code_two(shared_root, tmp_path, call, encoding):
    (path := tmp_path / "run.trec").write_text("1 Q0 2 1 0.5 ä\n", encoding=encoding)
    code, _, err = call("judge", "submit", str(path), "--dataset", DATASET)
    assert (code, "run.trec" in err, "not UTF-8 text" in err) == (2, True, True)


def test_every_further_judgement_changes_the_version(root):
    before = Collection.load(DATASET).version
    assert before.startswith("1.0.0+")
    judged = pd.read_csv(store.file(DATASET, "judgements"))
    judged[:-1].to_csv(store.file(DATASET, "judgements"), index=False)
    assert Collection.load(DATASET).version != before
