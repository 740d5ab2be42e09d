"""The growth table on the tiny study, and synthetic servers: the real ones first, as far apart as real neighbours."""

import numpy as np
import pandas as pd
import pytest

from study.analysis.framework import load_settings, run_analyses
from study.analysis.overall import growth
from study.base import paths
from study.base.errors import StudyError
from study.config.compose import load
from tests.advisor.engine.conftest import exported
from tests.analysis.toys import change
from tests.tiny_study import TINY


@pytest.fixture
def small(prepared_root, tmp_path):
    with exported(prepared_root, tmp_path / "study", "system=field_dense") as root:
        sizes = {"field_dense": [60, 300], "bm25": [300]}
        change("overall/growth.yaml", seed=1, questions=6, warm_up=1, replaced=0.3, sizes=sizes)
        change("encoders/nearest.yaml", exact_below=100, most_lists=4, piece=128)
        yield root


def test_every_size_has_a_row_that_is_measured_once(small, monkeypatch):
    pytest.importorskip("faiss", reason="faiss is not installed (make setup FAISS=1)")
    list(run_analyses(["cost/growth"], load(TINY)))
    table = pd.read_csv(paths.tables("synthetic") / "growth.csv")
    assert table[["system", "servers", "index"]].to_numpy().tolist() == [
        ["field_dense", 60, "exact"],
        ["bm25", 300, "bm25s"],
        ["field_dense", 300, "ivf_sq8"],
    ]
    assert (table["recall"] >= 0.95).all()
    assert (table[["build_s", "build_mib", "answer_mib", "disk_mib", "cpu_p95_ms"]] > 0).all(axis=None)
    assert not list((small / ".cache" / "growth").rglob("*.faiss"))
    monkeypatch.setattr(growth, "_in_own_process", lambda *_: pytest.fail("measured again"))
    again = pd.DataFrame(growth.growth_rows("synthetic", load_settings(growth.Growth)))
    pd.testing.assert_frame_equal(again, table, rtol=1e-4, check_dtype=False)


def test_a_system_that_was_not_exported_is_named(small):
    settings = growth.Growth(1, 2, 0, 0.3, {"bm25": [60], "t2mrec": [60]})
    with pytest.raises(StudyError, match="no saved model") as error:
        next(growth.growth_rows("synthetic", settings))
    assert "study export dataset=synthetic system=t2mrec" in str(error.value)


def test_real_servers_come_first_and_the_rest_has_their_form_and_is_as_far_apart_as_real_neighbours():
    rng = np.random.default_rng(0)
    blocks = [rng.normal(size=(300, 12)) + 2 * rng.normal(size=(10, 12))[rng.integers(0, 10, 300)] for _ in range(2)]
    unit = [block / np.linalg.norm(block, axis=1, keepdims=True) for block in blocks]
    prior = np.where(np.arange(300) % 3 == 0, -1.0, 0.0)[:, None]
    synthetic = growth.SyntheticVectors(np.hstack([*unit, prior]).astype(np.float32), 2, 12, seed=1)
    piece, parts = synthetic.piece(200, 2000), (slice(0, 12), slice(12, 24))
    np.testing.assert_array_equal(piece[:100], synthetic.real[200:])
    np.testing.assert_array_equal(synthetic.piece(100, 150), synthetic.real[100:150])
    for block in parts:
        np.testing.assert_allclose(np.linalg.norm(piece[:, block], axis=1), 1, atol=1e-5)
    assert set(np.unique(piece[:, 24])) == {-1, 0}
    np.testing.assert_array_equal(piece, synthetic.piece(200, 2000))
    assert not np.array_equal(synthetic.piece(1000, 1100), synthetic.piece(2000, 2100))
    # A synthetic server is as far from its origin as real neighbours are from each other.
    cosines = [synthetic.real[:, block] @ synthetic.real[:, block].T - 2 * np.eye(300) for block in parts]
    origins = rng.integers(0, 300, (3, 20_000))
    moved = synthetic._move_vectors(origins, synthetic.length)
    own = [(moved[:, block] * synthetic.real[origins[0]][:, block]).sum(axis=1) for block in parts]
    assert np.median(own) == pytest.approx(np.median([near.max(axis=1) for near in cosines]), abs=0.02)


def test_words_are_those_of_two_servers():
    real = [[1, 2, 3], [], [10, 11, 12, 13]]
    words_of = list(growth.synthetic_words(real, 500, 0.3, seed=2))
    assert words_of[:3] == real
    assert len(words_of) == 500
    assert {len(words) for words in words_of[3:]} == {3, 4}
    words = np.concatenate(words_of[3:])
    assert set(words) <= {1, 2, 3, 10, 11, 12, 13}
    of_first = np.concatenate([one for one in words_of[3:] if len(one) == 3])
    assert np.mean(of_first > 3) == pytest.approx(0.15, abs=0.05)  # half of the swaps take a word of the own server
    assert list(growth.synthetic_words(real, 2, 0.3, seed=2)) == real[:2]
