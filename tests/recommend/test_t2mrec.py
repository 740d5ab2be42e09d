"""A saved model: what it answers, what it refuses, and that it answers as the trained system ranks."""

import json
from pathlib import Path

import numpy as np
import pytest

from study.data.dataset import Dataset
from study.data.splits import Split
from study.errors import StudyError
from study.recommend.t2mrec import Recommender
from study.t2mrec.settings import Lexical, Scoring, Towers, Training
from study.t2mrec.system import T2MRec


@pytest.fixture(scope="module")
def fitted(toy: Dataset, toy_split: Split, tmp_path_factory: pytest.TempPathFactory) -> T2MRec:
    system = T2MRec(Lexical(), Towers(hidden=32, output=16), Training(epochs=20, batch_size=16), Scoring())
    system.fit(toy, toy_split, seed=1, workdir=tmp_path_factory.mktemp("fit"))
    return system


@pytest.fixture(scope="module")
def saved(fitted: T2MRec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy") / "t2mrec"
    Recommender.of(fitted, seed=1).save(folder)
    return folder


def test_answers_as_the_system_ranks(fitted: T2MRec, saved: Path, toy: Dataset, toy_split: Split) -> None:
    recommender = Recommender.load(saved)
    asked = toy_split.tasks("test")
    rows, _ = fitted.rank(asked, 10, toy_split.known("test"))
    fused = fitted.score(asked)
    for task, expected, scores in zip(asked, rows, fused, strict=True):
        fields = toy.tasks.iloc[task]
        # The request is one text; name and description are joined as the study joins them.
        found = recommender.recommend(
            f"{fields['name']} \n {fields['description']}",
            language=fields["language"],
            category=fields["category"],
            subcategory=fields["subcategory"],
            theme=fields["theme"],
            k=10,
        )
        assert [item.server_id for item in found] == [int(toy.servers["id"].iat[row]) for row in expected]
        assert [item.stage for item in found] == ["anchor"] * 5 + ["expansion"] * 5
        np.testing.assert_allclose([item.score for item in found[:5]], scores[expected[:5]], atol=1e-5)
        for item in found:
            parts = 0.9 * item.semantic + 0.1 * item.structural
            assert item.structural == pytest.approx(sum(item.features.values()) / 3, abs=1e-5)
            if item.stage == "anchor":
                assert item.score == pytest.approx(parts, abs=1e-5)


@pytest.mark.parametrize("request_text", ["", "   ", "x" * 20_001], ids=["empty", "blank", "too long"])
def test_refuses_bad_requests(saved: Path, request_text: str) -> None:
    with pytest.raises(StudyError, match="request"):
        Recommender.load(saved).recommend(request_text)


@pytest.mark.parametrize("k", [0, -1, 51])
def test_refuses_k_outside_the_catalogue(saved: Path, k: int) -> None:
    with pytest.raises(StudyError, match="catalogue"):
        Recommender.load(saved).recommend("pdf", k=k)


def test_whole_catalogue_without_repeats(saved: Path) -> None:
    found = Recommender.load(saved).recommend("unheard-of words", k=50)
    assert sorted(item.server_id for item in found) == list(range(1, 51))


def test_missing_model_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="study export dataset=synthetic"):
        Recommender.load(tmp_path / "synthetic" / "t2mrec")


@pytest.mark.parametrize("damage", ["truncated weights", "truncated json", "foreign format", "missing rows"])
def test_damaged_model_is_named(saved: Path, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "toy" / "t2mrec"
    folder.mkdir(parents=True)
    for path in saved.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    target = folder / {"truncated weights": "model.safetensors", "truncated json": "catalogue.json"}.get(
        damage, "model.json"
    )
    if damage.startswith("truncated"):
        target.write_bytes(target.read_bytes()[:-20])
    elif damage == "foreign format":
        target.write_text(json.dumps(json.loads(target.read_text()) | {"format": 99}))
    else:
        catalogue = json.loads((folder / "catalogue.json").read_text())
        (folder / "catalogue.json").write_text(json.dumps({key: values[:-1] for key, values in catalogue.items()}))
    with pytest.raises(StudyError, match="does not load") as caught:
        Recommender.load(folder)
    assert str(folder) in str(caught.value)
