"""What the rule baseline rests on: variants on planted labels."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from study import paths
from study.analysis.audit import rules
from study.analysis.audit.settings import Rules, read
from study.config.compose import load
from study.config.schema import choices
from study.errors import StudyError

ROOT = Path(__file__).resolve().parents[3]
SETTINGS = read(Rules)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A small synthetic data set, split."""
    from study.pipeline.data import fetch, prepare, split

    folder = tmp_path_factory.mktemp("rules")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("T2M_ROOT", str(folder))
        shutil.copytree(ROOT / "conf", folder / "conf")
        config = load(["dataset=synthetic", "dataset.generator.n_servers=150", "dataset.generator.n_tasks=200"])
        fetch(config)
        prepare(config)
        with pytest.raises(StudyError, match="no split"):
            rules.compute(load(["dataset=synthetic"]))
        split(config)
    return folder


def test_the_table_holds_every_variant_on_both_parts(root, monkeypatch):
    monkeypatch.setenv("T2M_ROOT", str(root))
    written = rules.compute(load(["dataset=synthetic"]))
    assert [path.name for path in written] == ["rules.csv"]
    table = pd.read_csv(written[0]).set_index(["variant", "part", "metric"]).sort_index()
    assert len(table) == (len(SETTINGS.variants) + len(SETTINGS.others)) * 2 * len(SETTINGS.metrics)
    assert set(SETTINGS.others) <= set(table.index.get_level_values("variant"))
    assert (table["low"] <= table["mean"]).all()
    assert (table["mean"] <= table["high"]).all()
    first = next(iter(SETTINGS.variants))
    assert table.loc[first, "difference"].eq(0).all()
    for name in (*SETTINGS.variants, *SETTINGS.others):
        gap = table.loc[name, "mean"] - table.loc[first, "mean"]
        np.testing.assert_allclose(table.loc[name, "difference"], gap, atol=1e-5)
    # Labels follow topics here, which only counts know of beyond the words.
    ndcg = table.xs("ndcg@10", level="metric")["mean"]
    assert (ndcg["counts of the four groups alone"] > ndcg["words alone"]).all()
    assert paths.results("synthetic").joinpath("audit", "rules.json").exists()


def test_the_variants_change_settings_that_the_system_has():
    model = load([f"system={SETTINGS.system}"]).system.model
    assert SETTINGS.system in choices("system")
    assert next(iter(SETTINGS.variants.values())) == {}
    for name, changes in SETTINGS.variants.items():
        changed = rules.configured(SETTINGS, "synthetic", changes).system.model
        assert {key for key in model if changed[key] != model[key]} == set(changes), name
