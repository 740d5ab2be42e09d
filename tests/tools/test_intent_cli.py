"""The whole loop on the command line: recommend, feedback, comparison, weights; and bad files."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from study.cli import tools as cli
from study.encoders import endpoint as embedding
from study.errors import StudyError
from study.tools.catalogues.catalog import save_catalog
from study.tools.intent.context import read_requirements
from study.tools.intent.feedback import Event, FeedbackStore
from study.tools.intent.learning import assign, lessons
from study.tools.intent.settings import FACTORS


@pytest.fixture
def run(tmp_path, monkeypatch, catalog, embedder):
    monkeypatch.setattr(cli, "catalogue_file", lambda name: tmp_path / f"{name}.json")
    monkeypatch.setattr(embedding.MiniLm, "encode", lambda self, texts, store=True: embedder.encode(texts))
    save_catalog(tmp_path / "toy.json", catalog)

    def invoke(*words):
        return CliRunner().invoke(cli.app, [*words, "--catalogue", "toy"], catch_exceptions=False)

    return invoke


def test_the_loop(run, tmp_path):
    done = run("recommend", "read a file", "-k", "3", "--agent", "a")
    assert "fs/read_file" in done.stdout.splitlines()[0]
    assert "relevance" in done.stdout
    event = json.loads(done.stderr)
    assert (len(event["shown"]), len(event["factors"][0])) == (3, len(FACTORS))
    assert "read a file" not in done.stderr
    chosen = ["--selected", event["shown"][1], "--success", "--rating", "4", "--latency-ms", "20"]
    run("feedback", json.dumps(event), *chosen)
    run("feedback", json.dumps(event), "--selected", "fs/read_file", "--failure")
    run("feedback", json.dumps(event))
    stored = FeedbackStore(tmp_path / "toy.feedback.jsonl").events()
    assert [found.success for found in stored] == [True, False, None]
    shown = run("feedback").stdout
    assert "click_through_rate  0.667" in shown.replace(" " * 2, "  ")
    # One successful use tells something: its tool against the other two shown.
    assert [own.shape for own in lessons(stored)] == [(2, len(FACTORS))]
    tuned = run("feedback", "--tune").stdout.splitlines()
    assert tuned[0].startswith("1 successful uses")
    assert sum(json.loads(tuned[1]).values()) == pytest.approx(1, abs=1e-3)
    again = run("recommend", "read a file", "-k", "3", "--experiment", "trial")
    assert json.loads(again.stderr)["experiment"] == "trial"
    assert json.loads(again.stderr)["factors"] != event["factors"]


def test_compare_names_every_variant(run, tmp_path):
    store, names = FeedbackStore(tmp_path / "toy.feedback.jsonl"), ["control", "variant_a", "variant_b"]
    rng = np.random.default_rng(0)
    for number in range(600):
        agent = f"agent {number}"
        rate = 0.95 if assign(agent, names, "trial") == "variant_a" else 0.3
        store.append(Event(agent, "h", (), "fs/read_file", bool(rng.random() < rate), experiment="trial"))
    lines = [line.split() for line in run("feedback", "--compare", "trial").stdout.splitlines()]
    assert {line[0]: line[-1] for line in lines[1:]} == {"variant_a": "better", "variant_b": "open"}


def test_weights_of_a_few_uses_come_with_a_warning(run, tmp_path):
    FeedbackStore(tmp_path / "toy.feedback.jsonl").append(
        Event("a", "h", ("fs/read_file", "mail/send"), "fs/read_file", True, factors=((1, 0, 0, 0, 0), (0, 1, 0, 0, 0)))
    )
    done = run("feedback", "--tune")
    assert "1 successful uses" in done.stdout
    assert "do not use them" in done.stderr


def test_requirements_on_the_command_line(run, tmp_path):
    needs = tmp_path / "needs.json"
    needs.write_text(json.dumps({"fs/read_file": {"permissions": ["read"]}}))
    words = ["read a file", "--needs", str(needs)]
    assert "fs/read_file" in run("recommend", *words).stdout
    assert "fs/read_file" in run("recommend", *words, "--permission", "read").stdout
    assert "fs/read_file" not in run("recommend", *words, "--permission", "write").stdout


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"t": []}', '{"t": {"colour": ["red"]}}', '{"t": {"permissions": "all"}}', '{"t": {"services": [1]}}'],
)
def test_bad_requirements(tmp_path, text):
    path = tmp_path / "needs.json"
    path.write_text(text)
    with pytest.raises(StudyError, match="fix:"):
        read_requirements(path)


def test_bad_events_are_refused(run, tmp_path):
    for text in (
        "{",
        "[]",
        '{"agent": "a", "query": "h", "colour": 1}',
        '{"agent": "a", "query": "h", "shown": ["t"], "factors": [[1]]}',
    ):
        with pytest.raises(StudyError):
            run("feedback", text)
    with pytest.raises(StudyError, match="above 5"):
        run("feedback", '{"agent": "a", "query": "h"}', "--rating", "9")
    assert not (tmp_path / "toy.feedback.jsonl").exists()
