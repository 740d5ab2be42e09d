"""`label_ranker` one idea at a time: what a step changes, pairing by task, and going on after a stop."""

import itertools

import numpy as np
import pandas as pd
import pytest

from study import paths
from study.analysis.usefulness import curves
from study.analysis.usefulness.parts import conf
from study.config.compose import load
from study.config.reader import read_settings
from study.errors import StudyError

STEPS = {"words": {"trees": 0, "ridges": [{"text": 1.0}]}, "all": {}}
WANTED = curves.LabelSteps(protocol="cold", system="label_ranker", seed=3, steps=STEPS)


def test_a_step_replaces_whole_values_and_leaves_the_rest_and_an_unknown_setting_is_refused():
    whole = load(["system=label_ranker"])
    first = curves.laid_over(whole, STEPS["words"]).system.model
    assert first.trees == 0
    assert first.ridges == [{"text": 1.0}]
    assert first.regularisation == whole.system.model.regularisation
    assert len(whole.system.model.ridges) > 1  # the configuration itself is untouched
    with pytest.raises(StudyError, match="no setting 'treees'"):
        curves.laid_over(whole, {"treees": 0})


def test_the_steps_of_the_study_are_settings_of_label_fit_and_end_with_it():
    chosen = read_settings(curves.LabelSteps, conf("label_steps"))
    whole = load([f"system={chosen.system}"])
    made = [curves.laid_over(whole, changes).system.model for changes in chosen.steps.values()]
    assert made[-1] == whole.system.model
    assert all(one != other for one, other in itertools.pairwise(made))


def test_steps_are_paired_by_task():
    start = np.random.default_rng(0).uniform(0.2, 0.5, 60)
    first = pd.DataFrame({"task_id": range(60), "ndcg@10": start, "recall@10": start})
    same = first.assign(**{"ndcg@10": start + 0.1})
    # Rows in another order are the same tasks.
    values = {"first": first, "better": same.sample(frac=1, random_state=1), "same": same}
    table = curves.label_step_table(values, seed=0).set_index(["metric", "title"])
    better = table.loc[("ndcg@10", "better")]
    assert better["diff"] == pytest.approx(0.1)
    assert better["diff_ci_low"] == pytest.approx(0.1)  # the same gain for every task: no spread
    assert better["p_holm"] < 0.01
    assert table.loc[("ndcg@10", "same"), "p_holm"] == 1
    assert np.isnan(table.loc[("ndcg@10", "first"), "diff"])
    assert table.loc[("recall@10", "better"), "diff"] == 0


def test_a_stopped_chain_goes_on_and_fits_nothing_twice(monkeypatch, tmp_path):
    asked = []

    def fitted(config, data, split, share, seed):
        asked.append((config.system.model.trees, share, seed))
        if len(asked) == 2:
            raise KeyboardInterrupt
        return pd.DataFrame({"task_id": [1, 2], "ndcg@10": [0.1, 0.3], "recall@10": [0.2, 0.4]})

    monkeypatch.setattr(paths, "cache", lambda: tmp_path)
    monkeypatch.setattr(curves, "fitted", fitted)
    monkeypatch.setattr(curves, "fingerprint", lambda config: str(config.system.model.trees))
    monkeypatch.setattr(curves, "load_inputs", lambda *_: (None, None))
    with pytest.raises(KeyboardInterrupt):
        curves.label_step_fits("synthetic", WANTED)
    for _ in range(2):
        assert list(curves.label_step_fits("synthetic", WANTED)) == ["words", "all"]
    assert asked == [(0, 1.0, 3), (400, 1.0, 3), (400, 1.0, 3)]
