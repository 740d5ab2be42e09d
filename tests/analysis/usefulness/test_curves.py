"""Learning curves, and `label_ranker` one idea at a time: pairing by task, and going on after a stop."""

import itertools

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from study.analysis import framework
from study.analysis.framework import load_settings, run_analyses
from study.analysis.usefulness import curves
from study.base import paths
from study.base.errors import StudyError
from study.config.compose import load
from study.data.splits import Split

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
    # The steps of the study end with its system.
    chosen = load_settings(curves.LabelSteps)
    whole = load([f"system={chosen.system}"])
    made = [curves.laid_over(whole, changes).system.model for changes in chosen.steps.values()]
    assert made[-1] == whole.system.model
    assert all(one != other for one, other in itertools.pairwise(made))


def test_steps_are_paired_by_task():
    start = np.random.default_rng(0).uniform(0.2, 0.5, 60)
    first = pd.DataFrame({"task_id": range(60), "ndcg@10": start, "recall@10": start})
    same = first.assign(**{"ndcg@10": start + 0.1})
    # Rows in another order are the same tasks.
    parts = {"first": first, "better": same.sample(frac=1, random_state=1), "same": same}
    values = pd.concat([frame.assign(system=title) for title, frame in parts.items()])
    table = curves.label_step_table(values, seed=0).set_index(["metric", "title"])
    better = table.loc[("ndcg@10", "better")]
    assert better["diff"] == pytest.approx(0.1)
    assert better["diff_ci_low"] == pytest.approx(0.1)  # the same gain for every task: no spread
    assert better["p_holm"] < 0.01
    assert table.loc[("ndcg@10", "same"), "p_holm"] == 1
    assert np.isnan(table.loc[("ndcg@10", "first"), "diff"])
    assert table.loc[("recall@10", "better"), "diff"] == 0


def test_smaller_shares_lie_within_larger_ones_and_curves_pair_them_by_task():
    whole = set(SPLIT.tasks("train"))
    kept = [set(curves.part_of(SPLIT, share, draw=3).tasks("train")) for share in (0.25, 0.5, 1.0)]
    assert kept[0] < kept[1] < kept[2] == whole
    assert len(kept[0]) == round(0.25 * len(whole))
    assert kept[1] != set(curves.part_of(SPLIT, 0.5, draw=4).tasks("train"))
    with pytest.raises(StudyError, match="leaves 0 training tasks"):
        curves.part_of(SPLIT, 0.001, draw=1)
    rows = pd.DataFrame(itertools.product((0.5, 1.0), (1, 2), range(4)), columns=["share", "draw", "task_id"])
    rows = rows.assign(system="a", **{"ndcg@10": 0.1 * rows["task_id"] + rows["share"], "recall@10": 0.5})
    table = curves.curve_table(rows, 100, seed=0).set_index(["metric", "share"])
    whole = table.loc[("ndcg@10", 1.0)]
    assert whole["mean"] == pytest.approx(1.15)
    assert [whole["diff"], whole["diff_ci_low"], whole["diff_ci_high"]] == pytest.approx([0.5] * 3)
    assert whole[["tasks", "draws"]].tolist() == [100, 2]
    assert pd.isna(table.loc[("ndcg@10", 0.5), "diff"])


SHARES = curves.Curves("cold", ["linear_xmc", "bm25"], [0.5, 1.0], [1], seed=0)
OF_SHARES = [(name, None, share, 1) for name in SHARES.systems for share in SHARES.shares]
OF_STEPS = [("label_ranker", 0, 1.0, 3), ("label_ranker", 400, 1.0, 3)]


@pytest.mark.parametrize(
    ("name", "wanted", "expected"), [("curves", SHARES, OF_SHARES), ("label_steps", WANTED, OF_STEPS)]
)
def test_a_stopped_analysis_goes_on_and_a_kept_fit_needs_no_cache(monkeypatch, tmp_path, name, wanted, expected):
    asked = []

    def fitted(config, share, draw):
        asked.append((config.system.name, config.system.model.get("trees"), share, draw))
        if len(asked) == 2:
            raise KeyboardInterrupt
        return pd.DataFrame({"task_id": [1, 2], "ndcg@10": [share, 0.1 * draw], "recall@10": 0.0})

    monkeypatch.setattr(paths, "cache", lambda: tmp_path / "cache")
    monkeypatch.setattr(paths, "results", lambda dataset: tmp_path)
    monkeypatch.setattr(framework, "load_settings", lambda kind: wanted)
    monkeypatch.setattr(framework.Context, "split", lambda self, protocol: SPLIT)
    monkeypatch.setattr(curves, "fitted", fitted)
    monkeypatch.setattr(curves, "row_key", lambda config: str(config.system.model.get("trees")))
    monkeypatch.setattr(curves, "with_tuned_values", lambda config: config)
    config = load(["dataset=synthetic"])
    with pytest.raises(KeyboardInterrupt):
        list(run_analyses([f"usefulness/{name}"], config))
    for _ in range(2):
        (path,) = run_analyses([f"usefulness/{name}"], config)
        assert asked == [expected[0], expected[1], *expected[1:]]
        assert not list(tmp_path.glob("cache/**/*.parquet"))
    assert pd.read_csv(path)["mean"].notna().all()
