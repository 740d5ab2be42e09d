"""The notebooks on the judged collection and on use: on planted tables, without any, and with a wrong number."""

import shutil

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from scipy.special import expit

from study.analysis.framework import ANALYSES, Context, load_settings, settings_file
from study.analysis.usefulness import calibration, choosing, curves
from study.analysis.usefulness.figures import label_precision, labels_against_judgements
from study.base import paths
from study.base.errors import StudyError, UnavailableError
from study.base.files import write_csv
from study.config.compose import load
from study.judging import evaluate, store, verify
from study.judging.collection import Collection
from tests.judging.conftest import change_yaml, drawn, shown
from tests.rows import put_row

DATASET = "synthetic"


def score_tables():
    collection = Collection.load(DATASET)
    return evaluate.score_tables(collection, evaluate.all_runs(DATASET))


def row_of(text, *cells):
    """The cells of the first table row that begins with the given ones."""
    return next(line for line in text.splitlines() if line.startswith("| " + " | ".join(cells) + " |")).split(" | ")


@pytest.mark.usefixtures("few_draws")
def test_shows_the_planted_collection_and_refuses_unjudged_answers(root, tmp_path):
    runs = store.read_runs(DATASET)
    runs["tfidf"]["server_id"] += 1_000_000  # nobody judged these ids, as no server has them
    store.write_runs(DATASET, runs)
    verify.write_all(DATASET)
    text = shown("05b_judged", tmp_path)
    judged = store.final(DATASET)
    assert row_of(text, "all")[1] == str(len(store.read_table(DATASET, "topics"))) == "48"
    labels = runs["labels"].merge(judged, on=store.PAIR)
    useful = (labels["final"] > 0).groupby(labels["task_id"]).mean().mean()
    assert row_of(text, "all labels")[4].startswith(f"{useful:.1%} (")
    scored = text[text.index("Means (95 % bootstrap") :]
    assert row_of(scored, "TF-IDF cosine")[-1] == "no |"
    assert row_of(scored, "BM25")[-1] == "yes |"
    # T2MRec is not in this pool, so the released lists are what the systems are compared with.
    compared = text[text.index("Reference: Released lists.") :]
    assert "BM25" in compared
    assert "TF-IDF" not in compared
    assert drawn() == {"judged_against_labels", "label_precision_by_position"}


def test_ends_well_without_a_collection(root, tmp_path):
    shutil.rmtree(store.folder(DATASET))
    assert shown("05b_judged", tmp_path).startswith("There is no judged collection of ")
    assert not paths.figures(DATASET).exists()


@pytest.mark.usefixtures("few_draws")
@pytest.mark.parametrize(("table", "column"), [("agreement", "kappa_quadratic"), ("rank_correlation", "tau")])
def test_a_wrong_number_in_a_table_stops_it(root, tmp_path, table, column):
    verify.write_all(DATASET)
    path = store.folder(DATASET) / "tables" / f"{table}.csv"
    content = pd.read_csv(path)
    content[column] -= 0.01
    content.to_csv(path, index=False)
    with pytest.raises(StudyError, match="AssertionError"):
        shown("05b_judged", tmp_path)


def test_figure_of_label_precision_draws_the_table():
    intervals = [f"{one}{end}" for one in ("useful", "core") for end in ("", "_ci_low", "_ci_high")]
    rows = [
        ("all", "all", 4, 8, 0.5, 0.25, 0.75, 0.25, 0.0, 0.5),
        ("position", "1", 4, 4, 0.75, 0.5, 1.0, 0.5, 0.25, 0.75),
        ("position", "2", 4, 4, 0.25, 0.0, 0.5, 0.0, 0.0, 0.0),
        ("control", "all", 4, 20, 0.05, 0.0, 0.1, 0.0, 0.0, 0.0),
    ]
    table = pd.DataFrame(rows, columns=["scope", "name", "topics", "pairs", *intervals])
    figure = label_precision(table, "Question: being useful.")
    panel = figure.axes[0]
    marks = {line.get_label(): list(line.get_ydata()) for line in panel.get_lines()}
    assert marks["useful (grade 1 or 2)"] == [75, 25]
    assert marks["core (grade 2)"] == [50, 0]
    assert marks["useful, all positions"] == [50, 50]
    bars = panel.collections[0].get_segments()
    assert [(bar[0][1], bar[1][1]) for bar in bars] == [(50, 100), (0, 50)]
    texts = " ".join(text.get_text() for text in figure.findobj(mpl.text.Text))
    assert "8 released servers of 4 topics; 20 servers" in texts


def test_figure_of_both_views_lists_the_most_useful_first():
    views = pd.DataFrame({"system": ["a", "b"], "by_labels": [0.5, 0.1], "by_judgements": [0.2, 0.6]})
    for name in ("by_labels", "by_judgements"):
        views[f"{name}_ci_low"], views[f"{name}_ci_high"] = views[name] - 0.05, views[name] + 0.05
    correlation = {"topics": 7, "systems": 2, "tau": -1.0, "p": 1.0, "ci_low": -1.0, "ci_high": 0.5}
    families = pd.DataFrame({"family": ["with_labels", "without_labels"], "systems": 1, "tau": [0.75, 0.25], "p": 0.5})
    kinds = {"a": "with_labels", "b": "without_labels"}
    figure = labels_against_judgements(views, correlation, families, {"b": "System B"}, kinds, released=0.3)
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    shown = ["sees no label", "1 System B", "learns the labels", "2 a", "the released lists as answers"]
    assert [name for name in names if name] == shown
    lines = {line.get_label(): line for line in figure.axes[0].get_lines()}
    assert lines["1 System B"].get_xydata()[0].tolist() == [0.1, 0.6]
    assert lines["the released lists"].get_ydata()[0] == 0.3
    looks = {(lines[name].get_marker(), lines[name].get_color()) for name in ("1 System B", "2 a")}
    assert len(looks) == 2
    texts = " ".join(text.get_text() for text in figure.findobj(mpl.text.Text)).replace("\n", " ")
    assert all(tau in texts for tau in ("-1.00 (p = 1", "0.75 (p = 0.5)", "0.25 (p = 0.5)"))


CHAIN = ["random", "tfidf", "bm25"]


def place(name):
    return paths.results(DATASET) / "usefulness" / f"{name}.csv"


def settings(kind, **changes):
    """Change a settings file of the root, and read it."""
    change_yaml(settings_file(kind), **changes)
    return load_settings(kind)


def unknowing(texts, **options):
    """Sentence vectors that know nothing, without the encoder."""
    found = np.random.default_rng(len(texts)).normal(size=(len(texts), 8)).astype(np.float32)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def planted_root(prepared_root, tmp_path_factory):
    """Every table of the notebook on use, from the simulated collection and from drawn signals."""
    copy = tmp_path_factory.mktemp("planted") / "study"
    shutil.copytree(prepared_root, copy, symlinks=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("T2M_ROOT", str(copy))
        patch.setattr(evaluate, "NOISE_RESAMPLES", 5)
        for name, frame in score_tables().items():
            write_csv(store.folder(DATASET) / name, frame)
        for name, frame in planted_tables().items():
            write_csv(place(name), frame)
    return copy


@pytest.fixture
def planted(planted_root, tmp_path, monkeypatch):
    """A private copy of the planted root, in force for the test."""
    copy = tmp_path / "study"
    shutil.copytree(planted_root, copy, symlinks=True)
    monkeypatch.setenv("T2M_ROOT", str(copy))


def planted_tables():
    supervision = {"start": "random", "end": "bm25", "systems": ["tfidf", "t2mrec_field_dense"], "metric": "ndcg@10"}
    chosen = settings(choosing.Steps, steps=CHAIN, supervision=supervision)
    values = {part: choosing.judged_values(DATASET, part) for part in ("valid", "test")}
    steps = {part: choosing.one_at_a_time(own, CHAIN, chosen.metrics, seed=0) for part, own in values.items()}
    tables = {"steps": pd.concat([own.assign(part=part) for part, own in steps.items()])}
    tables |= {"supervision": choosing.supervision(values, chosen.supervision, seed=0)}
    topics = store.read_table(DATASET, "topics").sort_values("part", ascending=False)
    signals = np.random.default_rng(0).normal(size=(len(topics), 4))
    asked = topics[["task_id", "part"]].assign(server_id=1, grade=(expit(3 * signals[:, 0]) > 0.5).astype(int))
    asked = asked.assign(**dict(zip(("score", "margin", "lead", "cosine"), signals.T.round(3), strict=True)))
    quick = settings(calibration.Calibration, resamples=200)
    tables |= {"confidence": asked} | calibration.calibration_tables(asked, quick)
    learned = pd.DataFrame({"system": "bm25", "share": [0.5] * 3 + [1.0] * 3, "draw": 1, "task_id": [0, 1, 2] * 2})
    learned = learned.assign(**{"ndcg@10": learned["share"] / 2, "recall@10": 0.1})
    words = pd.DataFrame({"system": "words", "task_id": [1, 2, 3], "ndcg@10": 0.2, "recall@10": 0.2})
    chain = pd.concat([words, words.assign(**{"system": "words and habits", "ndcg@10": 0.5, "recall@10": 0.5})])
    tables |= {"label_steps": curves.label_step_table(chain, seed=0)}
    moved = {"setting": "elsewhere", "system": ["field_dense", "minilm"], "queries": 9, "ndcg@10": [0.3, 0.4]}
    moved |= {"diff": [0.0, -0.1], "diff_ci_low": [0.0, -0.2], "diff_ci_high": [0.0, -0.05]}
    asked_by_name = {"system": "field_dense", "form": ["as written", "lower case"], "kind": "all", "requests": 8}
    asked_by_name |= {"first_bears_word": [0.75, 0.5]}
    tables |= {"transfer": pd.DataFrame(moved), "navigational_queries": pd.DataFrame(asked_by_name)}
    found = {"kind": "tool name", "system": ["recommend field_dense", "bm25"], "requests": 4, "first": [0.75, 0.25]}
    tables |= {"known_items": pd.DataFrame(found | {"first_3": [0.75, 0.5], "first_10": 1.0})}
    return tables | {"curves": curves.curve_table(learned, 192, seed=0)}


def test_the_notebook_on_use_shows_the_planted_tables(planted, tmp_path):
    text = shown("09_useful", tmp_path)
    assert "these tables are absent and their sections empty: judged_test, choice." in text
    assert "| Field-wise dense | lower case | 8 | 50.0% |" in text
    assert "| tool name | `study recommend`, Field-wise dense | 4 | 75.0% | 75.0% | 100.0% |" in text
    assert "| words and habits | 3 | 0.500 (0.500 to 0.500) | 0.300 (0.300 to 0.300) |" in text
    steps = pd.read_csv(place("steps")).query("part == 'test' and metric == 'ndcg@10' and system == 'bm25'")
    assert f"| BM25 | 32 | {steps['mean'].item():.3f} (" in text
    assert drawn() == {"useful_steps", "useful_calibration", "label_curves"}


@pytest.mark.parametrize(("name", "column"), [("steps", "mean"), ("calibration", "value")])
def test_a_wrong_number_stops_the_notebook(planted, tmp_path, name, column):
    table = pd.read_csv(place(name))
    table.loc[table[column].last_valid_index(), column] += 0.01
    table.to_csv(place(name), index=False)
    with pytest.raises(StudyError, match="AssertionError"):
        shown("09_useful", tmp_path)


def test_the_notebook_on_use_ends_well_without_tables(root, tmp_path):
    assert "these tables are absent and their sections empty: judged_test, choice," in shown("09_useful", tmp_path)
    assert not paths.figures(DATASET).exists()


def test_costs_join_records_judgements_and_latencies(root, few_draws):
    for name, frame in score_tables().items():
        write_csv(store.folder(DATASET) / name, frame)
    analysis = ANALYSES["usefulness/pareto"]
    study = Context(analysis, load([f"dataset={DATASET}"]))
    with pytest.raises(UnavailableError, match="no request was timed"):
        analysis.compute(study)
    seconds = {"milliseconds": 2.0, "p5": 1.0, "p95": 3.0, "cpu": 1.5, "seconds_fit": 0.5}
    timed = pd.DataFrame({"system": ["bm25", "labels"]}).assign(**seconds)
    timed = pd.concat([timed, timed.head(1).assign(cpu=9.0)])  # the saved model of the same system, further down
    write_csv(place("latency"), timed)
    table = analysis.compute(study)["pareto"]
    # TF-IDF has neither a record nor a latency, and the released lists are no system.
    assert table["system"].tolist() == ["bm25"]
    row = table.iloc[0]
    assert [row["seconds_fit"], row["milliseconds"], row["cpu"]] == [0.5, 2.0, 1.5]
    scores = pd.read_csv(store.folder(DATASET) / "tables" / "scores.csv").set_index(["system", "part", "metric"])
    assert row["by_judgements"] == scores.loc[("bm25", "test", "ndcg@10"), "mean"]
    assert pd.isna(row["by_labels"])
    assert row["front_by_judgements_cpu"]
    assert not row["front_by_labels_cpu"]
    values = pd.DataFrame({"task_id": [1, 2], "seed": 1, "ndcg@10": [0.2, 0.4]})
    seeds = [{"seed": seed, "seconds_fit": 2.0 * seed, "parameters": 7} for seed in (1, 2)]
    put_row(DATASET, "cold", "tfidf", values, record={"seeds": seeds})
    table = analysis.compute(study)["pareto"].set_index("system")
    assert sorted(table.index) == ["bm25", "tfidf"]
    costs = ["by_labels", "seconds_fit", "parameters", "milliseconds"]
    assert table.loc["tfidf", costs].tolist() == pytest.approx([0.3, 3.0, 7.0, np.nan], nan_ok=True)
    assert table.loc["bm25", ["seconds_fit", "milliseconds"]].tolist() == [0.5, 2.0]


def test_first_answers_meet_their_grades(root, monkeypatch):
    for module in ("study.analysis.usefulness.calibration", "study.advisor.retrieval.field_dense"):
        monkeypatch.setattr(f"{module}.encode", unknowing)
    with pytest.raises(StudyError, match="bm25 has no scores that are comparable"):
        calibration.confidence(DATASET, "bm25")
    # Vectors that know nothing name servers that nobody judged.
    with pytest.raises(StudyError, match="first answer of field_dense to a valid topic is not judged"):
        calibration.confidence(DATASET, "field_dense")
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
    pairs = found[store.PAIR].itertuples(index=False, name=None)
    assert found["grade"].tolist() == [judged[pair] for pair in pairs]
    assert found["server_id"].tolist() == runs[found["task_id"]].tolist()
    assert (found["margin"] == 1).all()
    assert calibration.threshold(found["score"].to_numpy(float), (found["grade"] >= 1).to_numpy(), 0.0) == 10
