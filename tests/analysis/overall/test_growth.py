"""The growth table on the tiny study: real processes, each row once, and what is lacking named."""

import pandas as pd
import pytest
import yaml

from study import paths
from study.analysis.overall import growth
from study.analysis.overall.bench import growth as stage
from study.config.compose import load
from study.errors import StudyError
from tests.recommend.conftest import exported
from tests.tiny_study import TINY


@pytest.fixture
def small(prepared_root, tmp_path):
    with exported(prepared_root, tmp_path / "study", "system=field_dense") as root:
        sizes = {"field_dense": [60, 300], "bm25": [300]}
        settings = {"seed": 1, "questions": 6, "warm_up": 1, "replaced": 0.3, "sizes": sizes}
        (root / "conf" / "growth.yaml").write_text(yaml.safe_dump(settings))
        file = root / "conf" / "encoders" / "nearest.yaml"
        few = {"exact_below": 100, "most_lists": 4, "piece": 128}
        file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | few))
        yield root


def test_every_size_has_a_row_that_is_measured_once(small, monkeypatch):
    pytest.importorskip("faiss", reason="faiss is not installed (make setup FAISS=1)")
    stage(load(TINY))
    table = pd.read_csv(paths.tables("synthetic") / "growth.csv")
    assert table[["system", "servers", "index"]].to_numpy().tolist() == [
        ["field_dense", 60, "exact"],
        ["bm25", 300, "bm25s"],
        ["field_dense", 300, "ivf_sq8"],
    ]
    assert (table["recall"] >= 0.95).all()
    assert (table["p50_ms"] <= table["p95_ms"]).all()
    assert (table[["build_mib", "answer_mib", "disk_mib", "p50_ms"]] > 0).all(axis=None)
    assert not list((small / ".cache" / "growth").rglob("*.faiss"))
    monkeypatch.setattr(growth, "_in_own_process", lambda *_: pytest.fail("measured again"))
    again = pd.DataFrame(growth.growth_rows("synthetic", growth.Settings.read()))
    pd.testing.assert_frame_equal(again, table, rtol=1e-4, check_dtype=False)


def test_a_system_that_was_not_exported_is_named(small):
    settings = growth.Settings(1, 2, 0, 0.3, {"bm25": [60], "t2mrec": [60]})
    with pytest.raises(StudyError, match="no saved model") as error:
        next(growth.growth_rows("synthetic", settings))
    assert "study export dataset=synthetic system=t2mrec" in str(error.value)
