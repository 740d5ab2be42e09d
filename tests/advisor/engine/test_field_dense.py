"""`field_dense` as it is saved: the order of the fitted system, parts that add up, damage named, hostile names."""

import io
import json
import re
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.advisor.encoders import mpnet
from study.advisor.engine.render import show_scores
from study.advisor.retrieval.field_dense import FieldDense, standardised
from study.advisor.retrieval.two_encoders import TwoEncoders
from study.advisor.saved import files, saved
from study.advisor.saved.contract import Recommendation
from study.advisor.saved.field_dense import SavedFieldDense, explain, request_of
from study.base.errors import StudyError
from study.config.compose import build_system, load
from study.evaluation.ranking import top_k
from study.runner.inputs import load_inputs
from study.search.export import export
from tests.advisor.engine.conftest import damage
from tests.tiny_study import TINY

URL = "https://github.com/someone-with-a-long-name/a-repository-with-a-name-that-no-column-of-a-table-could-ever-hold"
HOSTILE = ["[link=https://evil.example]click[/link]", "\x1b]8;;https://evil.example\x1b\\click\x1b]8;;\x1b\\"]
HOSTILE += ["\x1b[2J\x1b[31mred", "left\u202eto right", "a\r\nb\tc"]
MODEL = Path("models/synthetic/field_dense")
BOTH = {"category": "a", "subcategory": "b"}


def in_json(**values):
    return lambda content: content.update(values)


def shorter(content):
    for values in content.values():
        values.pop()


def turned(content):
    return {name: values[::-1] for name, values in content.items()}


def without(name):
    return lambda content: content.__delitem__(name)


NOT_OF_TYPE = [("name", None), ("description", 1.5), ("url", ["x"]), ("id", "7"), ("id", True), ("id", None)]
UNKNOWN = [{"x": 1}, {"parts": [{"view": "x", "field": "all"}]}]
DAMAGE = {
    "model.safetensors": [
        *("cut", "gone", without("field.all")),
        lambda arrays: arrays["prior"].fill(np.nan),
        lambda arrays: arrays.update(prior=arrays["prior"][1:]),
        lambda arrays: arrays.update({"field.all": arrays["field.all"][:, 1:].copy()}),
    ],
    "model.json": [
        *("cut", "[]", without("seed"), in_json(weights="x==1"), in_json(format=99), in_json(kind="pickle")),
        *(in_json(settings=own) for own in UNKNOWN),
    ],
    "catalogue.json": [
        *("cut", shorter, without("url")),
        *(lambda table, name=name, value=value: table[name].__setitem__(3, value) for name, value in NOT_OF_TYPE),
    ],
    "products.json": ["cut", without("spelling"), in_json(bearers=[[["zotero"], [60]]])],
}
# Files that were not saved together.
MIXED = {
    "catalogue.json": [turned],
    "model.json": [in_json(seed=7)],
    "products.json": [in_json(bearers=[])],
    "model.safetensors": [lambda arrays: arrays["prior"].fill(0)],
    "files.json": ["gone", "[]", without("products.json")],
}
DAMAGED = [(file, how, new) for new, hows in ((True, DAMAGE), (False, MIXED)) for file in hows for how in hows[file]]
UNREAD = [("captions for videos", {}, []), ("captions for Marketing", {"theme": "marketing"}, [])]
UNREAD += [("captions for videos", {"theme": "Marketing"}, ["the theme 'Marketing' has no effect"])]
UNREAD += [("captions", {"language": "Go"}, ["the language 'Go' has no effect"])]
UNREAD += [("captions", BOTH, ["the category 'a' has no", "the subcategory 'b' has no"])]
UNREAD += [("!!! ...", {}, ["there is no word in the request"]), ("word " * 400, {}, ["only the first 256 tokens"])]
pytestmark = pytest.mark.usefixtures("project")


@pytest.fixture(scope="module")
def model(project):
    loaded = saved.load_saved_model("synthetic", "field_dense")
    assert isinstance(loaded, SavedFieldDense)
    return loaded


@pytest.fixture(scope="module")
def fitted(project):
    config = load([*TINY, "system=field_dense"])
    system = build_system(config.system)
    data, split = load_inputs(config.dataset.name, config.protocol.name)
    system.fit(data, split, seed=0, workdir=project)
    return system


def of(names, descriptions, folder, kind=FieldDense, **settings):
    """A small catalogue, saved and read back."""
    servers = pd.DataFrame({"name": names, "description": descriptions}).assign(
        id=np.arange(len(names)) + 100,
        url=[f"https://example.org/{row}" for row in range(len(names))],
        **dict.fromkeys(("language", "system", "tools", "category", "subcategory"), ""),
    )
    system = kind(**{"product_bonus": 6.0, "priors": {"template": -1.0}} | settings)
    system.index(servers)
    SavedFieldDense("field_dense", system, servers, seed=0).save(folder)
    return SavedFieldDense.load(folder)


def in_order_of(scores, rows):
    """Whether scores never rise along the rows, but for the rounding that two forms of the encoder differ by."""
    return bool((np.diff(scores[rows]) < 1e-4).all()) and len(set(rows.tolist())) == len(rows)


def test_order_is_the_fitted_systems_on_every_validation_task(model, fitted):
    data, split = load_inputs("synthetic", "cold")
    tasks = split.tasks("valid")
    assert len(tasks) == 16
    assert [card["id"] for card in model.cards] == data.servers["id"].tolist()
    expected = fitted.score(tasks)
    assert expected.std(axis=1).min() > 0.5
    ours = model.system.score_requests(data.tasks.iloc[tasks], store=False)
    np.testing.assert_allclose(ours, expected, atol=1e-4)
    for scores, rows in zip(expected, top_k(ours, data.n_servers, model.order)[0], strict=True):
        assert in_order_of(scores, rows)
    row_of = {int(server): row for row, server in enumerate(data.servers["id"])}
    for task in data.tasks.iloc[tasks].to_dict("records"):
        items = model.recommend(task["description"], theme=task["theme"], k=data.n_servers)
        scores = fitted.score_requests(request_of(task["description"], theme=task["theme"]))[0]
        rows = np.array([row_of[item.server_id] for item in items])
        assert in_order_of(scores, rows)
        np.testing.assert_allclose([item.score for item in items], scores[rows], atol=1e-4)


def test_a_template_and_a_product_survive_saving(tmp_path):
    names = ["Zotero MCP", "Paper Starter", "Shelf", "Reader"]
    model = of(names, ["Papers in Zotero", "A template for papers", "Books on a shelf", "Reads papers"], tmp_path)
    items = model.recommend("keep my papers in Zotero", k=4)
    assert items[0].name == "Zotero MCP"
    parts = {item.name: (item.parts["template"], item.parts["product"]) for item in items}
    assert parts == dict(zip(names, [(0, 6), (-1, 0), (0, 0), (0, 0)], strict=True))
    # What reads every field warns of less.
    attributes = {"language": "Go", "theme": "Maps", "category": "drawing"}
    assert model.warnings("draw a map", **attributes) == []
    assert model.recommend("draw a map", **attributes, k=3)[0].score != model.recommend("draw a map", k=3)[0].score
    # Without priors and products only cosines are left.
    model = of(["A", "B"], ["reads mail", "draws maps"], tmp_path / "without", product_bonus=0.0, priors={})
    items = model.recommend("draw a map", k=2)
    assert [list(item.parts) for item in items] == [["semantic (all)"]] * 2
    # Two servers: one standard deviation above the mean and one below.
    assert [(item.name, item.score) for item in items] == [("B", pytest.approx(1)), ("A", pytest.approx(-1))]


def test_a_second_encoder_survives_saving(tmp_path, monkeypatch):
    def large(texts, *, store=True):
        """Vowels count."""
        counts = np.array([[1 + text.count(letter) for letter in "aeiou"] for text in texts], dtype=np.float32)
        return np.pad(counts / np.linalg.norm(counts, axis=1, keepdims=True), ((0, 0), (0, mpnet.DIMENSION - 5)))

    monkeypatch.setattr(mpnet, "encode", large)
    part = {"view": "description", "field": "description", "weight": 2.0}
    model = of(["A", "B", "C"], ["reads mail", "draws maps", "book room"], tmp_path, kind=TwoEncoders, large=[part])
    request = request_of("draw a map")
    expected = standardised(standardised(large(["draw a map"]) @ large(["reads mail", "draws maps", "book room"]).T))
    total, parts = explain(model.system, request)
    np.testing.assert_allclose(parts["semantic (all)"] + parts["semantic (description, mpnet)"], total, atol=1e-5)
    spread = np.asarray(sum(model.system.contributions(request, store=False).values())).std()
    np.testing.assert_allclose(parts["semantic (description, mpnet)"], 2 * expected[0] / spread, rtol=1e-4)
    monkeypatch.setattr(mpnet, "version", lambda: "another")
    with pytest.raises(StudyError, match=r"installed is .* and another"):
        SavedFieldDense.load(tmp_path)


@pytest.mark.slow
def test_answers_without_data_set_cache_or_torch(project, tmp_path):
    folder = tmp_path / MODEL
    shutil.copytree(project / MODEL, folder)
    (tmp_path / "conf").symlink_to(project / "conf")
    script = (
        "import sys; from study.cli import main as cli\n"
        "sys.argv = ['study', 'recommend', 'read a table', '--json', '-k', '3', '--dataset', 'synthetic']\n"
        "try:\n    cli.main()\nexcept SystemExit as stopped:\n    assert not stopped.code\n"
        "print('loaded', sorted({'torch', 'sentence_transformers', 'transformers'} & set(sys.modules)))"
    )
    environment = {"T2M_ROOT": str(tmp_path), "OMP_NUM_THREADS": "1", "PATH": ""}
    words = [sys.executable, "-c", script]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    answer, _, loaded = done.stdout.rpartition("loaded ")
    assert (json.loads(answer)["system"], loaded.strip()) == ("field_dense", "[]")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["conf", "models"]
    record = json.loads((folder / "record.json").read_text())
    assert (record["config"]["system"]["name"], record["dataset"]) == ("field_dense", "synthetic")


@pytest.mark.parametrize(("file", "how", "manifest"), DAMAGED)
def test_damaged_model_is_named(project, tmp_path, monkeypatch, file, how, manifest):
    """A manifest that was written anew hides no damage."""
    shutil.copytree(project / MODEL, tmp_path / MODEL)
    monkeypatch.setenv("T2M_ROOT", str(tmp_path))
    damage(tmp_path / MODEL / file, how)
    if manifest and how != "gone":
        files.write_manifest(tmp_path / MODEL, "products.json")
    with pytest.raises(StudyError, match="saved model") as caught:
        saved.load_saved_model("synthetic", "field_dense")
    assert str(tmp_path / MODEL) in str(caught.value)
    assert "study export dataset=synthetic system=field_dense" in str(caught.value)


@pytest.mark.parametrize(("text", "attributes", "said"), UNREAD)
def test_what_is_not_read_is_said(model, text, attributes, said):
    warnings = model.warnings(text, **attributes)
    assert len(warnings) == len(said)
    assert all(start in warning for start, warning in zip(said, warnings, strict=True))
    # A warning is true: without the attribute the answer is the same.
    changed = [asdict(item) for item in model.recommend(text, **attributes)]
    same = changed == [asdict(item) for item in model.recommend(text)]
    assert same == bool(said or not attributes)


def test_best_answers_unless_another_is_asked_for(ask):
    code, out, err = ask("read a table", "--json", "-k", "3")
    answer = json.loads(out)
    assert (code, err, answer["system"], answer["dataset"]) == (0, "", "field_dense", "synthetic")
    items = answer["recommendations"]
    assert [item["rank"] for item in items] == [1, 2, 3]
    assert list(items[0]["parts"]) == ["semantic (all)", "semantic (description)", "template", "product"]
    assert [sum(item["parts"].values()) for item in items] == pytest.approx([item["score"] for item in items], abs=1e-5)
    for words in [("read", "--system", "t2mrec"), ("",), ("pdf", "--system", "../etc")]:
        code, out, err = ask(*words)
        assert (code, out) == (2, ""), words
        assert "fix:" in err
        assert "Traceback" not in err


def test_t2mrec_answers_where_best_was_not_saved(ask, root):
    export(load(TINY))
    code, out, err = ask("read a table", "--json")
    assert (code, json.loads(out)["system"]) == (0, "t2mrec")
    assert "warning: t2mrec answers" in err
    assert "study export dataset=synthetic system=field_dense" in err
    assert ask("read a table", "--json", "--system", "t2mrec")[2] == ""


@pytest.mark.parametrize("url", [URL, "https://a.b/\x1b]8;;evil"])
def test_names_and_addresses_stay_text(capsys, monkeypatch, url):
    item = Recommendation(1, 1, " ".join(HOSTILE), url, 0.5, {"semantic": 0.4, "structural": 0.3}, stage="anchor")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    show_scores([item], title=HOSTILE[1], caption="C")
    out = capsys.readouterr().out
    assert (f"  1 {URL}\n" in out) == (url == URL)
    assert "[link=" in out
    assert not any(text in out for text in ("\x1b]8", "\x1b[2J", "\u202e"))


@given(st.lists(st.dictionaries(st.sampled_from("abcde"), st.sampled_from([0.0, 0.25, -1.5])), min_size=1, max_size=6))
def test_servers_may_have_different_parts(rows):
    items = [Recommendation(rank, rank, "n", "", 0.5, parts) for rank, parts in enumerate(rows, start=1)]
    out = io.StringIO()
    with redirect_stdout(out):
        show_scores(items, title="T", caption="C")
    lines = (line for line in out.getvalue().splitlines() if line.startswith(("┃", "│")))
    head, *body = ([cell.strip() for cell in re.split("[┃│]", line)[1:-1]] for line in lines)
    for parts, cells in zip(rows, body, strict=True):
        values = dict(zip(head[3:], cells[3:], strict=True))
        assert {name: float(cell) for name, cell in values.items() if cell} == {
            name: value for name, value in parts.items() if name in values
        }
        assert not any(value for name, value in parts.items() if name not in values)
