"""How near a rerun is: by hand, against the package repro_eval, and on runs whose distance is planted."""

import warnings

import numpy as np
import pandas as pd
import pytest

from study.analysis.audit import reproduction
from study.analysis.audit.reproduction import EFFECTS, Reproduction, Run, rank_biased_overlap, tau_union
from study.analysis.framework import load_settings

SETTINGS = load_settings(Reproduction)
TASKS = list(range(40))


def test_measures_by_hand():
    assert tau_union([7, 8, 9], [7, 8, 4]) == 1  # the example of Breuer et al.
    assert tau_union([7, 8, 9], [9, 8, 7]) == -1
    assert tau_union([7, 8, 9], [7, 9, 8]) == pytest.approx(1 / 3)
    # Shares 0, 1, 2/3 at depths 1 to 3, weights 1, 1/2, 1/4.
    assert rank_biased_overlap([1, 2, 3], [2, 1, 4], 0.5) == pytest.approx((0 + 1 / 2 + 2 / 3 / 4) / 1.75)
    a, b, base = np.array([0.2, 0.4]), np.array([0.4, 0.8]), np.array([0.1, 0.1])
    assert EFFECTS["effect_ratio"](a, b, base) == pytest.approx(0.5 / 0.2)
    assert EFFECTS["delta_improvement"](a, b, base) == pytest.approx(3 - 6)
    ranked = list(range(10))
    assert [tau_union(ranked, ranked), rank_biased_overlap(ranked, ranked, 0.9)] == pytest.approx([1, 1])
    assert rank_biased_overlap(ranked, [server + 100 for server in ranked], 0.9) == 0


def made(seed, near):
    """A run over `TASKS` of ten of 30 servers: those of seed 0, each redrawn with chance 1 - near."""
    base, rng = np.random.default_rng(0), np.random.default_rng(seed)
    lists = {}
    for task in TASKS:
        first, other = base.permutation(30)[:10].tolist(), rng.permutation(30).tolist()
        kept = [server if rng.random() < near else None for server in first]
        fresh = iter([server for server in other if server not in kept])
        lists[task] = [next(fresh) if server is None else server for server in kept]
    scores = pd.DataFrame({name: rng.random(len(TASKS)) for name in SETTINGS.metrics}, index=TASKS)
    return Run(lists, scores)


def test_the_package_repro_eval_gives_the_same():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it imports names that scipy has moved
        from repro_eval.measure.document_order import KTU, RBO
        from repro_eval.measure.effectiveness import RMSE
        from repro_eval.measure.overall_effects import DRI, ER
        from repro_eval.measure.statistics import ttest
    original, again, base = made(0, 1), made(1, 0.7), made(2, 0)
    found = {
        (measure, metric): value
        for measure, metric, _, value in reproduction.measures(original, again, {"base": base.scores}, SETTINGS)
    }
    # The package orders the union by name, the definition by appearance: servers are named by where they appear.
    first, second = {}, {}
    for task in TASKS:
        names = {}
        for server in (*original.lists[task], *again.lists[task]):
            names.setdefault(server, f"{len(names):02}")
        for run, target in ((original, first), (again, second)):
            target[str(task)] = {names[server]: -float(rank) for rank, server in enumerate(run.lists[task])}
    assert found["tau_union", ""] == pytest.approx(KTU(first, second))
    assert found["rbo", ""] == pytest.approx(RBO(first, second, SETTINGS.persistence, 10, False, False))
    scores = [run.scores.set_axis(map(str, TASKS)).to_dict("index") for run in (original, again, base)]
    for metric in SETTINGS.metrics:
        assert found["rmse", metric] == pytest.approx(RMSE(*scores[:2])[metric])
        assert found["t_test_p", metric] == pytest.approx(ttest(*scores[:2])[metric])
        sides = (scores[0], scores[2], scores[1], scores[2])
        assert found["effect_ratio", metric] == pytest.approx(ER(*sides)[metric])
        assert found["delta_improvement", metric] == pytest.approx(DRI(*sides)[metric])


def test_a_nearer_rerun_is_nearer_and_pairs_of_seeds_are_compared():
    original, near, far = made(0, 1), made(3, 0.9), made(4, 0.1)
    shifted = Run(original.lists, original.scores + 0.1 + near.scores * 1e-3)
    table = reproduction.compare(original, {"1": near, "2": far}, {"bm25": shifted}, {}, SETTINGS)
    table = table.set_index(["comparison", "measure", "metric"])
    row = table.loc[SETTINGS.system, "rbo", ""]
    assert (row["pairs"], row["n"]) == (2, len(TASKS))
    assert 1 > row["most"] > 0.7 > row["least"]
    assert row["mean"] == pytest.approx((row["least"] + row["most"]) / 2)
    assert table.loc[[("bm25", "rbo", ""), (reproduction.SEEDS, "rbo", "")], "pairs"].tolist() == [1, 1]
    # A constant shift leaves the lists and is found for certain.
    assert table.loc[("bm25", "rbo", ""), "mean"] == pytest.approx(1)
    assert table.loc[("bm25", "rmse", "ndcg@10"), "mean"] == pytest.approx(0.1, abs=1e-3)
    assert table.loc[("bm25", "t_test_p", "ndcg@10"), "apart"] == 1
