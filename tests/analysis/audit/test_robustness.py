"""Differences of systems on further splits: kept fits, their variance by hand and in simulated studies."""

import numpy as np
import pandas as pd
import pytest

from study.analysis.audit import robustness
from study.analysis.audit.robustness import Robustness, components
from study.analysis.framework import load_settings, run_analyses
from study.config import compose as config
from study.runner.rows import run_row
from tests.analysis.toys import seeded, small_study

TINY = ["dataset=synthetic", "profile=smoke", "dataset.generator.n_servers=120", "dataset.generator.n_tasks=100"]
TINY += ["dataset.generator.list_length=10"]
METRIC = "ndcg@10"


def test_differences_on_further_splits_are_those_of_the_kept_fits_which_are_made_once(tmp_path, monkeypatch):
    settings = {"split_seeds": [101, 102], "few_splits": {"attribute_counts": 1}}
    settings["split_systems"] = {"cold": ["popularity", "tfidf", "attribute_counts"], "warm": ["popularity", "tfidf"]}
    settings["differences"] = {"cold": [["tfidf", "popularity"], ["tfidf", "t2mrec"]]}  # T2MRec has no run
    settings["differences"]["warm"] = [["tfidf", "popularity"]]
    changes = {"audit/robustness.yaml": settings, "profile/smoke.yaml": {"seeds": [1, 2]}}
    with small_study(tmp_path, TINY, changes):
        for protocol in ("cold", "warm"):
            for system in ("popularity", "tfidf"):
                run_row(config.load([*TINY, f"system={system}", f"protocol={protocol}"]))
        (path,) = run_analyses(["robustness/variance"], config.load(TINY))
        fits = robustness.split_fits("synthetic")
        kept = fits.load()
        assert len(kept[list(fits.keys)].drop_duplicates()) == 2 * 5 - 1
        runs, spreads = kept.query("metric == 'ndcg@10'"), []
        for protocol, row in zip(("cold", "warm"), pd.read_csv(path).to_dict("records"), strict=True):
            wide = runs[runs["protocol"] == protocol].pivot_table(index="split_seed", columns="system", values="value")
            assert (row["protocol"], row["system"], row["reference"]) == (protocol, "tfidf", "popularity")
            assert (row["splits"], row["seeds"]) == (2, 2)
            assert row["split_sd"] == pytest.approx((wide["tfidf"] - wide["popularity"]).std(), rel=1e-4)
            spreads.append(row["split_sd"])
        assert spreads[0] != spreads[1]
        monkeypatch.setattr(robustness, "run_seed", None)  # nothing is run again
        again = robustness.run_splits(config.load(TINY), load_settings(Robustness))
        pd.testing.assert_frame_equal(again, kept)


def test_components_by_hand():
    """Differences 0.4, 0.2, 0.0, 0.2: mean 0.2, variance 0.08 / 3. Means over seeds 0.5 and 0.3, and 0.2 twice."""
    system = seeded({1: [0.7, 0.5, 0.3, 0.5], 2: [0.5, 0.3, 0.1, 0.3]})
    reference = seeded({seed: [0.2] * 4 for seed in (1, 2)})
    found = components(system, reference, METRIC, n_tasks=16, over_splits=[0.0, 0.4])
    assert found["diff"] == pytest.approx(0.2)
    assert found["task_sd"] ** 2 == pytest.approx(0.08 / 3 / 4)
    assert found["seed_sd"] ** 2 == pytest.approx(0.02 / 2)
    assert (found["split_diff"], found["split_sd"] ** 2) == pytest.approx((0.2, 0.08))
    assert found["split_alone_sd"] ** 2 == pytest.approx(0.08 - 0.75 * 0.08 / 12 - 0.02)
    assert [found[name] for name in ("n", "seeds", "reference_seeds", "splits")] == [4, 2, 2, 2]
    assert components(system, reference, METRIC, n_tasks=16, over_splits=[0.2, 0.2])["split_alone_sd"] == 0
    # One seed and no split tell nothing.
    found = components(seeded({1: [0.1, 0.5]}), seeded({1: [0.1, 0.2]}), METRIC, n_tasks=4)
    assert found["splits"] == 0
    assert np.isnan([found[name] for name in ("seed_sd", "split_diff", "split_sd", "split_alone_sd")]).all()


def test_splits_that_only_draw_other_tasks_leave_nothing_to_the_split_itself():
    """Fixed differences of 400 tasks of which a split tests 100: its spread is that of drawing without replacement."""
    rng = np.random.default_rng(0)
    tasks, zeros = rng.normal(0.5, 0.1, 400), seeded(dict.fromkeys((1, 2), np.zeros(100)))
    drawn = [rng.permutation(tasks)[:100] for _ in range(2000)]
    over = [part.mean() for part in drawn]
    one = seeded(dict.fromkeys((1, 2), drawn[0]))
    found = components(one, zeros, METRIC, n_tasks=400, over_splits=over)
    assert found["split_sd"] == pytest.approx(0.75**0.5 * tasks.std() / 10, rel=0.05)
    assert found["split_alone_sd"] < 0.4 * found["split_sd"]
    planted = found["split_sd"] ** 2 + 0.02**2
    moved = components(one, zeros, METRIC, n_tasks=400, over_splits=np.array(over) + rng.normal(0, 0.02, 2000))
    assert moved["split_sd"] ** 2 == pytest.approx(planted, rel=0.1)
    assert moved["split_alone_sd"] == pytest.approx(0.02, abs=0.003)
