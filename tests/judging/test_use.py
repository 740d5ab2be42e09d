"""What is judged, in the analyses of use: figures, costs, confidence in a first answer."""

import numpy as np
import pandas as pd
import pytest

from study.analysis.framework import Context, all_analyses
from study.analysis.usefulness import calibration
from study.analysis.usefulness.figures import label_precision, labels_against_judgements
from study.base import paths
from study.base.errors import StudyError, UnavailableError
from study.base.files import write_csv
from study.config.compose import load
from study.judging import evaluate, store
from study.judging.collection import Collection
from tests.rows import put_row

DATASET = "synthetic"


def test_figures_draw_their_tables():
    names = [f"{one}{end}" for one in ("useful", "core") for end in ("", "_ci_low", "_ci_high")]
    rows = [("all", "all", 4, 8, 0.5, 0.25, 0.75, 0.25, 0.0, 0.5)]
    rows += [("position", "1", 4, 4, 0.75, 0.5, 1.0, 0.5, 0.25, 0.75)]
    rows += [("position", "2", 4, 4, 0.25, 0.0, 0.5, 0.0, 0.0, 0.0)]
    rows += [("control", "all", 4, 20, 0.05, 0.0, 0.1, 0.0, 0.0, 0.0)]
    table = pd.DataFrame(rows, columns=["scope", "name", "topics", "pairs", *names])
    panel = label_precision(table, "Question: being useful.").axes[0]
    drawn = {tuple(line.get_ydata()) for line in panel.get_lines()}
    assert {(75, 25), (50, 0), (50, 50)} <= drawn  # useful, core, useful at all positions
    bars = panel.collections[0].get_segments()
    assert [(bar[0][1], bar[1][1]) for bar in bars] == [(50, 100), (0, 50)]
    views = pd.DataFrame({"system": ["a", "b"], "by_labels": [0.5, 0.1], "by_judgements": [0.2, 0.6]})
    for name in ("by_labels", "by_judgements"):
        views[f"{name}_ci_low"], views[f"{name}_ci_high"] = views[name] - 0.05, views[name] + 0.05
    correlation = {"topics": 7, "systems": 2, "tau": -1.0, "p": 1.0, "ci_low": -1.0, "ci_high": 0.5}
    families = pd.DataFrame({"family": ["with_labels", "without_labels"], "systems": 1, "tau": [0.75, 0.25], "p": 0.5})
    kinds = {"a": "with_labels", "b": "without_labels"}
    figure = labels_against_judgements(views, correlation, families, {"b": "System B"}, kinds, released=0.3)
    lines = {line.get_label(): line for line in figure.axes[0].get_lines()}
    # The most useful comes first.
    assert lines["1 System B"].get_xydata()[0].tolist() == [0.1, 0.6]
    assert 0.3 in {line.get_ydata()[0] for line in lines.values()}
    assert len({(lines[name].get_marker(), lines[name].get_color()) for name in ("1 System B", "2 a")}) == 2


def test_costs_join_records_judgements_and_latencies(root, few_draws):
    collection = Collection.load(DATASET)
    for name, frame in evaluate.score_tables(collection, evaluate.all_runs(DATASET)).items():
        write_csv(store.folder(DATASET) / name, frame)
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


def test_first_answers_meet_their_grades(shared_root, monkeypatch):
    def unknowing(texts, **options):
        """Sentence vectors that know nothing, without the encoder."""
        found = np.random.default_rng(len(texts)).normal(size=(len(texts), 8)).astype(np.float32)
        return found / np.linalg.norm(found, axis=1, keepdims=True)

    for module in ("study.analysis.usefulness.calibration", "study.advisor.retrieval.field_dense"):
        monkeypatch.setattr(f"{module}.encode", unknowing)
    # Vectors that know nothing name servers that nobody judged.
    for system, reason in (("bm25", "no scores that are comparable"), ("field_dense", "topic is not judged")):
        with pytest.raises(StudyError, match=reason):
            calibration.confidence(DATASET, system)
    runs = store.read_runs(DATASET)["tfidf"].query("rank == 1").set_index("task_id")["server_id"]
    ids = pd.read_parquet(paths.prepared(DATASET) / "servers.parquet")["id"]
    place_of = pd.Series(np.arange(len(ids)), index=ids)
    topics = store.read_table(DATASET, "topics").groupby("part")["task_id"]
    answers = iter([place_of[runs[topics.get_group(part).to_numpy()]].to_numpy() for part in ("valid", "test")])

    def top_k(scores, k, order):
        ranked = np.tile(np.arange(k), (len(scores), 1))
        ranked[:, 0] = next(answers)
        return ranked, np.tile(np.arange(k, 0, -1, dtype=np.float32), (len(scores), 1))

    monkeypatch.setattr(calibration, "top_k", top_k)
    found = calibration.confidence(DATASET, "field_dense")
    judged = store.final(DATASET).set_index(store.PAIR)["final"]
    assert found["grade"].tolist() == [judged[pair] for pair in found[store.PAIR].itertuples(index=False, name=None)]
    assert found["server_id"].tolist() == runs[found["task_id"]].tolist()
    assert (found["margin"] == 1).all()
    assert calibration.threshold(found["score"].to_numpy(float), (found["grade"] >= 1).to_numpy(), 0.0) == 10
