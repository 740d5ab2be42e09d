"""A saved T2MRec: it answers as the trained system ranks, alone and as `study recommend --system t2mrec`."""

import json
import shutil

import numpy as np
import pytest

from study.advisor.saved.files import MANIFEST
from study.advisor.saved.saved import folder_of
from study.advisor.saved.t2mrec import Recommender
from study.base.errors import StudyError
from study.search.export import recommender
from study.t2mrec.settings import Lexical, Scoring, Towers, Training
from study.t2mrec.system import T2MRec
from tests.advisor.engine.conftest import damage, exported

BAD = [("", 5, "the request is empty"), ("   ", 5, "the request is empty"), ("x" * 20_001, 5, "the request has 20001")]
BAD += [("pdf", k, "catalogue") for k in (0, -1, 51)]
UNKNOWN = [(["--language", "Pythn"], "no server is written in 'pythn' (nearest: 'python'")]
UNKNOWN += [([f"--{name}", "qwertyuiop"], f"unknown {name} 'qwertyuiop'") for name in ("theme", "category")]
UNKNOWN += [(["--subcategory", "anything"], "counts only together with its category")]


@pytest.fixture(scope="module")
def fitted(toy, toy_split, tmp_path_factory):
    system = T2MRec(Lexical(), Towers(hidden=32, output=16), Training(epochs=20, batch_size=16), Scoring())
    system.fit(toy, toy_split, seed=1, workdir=tmp_path_factory.mktemp("fit"))
    return system


@pytest.fixture(scope="module")
def saved(fitted, tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy") / "t2mrec"
    recommender(fitted, seed=1).save(folder)
    return folder


def test_answers_as_the_system_ranks(fitted, saved, toy, toy_split):
    recommender = Recommender.load(saved)
    tasks = toy_split.tasks("test")
    rows, _ = fitted.rank(tasks, 10, toy_split.known("test"))
    fused = fitted.score(tasks)
    for task, expected, scores in zip(tasks, rows, fused, strict=True):
        fields = toy.tasks.iloc[task]
        attributes = {name: fields[name] for name in ("language", "category", "subcategory", "theme")}
        # The request is one text; name and description are joined as the study joins them.
        items = recommender.recommend(f"{fields['name']} \n {fields['description']}", **attributes, k=10)
        assert [item.server_id for item in items] == [int(toy.servers["id"].iat[row]) for row in expected]
        assert [item.stage for item in items] == ["anchor"] * 5 + ["expansion"] * 5
        np.testing.assert_allclose([item.score for item in items[:5]], scores[expected[:5]], atol=1e-5)
        for item in items:
            structural = item.parts["structural"]
            assert structural == pytest.approx(sum(item.features.values()) / 3, abs=1e-5)
            if item.stage == "anchor":
                assert item.score == pytest.approx(0.9 * item.parts["semantic"] + 0.1 * structural, abs=1e-5)


def test_the_whole_catalogue_without_repeats_and_no_bad_request(saved, toy, tmp_path):
    model = Recommender.load(saved)
    assert sorted(item.server_id for item in model.recommend("unheard-of words", k=50)) == toy.servers["id"].tolist()
    for text, k, reason in BAD:
        with pytest.raises(StudyError, match=reason):
            model.recommend(text, k=k)
    with pytest.raises(TypeError, match="langauge"):
        model.recommend("read a file", langauge="Python")
    with pytest.raises(StudyError, match="study export dataset=synthetic"):
        Recommender.load(tmp_path / "synthetic" / "t2mrec")


FILES = ("model.safetensors", "vectorizer.json", "catalogue.json", "model.json")
DAMAGE = [*((name, "cut") for name in (*FILES, MANIFEST)), ("vectorizer.json", "gone"), (MANIFEST, "gone")]
DAMAGE += [(MANIFEST, "[]"), ("catalogue.json", lambda table: {name: values[::-1] for name, values in table.items()})]


@pytest.mark.parametrize(("file", "how"), DAMAGE)
def test_damaged_model_is_named(saved, tmp_path, file, how):
    folder = tmp_path / "toy" / "t2mrec"
    shutil.copytree(saved, folder)
    damage(folder / file, how)
    with pytest.raises(StudyError, match="does not load") as caught:
        Recommender.load(folder)
    assert str(folder) in str(caught.value)


@pytest.fixture(scope="module")
def own_root(prepared_root, tmp_path_factory):
    """A copy of the tiny study with a saved T2MRec, in force for the tests that ask it."""
    with exported(prepared_root, tmp_path_factory.mktemp("t2mrec") / "study", "protocol=warm") as copy:
        yield copy


@pytest.fixture
def answer(ask, own_root):
    """What T2MRec answers as JSON, and what it says beside that."""

    def run(*words):
        code, out, err = ask("--system", "t2mrec", *words, "--json")
        assert code == 0, err
        return json.loads(out), err

    return run


def test_export_takes_the_protocol_from_the_configuration(own_root):
    record = json.loads((own_root / "models" / "synthetic" / "t2mrec" / "record.json").read_text())
    assert record["protocol"] == "warm"


def test_attributes_count_and_known_ones_are_not_warned_of(answer):
    model = Recommender.load(folder_of("synthetic", "t2mrec"))
    server = next(card for card in model.cards if card["category"] and card["subcategory"])
    category, leaf = ("--category", server["category"]), ("--subcategory", server["subcategory"])
    words = ("--language", "Python", "--theme", model.themes[0].upper(), *category, *leaf)
    reply, err = answer(model.cards[0]["description"], *words)
    assert (reply["warnings"], err, reply["subcategory"], len(reply["recommendations"])) == ([], "", leaf[1], 5)
    for more, feature in ((leaf, 1.0), ((), 0.5)):
        reply, _ = answer("x", *category, *more, "-k", "60")
        features = {item["server_id"]: item["features"]["category"] for item in reply["recommendations"]}
        assert features[server["id"]] == feature
    reply, err = answer("qwertyuiop zxcvbnm", *category, "--subcategory", "qwertyuiop")
    assert f"unknown subcategory 'qwertyuiop' of {category[1]!r}" in err
    assert "no word of the request" in err
    assert len(reply["warnings"]) == 2


@pytest.mark.parametrize(("words", "warning"), UNKNOWN)
def test_unknown_value_is_warned_of_on_stderr_and_in_json(answer, ask, words, warning):
    reply, err = answer("read a file", *words)
    assert warning in err
    assert any(warning in line for line in reply["warnings"])
    _, out, err = ask("--system", "t2mrec", "read a file", *words)
    assert (warning in err, warning in out) == (True, False)
