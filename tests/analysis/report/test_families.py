"""The declared families of tests, untouched by a further system; one interval for one mean, wherever it stands."""

import numpy as np
import pandas as pd
import pytest
from statsmodels.stats.multitest import multipletests

from study.analysis.audit import verdicts
from study.analysis.report.runs import (
    Statistics,
    compare_with_reference,
    declared_families,
    mean_intervals,
    overall_means,
    read_statistics,
)
from study.base.errors import StudyError
from study.config.compose import choices
from study.evaluation import per_task
from study.evaluation.metrics import PAPER_METRICS
from study.evaluation.statistics import bootstrap_interval

CELLS = ["system", "metric"]


def frames(names):
    """Per-task tables of 40 tasks, each system a little better than the one before."""
    rng, found = np.random.default_rng(0), {}
    base = rng.uniform(0.1, 0.6, 40)
    for place, name in enumerate(names):
        values = {metric: base + 0.01 * place + rng.normal(0, 0.05, 40) for metric in ("recall@10", "ndcg@10")}
        found[name] = per_task.table(range(40), 0, pd.DataFrame(values).clip(0, 1))
    return found


def test_every_family_is_corrected_by_itself():
    families = declared_families("cold", [])
    ran = ["t2mrec", "bm25", "own", "lc_rec", "t2mrec_wo_cl", "popularity_theme"]
    table = compare_with_reference(frames(ran), "cold", [])
    assert table["system"].tolist() == [name for name in ran[1:] for _ in range(2)]  # in the order given
    for family, members in families.items():
        rows = table[table["system"].isin(members)]
        missing = [1.0] * (2 * len(members) - len(rows))
        for test in ("wilcoxon_p", "randomisation_p"):
            expected = multipletests([*rows[test], *missing], method="holm")[1][: len(rows)]
            np.testing.assert_allclose(rows[f"{test}_holm"], expected, err_msg=family)
    assert table.loc[table["system"] == "own", ["wilcoxon_p_holm", "randomisation_p_holm"]].isna().all(axis=None)


@pytest.mark.parametrize("protocol", ["cold", "cold_grouped", "warm", "loo"])
def test_a_further_system_changes_no_p_value_of_another(protocol):
    families = declared_families(protocol, [])
    ran = ["t2mrec", *(name for members in families.values() for name in members[:3])]
    before = compare_with_reference(frames(ran), protocol, []).set_index(CELLS)
    # The new ones come last, so that the others keep their values.
    after = compare_with_reference(frames([*ran, "own", "own_tuned"]), protocol, []).set_index(CELLS)
    assert set(after.index.get_level_values("system")) - set(before.index.get_level_values("system")) == {
        "own",
        "own_tuned",
    }
    pd.testing.assert_frame_equal(after.loc[before.index], before)


def test_the_paper_s_eleven_are_compared_where_tasks_are_known_and_where_they_are_new():
    assert {len(declared_families(protocol, [])["paper"]) for protocol in ("cold", "warm", "loo")} == {11}


def test_a_family_names_systems_of_conf_each_once():
    declared = read_statistics()
    names = [name for family in declared.families.values() for name in family]
    assert set(names) | set(declared.judged) - {"labels"} <= set(choices("system"))
    with pytest.raises(StudyError, match="bm25 stands twice"):
        Statistics("wilcoxon", 0.05, {"a": ["bm25"], "b": ["bm25"]}, [], {})


def test_a_mean_has_one_interval():
    rng = np.random.default_rng(3)
    parts = [
        per_task.table(
            range(30), seed, pd.DataFrame(rng.uniform(0, 1, (30, len(PAPER_METRICS))), columns=PAPER_METRICS)
        )
        for seed in (1, 2)
    ]
    frame = pd.concat(parts, ignore_index=True)
    found = mean_intervals({"a": frame, "b": frame[frame["task_id"] < 20]}).set_index(["system", "measure"])
    # By hand: the bootstrap of the tasks' means over seeds.
    tasks = frame.groupby("task_id")["ndcg@10"].mean().to_numpy()
    assert found.loc[("a", "ndcg@10")].tolist() == pytest.approx(bootstrap_interval(tasks, seed=0))
    assert found.loc[("b", "ndcg@10")].tolist() == pytest.approx(bootstrap_interval(tasks[:20], seed=0))
    printed = verdicts.measured(frame).cells
    overall = overall_means({"a": frame}).loc["a"]
    for name in ("recall@5", "ndcg@10", "f1_of_means@10"):
        ends = found.loc[("a", name)].tolist()
        assert printed.loc[name, ["ci_low", "ci_high"]].tolist() == pytest.approx(ends)
        assert overall.loc[name, ["ci_low", "ci_high"]].tolist() == pytest.approx(ends)
        assert ends[0] < overall.loc[name, "mean"] < ends[1]
    assert mean_intervals({"one": frame[frame["task_id"] == 0]})[["ci_low", "ci_high"]].isna().all(axis=None)
