"""`label_ranker` one idea at a time: what a step replaces, pairing by task, and going on after a stop."""

import itertools

import numpy as np
import pandas as pd
import pytest

from study.analysis import framework
from study.analysis.framework import load_settings, run_analyses
from study.analysis.usefulness import label_steps
from study.base import paths
from study.config.compose import load

STEPS = {"words": {"trees": 0, "ridges": [{"text": 1.0}]}, "all": {}}
SETTINGS = label_steps.LabelSteps(protocol="cold", system="label_ranker", seed=3, steps=STEPS)


def test_steps_are_paired_by_task():
    start = np.random.default_rng(0).uniform(0.2, 0.5, 60)
    first = pd.DataFrame({"task_id": range(60), "ndcg@10": start, "recall@10": start})
    same = first.assign(**{"ndcg@10": start + 0.1})
    # Rows in another order are the same tasks.
    parts = {"first": first, "better": same.sample(frac=1, random_state=1), "same": same}
    values = pd.concat([frame.assign(title=title) for title, frame in parts.items()])
    table = label_steps.label_step_table(values, seed=0).set_index(["metric", "title"])
    better = table.loc[("ndcg@10", "better")]
    assert better["diff"] == pytest.approx(0.1)
    assert better["diff_ci_low"] == pytest.approx(0.1)  # the same gain for every task: no spread
    assert better["p_holm"] < 0.01
    assert table.loc[("ndcg@10", "same"), "p_holm"] == 1
    assert np.isnan(table.loc[("ndcg@10", "first"), "diff"])
    assert table.loc[("recall@10", "better"), "diff"] == 0


def test_a_step_replaces_whole_values_and_a_stopped_analysis_goes_on_and_a_kept_fit_needs_no_cache(
    monkeypatch, tmp_path
):
    models = []

    def fitted(config, seed):
        models.append(config.system.model)
        if len(models) == 2:
            raise KeyboardInterrupt
        return pd.DataFrame({"task_id": [1, 2], "ndcg@10": [0.5, 0.1 * seed], "recall@10": 0.0})

    monkeypatch.setattr(paths, "cache", lambda: tmp_path / "cache")
    monkeypatch.setattr(paths, "results", lambda dataset: tmp_path)
    monkeypatch.setattr(framework, "load_settings", lambda kind: SETTINGS)
    monkeypatch.setattr(label_steps, "fit_step", fitted)
    monkeypatch.setattr(label_steps, "row_key", lambda config: str(config.system.model.trees))
    config, whole = load(["dataset=synthetic"]), load(["system=label_ranker"]).system.model
    with pytest.raises(KeyboardInterrupt):
        list(run_analyses(["usefulness/label_steps"], config))
    for _ in range(2):
        (path,) = run_analyses(["usefulness/label_steps"], config)
        assert (models[0].trees, models[0].ridges) == (0, [{"text": 1.0}])  # a list is replaced, not laid over
        assert models[0].regularisation == whole.regularisation
        assert models[1:] == [whole, whole]
        assert not list(tmp_path.glob("cache/**/*.parquet"))
    assert pd.read_csv(path)["mean"].notna().all()


def test_the_steps_of_the_study_end_with_its_system():
    steps = load_settings(label_steps.LabelSteps).steps
    assert list(steps.values())[-1] == {}
    assert all(one != other for one, other in itertools.pairwise(steps.values()))
