"""Stage `export`: a saved model stays while settings, code and data would give it again."""

import pandas as pd

from study import paths
from study.config.compose import load
from study.pipeline.export import export
from study.t2mrec.system import T2MRec
from tests.tiny_study import TINY


def test_a_current_model_stays_and_a_stale_or_damaged_one_is_made_again(root, monkeypatch):
    fits, fit = [], T2MRec.fit
    monkeypatch.setattr(T2MRec, "fit", lambda self, *args, **kw: fits.append(1) or fit(self, *args, **kw))
    config = load([*TINY, "system=t2mrec", "system.model.training.epochs=1"])
    folder = export(config)
    assert export(config) == folder
    assert len(fits) == 1
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    export(config)
    assert len(fits) == 2
    export(load([*TINY, "system=t2mrec", "system.model.training.epochs=2"]))
    assert len(fits) == 3
    path = paths.prepared("synthetic") / "tasks.parquet"
    tasks = pd.read_parquet(path)
    tasks.loc[0, "description"] += " more"
    tasks.to_parquet(path)
    export(config)
    assert len(fits) == 4
