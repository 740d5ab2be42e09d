"""The notebook on planted truth, without a collection, and on a damaged table; its figures."""

import shutil

import matplotlib as mpl
import pandas as pd
import pytest

from study import paths
from study.analysis.usefulness.figures import label_precision, labels_against_judgements
from study.errors import StudyError
from study.judging import store, verify
from tests.judging.conftest import drawn, shown

DATASET = "synthetic"


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
    assert row_of(text, "both")[1] == str(len(store.read_table(DATASET, "topics"))) == "48"
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
