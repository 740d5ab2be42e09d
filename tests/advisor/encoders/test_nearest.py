"""The search among many vectors: against an exact scan, after a stop, with filters."""

import json
from dataclasses import replace

import numpy as np
import pytest

from study.advisor.encoders.nearest import EXACT, PRODUCT, SCALAR, NearestIndex, Settings, Source, best, build, recall
from study.base.errors import StudyError

N, DIMENSION = 3000, 24
SMALL = Settings(10**9, 10**9, 700, 16, 100, 16, 8, (50, 400), 0.9, 0.03)
KINDS = {EXACT: SMALL, SCALAR: replace(SMALL, exact_below=100)}
KINDS[PRODUCT] = replace(KINDS[SCALAR], scalar_below=200)
RNG = np.random.default_rng(0)
CENTRES = RNG.normal(size=(40, DIMENSION))
VECTORS, QUESTIONS = (
    (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    for rows in (
        CENTRES[RNG.integers(0, 40, N)] + 0.5 * RNG.normal(size=(N, DIMENSION)),
        CENTRES[RNG.integers(0, 40, 200)] + 0.4 * RNG.normal(size=(200, DIMENSION)),
    )
)
SOURCE = Source(N, DIMENSION, lambda start, stop: VECTORS[start:stop], "toy")


def exact(questions, vectors, allowed=None):
    products = questions @ vectors.T
    if allowed is not None:
        products[:, ~allowed] = -np.inf
    return np.argsort(-products, axis=1, kind="stable")[:, :10]


@pytest.fixture(params=list(KINDS))
def kind(request):
    if request.param != EXACT:
        pytest.importorskip("faiss", reason="faiss is not installed (make setup FAISS=1)")
    return request.param


@pytest.fixture
def index(kind, tmp_path):
    return build(tmp_path / "index", SOURCE, QUESTIONS, KINDS[kind])


def test_the_measured_recall_is_that_against_a_scan_of_the_true_vectors(index, kind):
    assert index.kind == kind
    rows, products = index.search(QUESTIONS, 10)
    true = exact(QUESTIONS, VECTORS)
    assert index.about["recall"] == pytest.approx(recall(rows[1::2], true[1::2]), abs=1e-4)
    assert recall(rows, true) >= (1 if kind == EXACT else 0.9)
    np.testing.assert_allclose(products, np.take_along_axis(QUESTIONS @ VECTORS.T, rows, 1), atol=0.02)
    assert (np.diff(products, axis=1) <= 0).all()


@pytest.mark.parametrize("share", [0.5, 0.01])
def test_a_filter_names_allowed_rows_alone_and_the_nearest_of_them(index, share):
    allowed = np.random.default_rng(1).random(N) < share
    rows, _ = index.search(QUESTIONS, 10, allowed)
    assert allowed[rows].all()
    assert recall(rows, exact(QUESTIONS, VECTORS, allowed)) >= 0.9


def test_a_stopped_build_goes_on_and_ends_with_the_same_index(kind, tmp_path):
    if kind == EXACT:
        pytest.skip("a small catalogue is one piece")
    asked = []

    def piece(start, stop, most):
        asked.append(start)
        if len(asked) > most:
            raise KeyboardInterrupt
        return VECTORS[start:stop]

    whole = build(tmp_path / "whole", SOURCE, QUESTIONS, KINDS[kind])
    pieces = len(range(0, N, SMALL.piece))
    folder = tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):  # the sample reads each of so few pieces first
        build(folder, SOURCE._replace(piece=lambda *span: piece(*span, most=pieces + 2)), QUESTIONS, KINDS[kind])
    asked.clear()
    resumed = build(folder, SOURCE._replace(piece=lambda *span: piece(*span, most=99)), QUESTIONS, KINDS[kind])
    assert asked == list(range(0, N, SMALL.piece))[2:]
    for one, other in zip(whole.search(QUESTIONS, 10), resumed.search(QUESTIONS, 10), strict=True):
        np.testing.assert_array_equal(one, other)
    assert not list(folder.glob("piece-*"))
    asked.clear()
    build(folder, SOURCE._replace(piece=piece), QUESTIONS, KINDS[kind])
    assert not asked, "a finished index is read"
    other = SOURCE._replace(identity="another catalogue", piece=lambda *span: -VECTORS[slice(*span)])
    changed = build(folder, other, QUESTIONS, KINDS[kind])
    assert recall(changed.search(QUESTIONS, 10)[0], exact(QUESTIONS, -VECTORS)) >= 0.9


def test_an_index_below_the_wanted_recall_is_refused_with_advice_and_kept_for_less(tmp_path):
    pytest.importorskip("faiss", reason="faiss is not installed (make setup FAISS=1)")
    strict = replace(KINDS[PRODUCT], wanted=0.999, candidates=(10,), most_lists=4, reduced=2, subquantisers=1)
    with pytest.raises(StudyError, match=r"of the ten nearest, 0.999 are wanted") as error:
        build(tmp_path, SOURCE, QUESTIONS, strict)
    assert "candidates" in str(error.value)
    measured = json.loads((tmp_path / "about.json").read_text())["recall"]
    calls = SOURCE._replace(piece=lambda *_: pytest.fail("the index is there"))
    assert build(tmp_path, calls, QUESTIONS, replace(strict, wanted=measured)).about["recall"] == measured


@pytest.mark.parametrize("name", ["about.json", "vectors.npy"])
def test_a_damaged_index_is_named(tmp_path, name):
    build(tmp_path, SOURCE, QUESTIONS, SMALL)
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:50])
    with pytest.raises(StudyError, match="does not load"):
        NearestIndex(tmp_path, SMALL)


def test_a_large_catalogue_without_faiss_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    with pytest.raises(StudyError, match="faiss") as error:
        build(tmp_path, SOURCE, QUESTIONS, KINDS[SCALAR])
    assert "FAISS=1" in str(error.value)


def test_best_and_recall_by_hand():
    assert recall(np.array([[1, 2], [3, -1]]), np.array([[2, 9], [4, 3]])) == 0.5
    assert recall(np.array([[1, 7, -1]]), np.array([[1, -1, -1]])) == 1
    rows = np.array([7, 3, 5])
    found, products = best([(rows, np.array([[1.0, 2.0, 1.0]])), (np.array([9]), np.array([[2.0]]))], 1, 6)
    assert found.tolist() == [[3, 9, 5, 7, -1, -1]]
    assert products.tolist() == [[2, 2, 1, 1, -np.inf, -np.inf]]
    assert best([(rows, np.array([[1.0, 3.0, 2.0]]))], 1, 2)[0].tolist() == [[3, 5]]


def test_the_file_of_settings_divides_the_sizes_as_it_says():
    settings = Settings.read()
    assert [settings.kind(n) for n in (49_999, 50_000, 999_999, 1_000_000)] == [EXACT, SCALAR, SCALAR, PRODUCT]
    assert (settings.lists(10_000), settings.lists(10**7)) == (400, settings.most_lists)
