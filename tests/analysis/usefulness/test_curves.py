"""Learning curves, and `label_ranker` one idea at a time: pairing by task, and going on after a stop."""

import itertools

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from study import paths
from study.analysis.usefulness import curves
from study.analysis.usefulness.parts import conf
from study.config.compose import load
from study.config.reader import read_settings
from study.data.splits import Split
from study.errors import StudyError

STEPS = {"words": {"trees": 0, "ridges": [{"text": 1.0}]}, "all": {}}
WANTED = curves.LabelSteps(protocol="cold", system="label_ranker", seed=3, steps=STEPS)
TRAIN = sp.csr_matrix((np.random.default_rng(0).random((40, 6)) < 0.5).astype(np.float32))
SPLIT = Split("cold", TRAIN, TRAIN * 0, TRAIN * 0, cold=True)


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


def test_smaller_shares_lie_within_larger_ones():
    whole = set(SPLIT.tasks("train"))
    kept = [set(curves.part_of(SPLIT, share, draw=3).tasks("train")) for share in (0.25, 0.5, 1.0)]
    assert kept[0] < kept[1] < kept[2] == whole
    assert len(kept[0]) == round(0.25 * len(whole))
    assert kept[1] != set(curves.part_of(SPLIT, 0.5, draw=4).tasks("train"))
    assert (curves.part_of(SPLIT, 1.0, draw=3).train != TRAIN).nnz == 0
    with pytest.raises(StudyError, match="leaves 0 training tasks"):
        curves.part_of(SPLIT, 0.001, draw=1)


def test_curves_pair_the_shares_by_task():
    rows = pd.DataFrame(itertools.product((0.5, 1.0), (1, 2), range(4)), columns=["share", "draw", "task_id"])
    rows = rows.assign(system="a", **{"ndcg@10": 0.1 * rows["task_id"] + rows["share"], "recall@10": 0.5})
    table = curves.curve_table(rows, 100, seed=0).set_index(["metric", "share"])
    whole = table.loc[("ndcg@10", 1.0)]
    assert whole["mean"] == pytest.approx(1.15)
    assert [whole["diff"], whole["diff_ci_low"], whole["diff_ci_high"]] == pytest.approx([0.5] * 3)
    assert whole[["tasks", "draws"]].tolist() == [100, 2]
    assert pd.isna(table.loc[("ndcg@10", 0.5), "diff"])


@pytest.fixture
def fits(monkeypatch, tmp_path):
    """The systems and draws that are fitted, with their number of trees; the second fit is stopped."""
    asked = []

    def fitted(config, data, split, share, draw):
        asked.append((config.system.name, config.system.model.get("trees"), share, draw))
        if len(asked) == 2:
            raise KeyboardInterrupt
        return pd.DataFrame({"task_id": [1, 2], "ndcg@10": [share, 0.1 * draw], "recall@10": 0.0})

    monkeypatch.setattr(paths, "cache", lambda: tmp_path)
    monkeypatch.setattr(curves, "fitted", fitted)
    monkeypatch.setattr(curves, "row_key", lambda config: str(config.system.model.get("trees")))
    monkeypatch.setattr(curves, "load_inputs", lambda *_: (None, SPLIT))
    monkeypatch.setattr(curves, "with_tuned_values", lambda config: config)
    return asked


def test_a_stopped_curve_goes_on_and_fits_nothing_twice(fits):
    wanted = curves.Curves("cold", ["linear_xmc", "bm25"], [0.5, 1.0], [1], seed=0)
    with pytest.raises(KeyboardInterrupt):
        curves.curve_fits("synthetic", wanted)
    for _ in range(2):
        values = curves.curve_fits("synthetic", wanted)
    names, shares = ["linear_xmc"] * 3 + ["bm25"] * 2, [0.5, 1.0, 1.0, 0.5, 1.0]
    assert fits == [(name, None, share, 1) for name, share in zip(names, shares, strict=True)]
    assert len(values) == 8
    assert values.query("system == 'bm25' and share == 1")["ndcg@10"].tolist() == [1.0, 0.1]


def test_a_stopped_chain_goes_on_and_fits_nothing_twice(fits):
    with pytest.raises(KeyboardInterrupt):
        curves.label_step_fits("synthetic", WANTED)
    for _ in range(2):
        assert list(curves.label_step_fits("synthetic", WANTED)) == ["words", "all"]
    assert fits == [("label_ranker", trees, 1.0, 3) for trees in (0, 400, 400)]
