"""The search among many vectors: against an exact scan, for some rows alone, damaged, stale and refused."""

import importlib.util
from dataclasses import replace

import numpy as np
import pytest

from study.advisor.encoders.nearest import EXACT, PRODUCT, SCALAR, NearestIndex, Settings, Source, build, recall
from study.base.errors import StudyError

N, DIMENSION = 3000, 24
SMALL = Settings(10**9, 10**9, 700, 16, 100, 16, 8, 400, 0.9, 0.03)
KINDS = {EXACT: SMALL, SCALAR: replace(SMALL, exact_below=100)}
KINDS[PRODUCT] = replace(KINDS[SCALAR], scalar_below=200)
RNG = np.random.default_rng(0)
CENTRES = RNG.normal(size=(40, DIMENSION))


def near_centres(n, noise):
    rows = CENTRES[RNG.integers(0, 40, n)] + noise * RNG.normal(size=(n, DIMENSION))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


VECTORS, QUESTIONS = near_centres(N, 0.5), near_centres(200, 0.4)
SOURCE = Source(N, DIMENSION, lambda start, stop: VECTORS[start:stop], "toy")
needs_faiss = pytest.mark.skipif(
    importlib.util.find_spec("faiss") is None, reason="faiss is not installed (make setup FAISS=1)"
)


def exact(questions, vectors):
    return np.argsort(-(questions @ vectors.T), axis=1, kind="stable")[:, :10]


@needs_faiss
@pytest.mark.parametrize("kind", list(KINDS))
def test_the_measured_recall_is_that_against_a_scan_of_the_true_vectors(kind, tmp_path):
    index = build(tmp_path / "index", SOURCE, QUESTIONS, KINDS[kind])
    assert index.about["kind"] == kind
    rows, products = index.search(QUESTIONS, 10)
    true = exact(QUESTIONS, VECTORS)
    assert index.about["recall"] == pytest.approx(recall(rows[1::2], true[1::2]), abs=1e-4)
    assert recall(rows, true) >= (1 if kind == EXACT else 0.9)
    np.testing.assert_allclose(products, np.take_along_axis(QUESTIONS @ VECTORS.T, rows, 1), atol=0.02)
    assert (np.diff(products, axis=1) <= 0).all()
    wanted = np.array([7, 2000, 41])  # wherever they stand
    some, products = index.search(QUESTIONS, 4, wanted)
    assert {tuple(sorted(hits)) for hits in some[:, :3].tolist()} == {(7, 41, 2000)}
    assert (some[:, 3] == -1).all()
    assert np.isneginf(products[:, 3]).all()


@needs_faiss
def test_a_finished_index_is_read_and_a_stale_or_unfinished_one_is_built_again(tmp_path):
    build(tmp_path, SOURCE, QUESTIONS, KINDS[SCALAR])
    build(tmp_path, SOURCE._replace(piece=lambda *_: pytest.fail("the index is there")), QUESTIONS, KINDS[SCALAR])
    other = SOURCE._replace(identity="another catalogue", piece=lambda *span: -VECTORS[slice(*span)])
    changed = build(tmp_path, other, QUESTIONS, KINDS[SCALAR])
    assert recall(changed.search(QUESTIONS, 10)[0], exact(QUESTIONS, -VECTORS)) >= 0.9
    (tmp_path / "manifest.json").unlink()
    again = build(tmp_path, SOURCE, QUESTIONS, KINDS[SCALAR])
    assert recall(again.search(QUESTIONS, 10)[0], exact(QUESTIONS, VECTORS)) >= 0.9


@needs_faiss
def test_an_index_below_the_wanted_recall_is_refused_with_advice_and_kept_for_less(tmp_path):
    strict = replace(KINDS[PRODUCT], wanted=0.999, candidates=10, most_lists=4, reduced=2, subquantisers=1)
    with pytest.raises(StudyError, match=r"of the ten nearest, 0.999 are wanted") as error:
        build(tmp_path, SOURCE, QUESTIONS, strict)
    assert "candidates" in str(error.value)
    calls = SOURCE._replace(piece=lambda *_: pytest.fail("the index is there"))
    measured = NearestIndex(tmp_path).about["recall"]
    assert build(tmp_path, calls, QUESTIONS, replace(strict, wanted=measured)).about["recall"] == measured


@needs_faiss
@pytest.mark.parametrize("name", ["manifest.json", "index.faiss"])
@pytest.mark.parametrize("damage", [lambda data: data[:50], lambda data: data[:-1] + b"?"])
def test_a_damaged_index_is_named(tmp_path, name, damage):
    build(tmp_path, SOURCE, QUESTIONS, SMALL)
    (tmp_path / name).write_bytes(damage((tmp_path / name).read_bytes()))
    with pytest.raises(StudyError, match="does not load"):
        build(tmp_path, SOURCE, QUESTIONS, SMALL)


def test_a_large_catalogue_without_faiss_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    with pytest.raises(StudyError, match="faiss") as error:
        build(tmp_path, SOURCE, QUESTIONS, KINDS[SCALAR])
    assert "FAISS=1" in str(error.value)


def test_recall_by_hand():
    assert recall(np.array([[1, 2], [3, -1]]), np.array([[2, 9], [4, 3]])) == 0.5
    assert recall(np.array([[1, 7, -1]]), np.array([[1, -1, -1]])) == 1


def test_the_file_of_settings_divides_the_sizes_as_it_says():
    settings = Settings.read()
    assert [settings.kind(n) for n in (49_999, 50_000, 999_999, 1_000_000)] == [EXACT, SCALAR, SCALAR, PRODUCT]
    assert (settings.lists(10_000), settings.lists(10**7)) == (400, settings.most_lists)
