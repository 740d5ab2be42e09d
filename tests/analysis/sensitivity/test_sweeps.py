"""The paper's optima against the chosen values, by hand and on planted effects; importances with a planted cause."""

import numpy as np
import optuna
import pandas as pd
import pytest
from scipy import stats

from study.analysis.sensitivity import sweeps as sensitivity
from study.search.sweep import load_sweep
from study.search.trials import distributions
from tests.analysis.toys import seeded

VERDICTS = [((0.01, 0.01), 0.02, 0.1, "does not hold"), ((0.01, 0.01), -0.02, -0.1, "holds")]
# The declared test, randomisation, decides alone, and on the side of the mean difference.
VERDICTS += [((0.01, p), 0.02, 0.1, "not contradicted") for p in (0.05, 0.06)]
VERDICTS += [((0.06, 0.01), 0.02, 0.1, "does not hold"), ((0.01, 0.01), 0.02, -0.1, "does not hold")]


def test_the_planted_cause_is_the_most_important():
    """Trials of the joint search, in which the learning rate alone decides."""
    sweep = load_sweep("joint")
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    table = pd.DataFrame([study.ask(distributions(sweep.space)).params for _ in range(40)])
    quality = 0.2 - 0.05 * (np.log10(table["training.learning_rate"]) + 3) ** 2
    table = table.astype({"towers.hidden": float}).assign(**{f"valid/{sweep.objective}": quality})
    table.loc[0, "training.learning_rate"], table.loc[1, "towers.hidden"] = 0.0100001, 127.9999  # rounded in the file
    shares = sensitivity.importance(sweep, table, repeats=3)
    assert shares["parameter"].iloc[0] == "training.learning_rate"
    assert shares["mean"].iloc[0] > 0.6
    assert shares["mean"].sum() == pytest.approx(1)
    assert (shares["low"] <= shares["mean"]).all()
    assert (shares["mean"] <= shares["high"]).all()


def tasks(means: dict[int, float], effect=0.0, n: int = 200, seed: int = 0) -> pd.DataFrame:
    """A per-task table with noise around the mean of every seed; `effect` is added to all."""
    rng, noise = np.random.default_rng(seed), np.random.default_rng(1).normal(0, 0.05, n)
    return seeded({own: 0.5 + mean + noise + rng.normal(0, 0.01, n) + effect for own, mean in means.items()})


def test_verdicts_rest_on_the_declared_test_over_the_family_of_settings():
    seeds = {1: 0.0, 2: 0.01, 3: -0.01}
    same, better, level = tasks(seeds), tasks(seeds, effect=0.02, seed=5), tasks(seeds, seed=6)
    families = {
        "fusion_weight": (load_sweep("fusion_weight"), 0.7, {0.9: same, 0.7: better}),
        "temperature": (load_sweep("temperature"), 0.14, {0.07: same, 0.14: level}),
        "learning_rate": (load_sweep("learning_rate"), 0.001, {0.001: same}),
    }
    table = sensitivity.against_paper(families).set_index("sweep")
    assert table["verdict"].tolist() == ["does not hold", "not contradicted", "holds"]
    assert (table[["family", "seeds"]] == 3).all(axis=None)
    row = table.loc["fusion_weight"]
    difference = better.groupby("task_id")["ndcg@10"].mean() - same.groupby("task_id")["ndcg@10"].mean()
    assert row["diff"] == pytest.approx(difference.mean())
    assert row["diff_ci_low"] < row["diff"] < row["diff_ci_high"]
    expected = stats.wilcoxon(difference.round(5), method="asymptotic").pvalue
    assert row["wilcoxon_p"] == pytest.approx(expected, rel=1e-6)
    assert row["wilcoxon_p_holm"] == pytest.approx(3 * expected, rel=1e-6)  # the smallest of three
    assert table.loc["learning_rate", ["wilcoxon_p", "randomisation_p"]].tolist() == [1, 1]


@pytest.mark.parametrize(("p_values", "difference", "ranks", "word"), VERDICTS)
def test_verdict_by_hand(p_values, difference, ranks, word):
    row = {"chosen": 0.7, "paper": 0.9, "diff": difference, "rank_biserial": ranks}
    row |= dict(zip(("wilcoxon_p_holm", "randomisation_p_holm"), p_values, strict=True))
    assert sensitivity.verdict(row) == word


def test_the_committed_optima_are_those_of_the_committed_sweeps():
    committed = pd.read_csv(sensitivity.folder_of("task2mcp", "temperature").parent / "optima.csv").set_index("sweep")
    means = sensitivity.by_value("task2mcp", load_sweep("fusion_weight"))
    row = committed.loc["fusion_weight"]
    difference = means[row["chosen"]]["ndcg@10"].mean() - means[row["paper"]]["ndcg@10"].mean()
    assert row["diff"] == pytest.approx(difference, abs=1e-5)
