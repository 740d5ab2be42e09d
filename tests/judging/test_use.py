"""What is judged, in the analyses of use: costs, comparisons, confidence in a first answer."""

import numpy as np
import pandas as pd
import pytest

from study.analysis.framework import Context, all_analyses
from study.analysis.usefulness import answering, choosing
from study.base import paths
from study.base.errors import StudyError, UnavailableError
from study.base.files import write_csv
from study.config.compose import load
from study.judging import evaluate, store, verify
from study.judging.collection import Collection
from tests.judging.conftest import DATASET
from tests.rows import put_row


def test_costs_join_records_judgements_and_latencies(root, few_draws):
    collection = Collection.load(DATASET)
    verify.write(store.folder(DATASET), verify.named(evaluate.score_tables(collection, evaluate.all_runs(DATASET))))
    analysis = all_analyses()["usefulness/pareto"]
    study = Context(analysis, load([f"dataset={DATASET}"]))
    with pytest.raises(UnavailableError, match="no request was timed"):
        analysis.compute(study)
    seconds = {"milliseconds": 2.0, "p5": 1.0, "p95": 3.0, "cpu": 1.5, "seconds_fit": 0.5}
    timed = pd.DataFrame({"system": ["bm25", "labels"]}).assign(**seconds)
    timed = pd.concat([timed, timed.head(1).assign(cpu=9.0)])  # the saved model of the same system, further down
    write_csv(paths.results(DATASET) / "usefulness" / "latency.csv", timed)
    table = analysis.compute(study)["pareto"]
    # TF-IDF has neither a record nor a latency, and the released lists are no system.
    assert table["system"].tolist() == ["bm25"]
    row = table.iloc[0]
    assert [row["seconds_fit"], row["milliseconds"], row["cpu"]] == [0.5, 2.0, 1.5]
    scores = pd.read_csv(store.folder(DATASET) / "tables" / "scores.csv").set_index(["system", "part", "metric"])
    assert row["by_judgements"] == scores.loc[("bm25", "test", "ndcg@10"), "mean"]
    assert pd.isna(row["by_labels"])
    assert (row["front_by_judgements_cpu"], row["front_by_labels_cpu"]) == (True, False)
    values = pd.DataFrame({"task_id": [1, 2], "seed": 1, "ndcg@10": [0.2, 0.4]})
    seeds = [{"seed": seed, "seconds_fit": 2.0 * seed, "parameters": 7} for seed in (1, 2)]
    put_row(DATASET, "cold", "tfidf", values, record={"seeds": seeds})
    table = analysis.compute(study)["pareto"].set_index("system")
    assert sorted(table.index) == ["bm25", "tfidf"]
    costs = ["by_labels", "seconds_fit", "parameters", "milliseconds"]
    assert table.loc["tfidf", costs].tolist() == pytest.approx([0.3, 3.0, 7.0, np.nan], nan_ok=True)
    assert table.loc["bm25", ["seconds_fit", "milliseconds"]].tolist() == [0.5, 2.0]


def test_a_system_is_compared_with_every_other_judged_one(shared_root, monkeypatch):
    values = choosing.judged_values(DATASET, "test", ["tfidf"])
    assert set(values) == set(store.read_runs(DATASET))
    with pytest.raises(StudyError, match="answers of nothing are not judged"):
        choosing.judged_values(DATASET, "test", ["nothing"])
    frames = {"field_dense": values["tfidf"], "random": values["random"], "field_dense_mpnet": values["labels"]}
    monkeypatch.setattr(choosing, "judged_values", lambda dataset, part, needed: frames)
    analysis = all_analyses()["usefulness/compare"]
    tables = analysis.compute(Context(analysis, load([f"dataset={DATASET}"])))
    assert {name: set(table["reference"]) for name, table in tables.items()} == {
        "judged_test": {"field_dense"},
        "judged_fresh": {"field_dense_mpnet"},
    }
    assert tables["judged_test"].set_index("system").loc["random", "diff"] < 0


def test_first_answers_meet_their_grades(shared_root, monkeypatch):
    def unknowing(texts, **options):
        """Sentence vectors that know nothing, without the encoder."""
        vectors = np.random.default_rng(len(texts)).normal(size=(len(texts), 8)).astype(np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    for module in ("study.analysis.usefulness.answering", "study.advisor.retrieval.field_dense"):
        monkeypatch.setattr(f"{module}.encode", unknowing)
    # Vectors that know nothing name servers that nobody judged.
    with pytest.raises(StudyError, match="topic is not judged"):
        answering.confidence(DATASET)
    runs = store.read_runs(DATASET)["tfidf"].query("rank == 1").set_index("task_id")["server_id"]
    ids = pd.read_parquet(paths.prepared(DATASET) / "servers.parquet")["id"]
    place_of = pd.Series(np.arange(len(ids)), index=ids)
    topics = store.read_table(DATASET, "topics").groupby("part")["task_id"]
    answers = iter([place_of[runs[topics.get_group(part).to_numpy()]].to_numpy() for part in ("valid", "test")])

    def top_k(scores, k, order):
        ranked = np.tile(np.arange(k), (len(scores), 1))
        ranked[:, 0] = next(answers)
        return ranked, np.tile(np.arange(k, 0, -1, dtype=np.float32), (len(scores), 1))

    monkeypatch.setattr(answering, "top_k", top_k)
    table = answering.confidence(DATASET)
    judged = store.final(DATASET).set_index(store.PAIR)["final"]
    assert table["grade"].tolist() == [judged[pair] for pair in table[store.PAIR].itertuples(index=False, name=None)]
    assert table["server_id"].tolist() == runs[table["task_id"]].tolist()
    assert (table[["score", "margin", "lead"]] == [10, 1, 9]).all(axis=None)
