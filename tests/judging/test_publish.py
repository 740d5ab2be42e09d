"""What other programs read, the figure, the keyboard, and the commands."""

import ir_measures
import matplotlib as mpl
import pandas as pd
import pytest
from typer.testing import CliRunner

from study.analysis.usefulness.figures import labels_against_judgements
from study.cli.judge import app
from study.errors import StudyError
from study.judging import collecting, evaluate, store
from study.judging import verify as publish
from study.judging.collection import Collection

DATASET = "synthetic"


def test_qrels_are_read_by_another_program(root):
    publish.write_forms(DATASET)
    path = store.folder(DATASET) / "qrels" / "all.txt"
    found = {(int(q.query_id), int(q.doc_id)): q.relevance for q in ir_measures.read_trec_qrels(str(path))}
    judged = store.final(DATASET)
    assert found == {(t, s): g for t, s, g in judged[[*store.PAIR, "final"]].astype(int).to_numpy().tolist()}
    parts = [list(ir_measures.read_trec_qrels(str(path.parent / f"{part}.txt"))) for part in ("valid", "test")]
    assert sum(map(len, parts)) == len(found)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_croissant_is_valid_and_its_records_are_the_judgements(root):
    import mlcroissant  # takes seconds, and the other tests do without it

    publish.write_forms(DATASET)
    path = store.folder(DATASET) / "croissant.json"
    described = mlcroissant.Dataset(jsonld=str(path))
    assert not described.metadata.issues.errors
    # The date is that of the release of the project, which this file does not know.
    assert all("datePublished" in warning for warning in described.metadata.issues.warnings)
    assert described.metadata.license == [publish.LICENCE] or described.metadata.license == publish.LICENCE
    record = next(iter(described.records(record_set="judgements")))
    first = store.final(DATASET).iloc[0]
    assert int(record["judgements/task_id"]) == first["task_id"]
    assert int(record["judgements/final"]) == first["final"]


def test_croissant_names_every_column():
    assert list(publish.FIELDS) == store.COLUMNS["judgements"]


def test_figure_shows_every_system(shared_root):
    views = evaluate.two_views(Collection.load(DATASET), store.read_runs(DATASET), "test")
    summary, correlation = evaluate.summary(views), evaluate.rank_correlation(views)
    figure = labels_against_judgements(summary, correlation, {"tfidf": "TF-IDF cosine"}, {"tfidf": "lexical"})
    texts = {text.get_text() for text in figure.findobj(mpl.text.Text)}
    assert {"TF-IDF cosine", "bm25", "random"} <= texts
    assert any("3 systems" in text for text in texts)


class Keyboard:
    """Answers given one after another; it ends like a closed terminal."""

    def __init__(self, *answers):
        self.answers, self.shown = list(answers), []

    def ask(self, _):
        if not self.answers:
            raise EOFError
        return self.answers.pop(0)


def test_grades_from_the_keyboard_are_kept_as_they_come(root):
    pool = store.read_table(DATASET, "pool")
    task = int(pool["task_id"].iloc[0])
    expected = collecting.shuffled(pool.assign(round=pool["order"]), task)["server_id"].tolist()  # whatever the rounds
    assert sorted(expected) == sorted(pool.loc[pool["task_id"] == task, "server_id"])
    first = Keyboard("2", "seven", "0", "q")
    path = collecting.grade_topic(DATASET, task, judge="a-person", ask=first.ask, show=first.shown.append)
    assert path.read_text() == f"task_id,server_id,grade\n{task},{expected[0]},2\n{task},{expected[1]},0\n"
    then = Keyboard("1")
    collecting.grade_topic(DATASET, task, judge="a-person", ask=then.ask, show=then.shown.append)
    assert pd.read_csv(path)["server_id"].tolist() == expected[:3]
    assert f"3/{len(expected)}" in then.shown[1]
    path.write_text(path.read_text() + f"{task},999999,1\n")
    with pytest.raises(StudyError, match="outside the topic's pool"):
        collecting.grade_topic(DATASET, task, judge="a-person", ask=then.ask, show=then.shown.append)


def test_the_keyboard_is_blind(root):
    task = int(store.read_table(DATASET, "pool")["task_id"].iloc[0])
    for name in ("provenance", "judgements"):
        store.file(DATASET, name).unlink()
    keyboard = Keyboard("1")
    collecting.grade_topic(DATASET, task, judge="p", ask=keyboard.ask, show=keyboard.shown.append)


@pytest.mark.parametrize(("task", "judge", "reason"), [(-5, "p", "not a topic"), (1, "../x", "cannot name a file")])
def test_wrong_wishes_are_refused(shared_root, task, judge, reason):
    with pytest.raises(StudyError, match=reason):
        collecting.grade_topic(DATASET, task, judge=judge)


def test_commands_run(root, monkeypatch):
    monkeypatch.setattr(evaluate, "NOISE_RESAMPLES", 3)
    monkeypatch.setattr(evaluate, "RESAMPLES", 20)
    runner = CliRunner()
    work = store.work(DATASET) / "round-1"
    asked = [
        (["pool"], "round 1"),
        (["collect", str(work / "pass-1"), "--check"], "complete"),
        (["collect", str(work), "--judge", "simulated"], "0 wait for a third pass"),
        (["batches", "--pass", "again"], "batches in"),
        (["evaluate"], "kappa_quadratic"),
        (["evaluate", "--check"], "OK"),
        (["verify"], "OK"),
    ]
    for words, expected in asked:
        result = runner.invoke(app, [*words, "--dataset", DATASET], catch_exceptions=False)
        assert result.exit_code == 0, words
        assert expected in result.stdout
    task = int(store.read_table(DATASET, "topics")["task_id"].iloc[0])
    result = runner.invoke(app, ["--task", str(task), "--dataset", DATASET], input="2\nq\n", catch_exceptions=False)
    assert "grades in" in result.stdout
    with pytest.raises(StudyError, match="nothing to do"):
        runner.invoke(app, ["--dataset", DATASET], catch_exceptions=False)


def test_the_committed_collection_can_be_computed_again():
    found = publish.verify("task2mcp")
    assert set(found["verdict"]) == {"OK"}, found[found["verdict"] != "OK"]
    assert {"tables/scores.csv", "qrels/test.txt", "croissant.json", "judgements.csv"} <= set(found["file"])
