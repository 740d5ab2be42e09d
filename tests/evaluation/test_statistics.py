"""The tests, the interval and the effect size: by hand, against independent libraries, and by planted truths."""

import itertools
import math
from functools import partial

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import roc_auc_score
from statsmodels.stats.multitest import multipletests

from study.base.errors import StudyError
from study.evaluation import statistics
from study.evaluation.statistics import holm


def table(values, seeds=1, metric="ndcg@10"):
    """Per-task table: values of shape (n_tasks,) for all seeds, or (seeds, n_tasks)."""
    grid = np.atleast_2d(values)
    grid = np.repeat(grid, seeds, axis=0) if len(grid) == 1 else grid
    parts = [pd.DataFrame({"task_id": np.arange(len(row)), "seed": seed, metric: row}) for seed, row in enumerate(grid)]
    return pd.concat(parts, ignore_index=True)


def zero_inflated(rng, n, shift=0.0):
    """Differences as NDCG gives them: half of them zero, the rest symmetric about `shift`, on a coarse grid."""
    moved = rng.random(n) < 0.5
    return np.where(moved, np.round(rng.normal(shift, 0.2, n), 2), 0.0)


def test_bootstrap_means_are_the_same_in_whatever_order_tasks_are_added():
    rng = np.random.default_rng(0)
    values = np.column_stack([rng.random(961), 1e6 * rng.normal(size=961), np.zeros(961), 1e-9 * rng.random(961)])
    exact = statistics.in_exact_units(values)
    assert np.abs(exact - values).max(axis=0) == pytest.approx(0, abs=1e-6)
    assert (np.abs(exact - values) <= 961 * 2e-16 * np.abs(values).max(axis=0)).all()
    counts = rng.multinomial(961, np.full(961, 1 / 961), size=50).astype(float)
    sums = counts @ exact
    for order in (np.arange(961)[::-1], rng.permutation(961)):
        np.testing.assert_array_equal(counts[:, order] @ exact[order], sums)
    by_hand = [[math.fsum(row * column) for column in exact.T] for row in counts]
    np.testing.assert_array_equal(sums, by_hand)
    assert (statistics.bootstrap_means(values, seed=0)[:, 2] == 0).all()


def test_holm_by_hand():
    # Sorted 0.01 0.02 0.03 0.04 times 4 3 2 1: 0.04 0.06 0.06 0.04, and never below an earlier one.
    assert holm([0.04, 0.01, 0.03, 0.02]).tolist() == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.9, 0.8]).tolist() == [1, 1]
    assert holm([]).tolist() == []
    for bad in (np.nan, -0.1, 1.1):
        with pytest.raises(ValueError, match="p-values"):
            holm([0.1, bad])


ALTERNATIVES = ["two-sided", "greater", "less"]
RANDOMISATION = partial(statistics.randomisation, seed=0)
# Of the eight sign patterns of three differences one is all up: 1/8 one-sided, 1/4 two-sided.
BY_HAND = [(statistics.wilcoxon, [0.3, 0.1, 0.2], [1 / 4, 1 / 8, 1])]
BY_HAND += [(statistics.wilcoxon, [-0.3, -0.1, -0.2], [1 / 4, 1, 1 / 8])]
BY_HAND += [(statistics.wilcoxon, [0, 0.5, 0.5, 0.5, 0.5, 0], [1 / 8, 1 / 16, 1])]  # ties and zeros: four up
# Ranks of 1 1 -2 are 1.5 1.5 3: the positive sum 3 is reached by 5 of 8 patterns, by 5 of 8 from below.
BY_HAND += [(statistics.wilcoxon, [1, 1, -2], [1, 5 / 8, 5 / 8]), (statistics.wilcoxon, [0] * 4, [1, 1, 1])]
# All eight sign patterns of 1 2 4: only +++ reaches 7, only --- reaches -7.
BY_HAND += [(RANDOMISATION, [1, 2, 4, 0, 0], [2 / 8, 1 / 8, 1])]
# 1 2 -4 sums to -1; |sum| is at least 1 for every pattern, and at most -1 for half of them.
BY_HAND += [(RANDOMISATION, [1, 2, -4], [1, 5 / 8, 4 / 8])]


@pytest.mark.parametrize(("test", "difference", "expected"), BY_HAND)
def test_few_differences_by_hand(test, difference, expected):
    assert [test(np.array(difference, float), alternative) for alternative in ALTERNATIVES] == expected


@settings(max_examples=40)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=10), st.sampled_from(ALTERNATIVES))
def test_few_differences_are_tested_by_all_sign_patterns(values, alternative):
    moved = np.array([value for value in values if value])
    patterns = np.array(list(itertools.product([-1, 1], repeat=len(moved))))
    for test, sizes in ((statistics.wilcoxon, stats.rankdata(abs(moved))), (RANDOMISATION, abs(moved))):
        sums, observed = patterns @ sizes, np.sign(moved) @ sizes
        extreme = {"two-sided": abs(sums) >= abs(observed), "greater": sums >= observed, "less": sums <= observed}
        assert test(np.array(values) / 10, alternative) == pytest.approx(extreme[alternative].mean())


@pytest.mark.parametrize("alternative", ALTERNATIVES)
@pytest.mark.parametrize(("n", "away"), [(4, 1e-12), (20, 1e-12), (50, 1e-12), (51, 0.25)])
def test_wilcoxon_without_ties_agrees_with_scipy(n, away, alternative):
    difference = np.random.default_rng(n).normal(0.3, 1, n)
    exact = stats.wilcoxon(difference, method="exact", alternative=alternative).pvalue
    assert statistics.wilcoxon(difference, alternative) == pytest.approx(exact, rel=away)


def test_wilcoxon_of_many_differences_by_hand():
    # The mean of W+ is n (n + 1) / 4, its variance n (n + 1) (2 n + 1) / 24; no continuity correction.
    difference = np.arange(1.0, 61) * np.where(np.arange(60) % 3, 1, -1)
    z = (difference[difference > 0].sum() - 60 * 61 / 4) / np.sqrt(60 * 61 * 121 / 24)
    assert statistics.wilcoxon(difference) == pytest.approx(2 * stats.norm.sf(z))
    assert statistics.wilcoxon(difference, "greater") == pytest.approx(stats.norm.sf(z))


@pytest.mark.parametrize("alternative", ALTERNATIVES)
@pytest.mark.parametrize("shift", [-0.03, 0.02])
def test_randomisation_agrees_with_scipy(alternative, shift):
    difference = zero_inflated(np.random.default_rng(3), 120, shift)
    theirs = stats.permutation_test(
        (difference, np.zeros_like(difference)),
        lambda x, y, axis: (x - y).mean(axis=axis),
        permutation_type="samples",
        vectorized=True,
        alternative=alternative,
        n_resamples=10_000,
        rng=np.random.default_rng(5),
    ).pvalue
    ours = statistics.randomisation(difference, alternative, seed=6, resamples=10_000)
    # Two estimates with 10,000 draws each: four standard errors of their difference.
    assert abs(ours - theirs) < 4 * np.sqrt(2 * theirs * (1 - theirs) / 10_000) + 1e-4


def test_randomisation_is_the_same_for_the_same_seed_and_never_zero():
    difference = np.full(100, 0.1)
    assert statistics.randomisation(difference, seed=1, resamples=999) == 1 / 1000
    mixed = zero_inflated(np.random.default_rng(0), 100)
    values = [statistics.randomisation(mixed, seed=seed, resamples=999) for seed in (1, 1, 2)]
    assert values[0] == values[1] != values[2]


def share_below(test, simulations, n, shift, alpha=0.05):
    rng = np.random.default_rng(2026)
    return sum(test(zero_inflated(rng, n, shift)) < alpha + 1e-12 for _ in range(simulations)) / simulations


TESTS = {
    "wilcoxon": statistics.wilcoxon,
    # With 399 draws p takes the values i / 400, so p <= 0.05 has probability 0.05 exactly.
    "randomisation": lambda difference: statistics.randomisation(difference, seed=0, resamples=399),
    "wilcoxon, greater": lambda difference: statistics.wilcoxon(difference, "greater"),
    "randomisation, less": lambda difference: statistics.randomisation(difference, "less", seed=0, resamples=399),
}


@pytest.mark.parametrize("name", TESTS)
def test_without_an_effect_one_in_twenty_is_significant(name):
    simulations = 1500
    low, high = stats.binom.interval(0.9999, simulations, 0.05)
    found = share_below(TESTS[name], simulations, 80, 0.0) * simulations
    assert low <= found <= high
    # The tolerance can fail: a two-sided test that forgot to double, or halved twice, lies outside it.
    assert not low <= 0.1 * simulations <= high
    assert not low <= 0.025 * simulations <= high


@pytest.mark.parametrize("name", ["wilcoxon", "randomisation"])
def test_a_planted_effect_is_found(name):
    assert share_below(TESTS[name], 60, 150, 0.12) > 0.95


def test_holm_keeps_the_family_wise_error_rate():
    rng = np.random.default_rng(11)
    simulations = 400
    families = [[statistics.wilcoxon(zero_inflated(rng, 80)) for _ in range(6)] for _ in range(simulations)]
    corrected = sum(holm(family).min() < 0.05 for family in families)
    uncorrected = sum(min(family) < 0.05 for family in families)
    assert corrected <= stats.binom.ppf(0.9999, simulations, 0.05)
    assert uncorrected > stats.binom.ppf(0.9999, simulations, 0.05)


def test_intervals_are_those_of_scipy_also_of_constant_and_single_differences():
    difference = np.random.default_rng(4).normal(0.2, 1, 300)
    draws = {"n_resamples": 2000, "batch": statistics.BATCH // 300, "method": "percentile"}
    theirs = stats.bootstrap((difference,), np.mean, rng=np.random.default_rng(9), **draws).confidence_interval
    ours = statistics.bootstrap_interval(difference, seed=9, resamples=2000)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)
    assert statistics.bootstrap_interval(np.full(20, 0.25), seed=0) == pytest.approx((0.25, 0.25))
    assert statistics.bootstrap_interval(np.zeros(20), seed=0) == (0, 0)
    assert np.isnan(statistics.bootstrap_interval(np.array([0.3]), seed=0)).all()


def test_rank_biserial_by_hand():
    # |d| ranks: 0.1 -> 1, 0.2 and -0.2 -> 2.5 each, 0.5 -> 4; favourable 1 + 2.5 + 4, unfavourable 2.5.
    assert statistics.rank_biserial(np.array([0.0, 0.1, -0.2, 0.2, 0.5])) == pytest.approx((7.5 - 2.5) / 10)
    assert statistics.rank_biserial(np.array([0.1, 0.4])) == 1
    assert statistics.rank_biserial(np.array([-0.1, -0.4, 0.0])) == -1
    assert statistics.rank_biserial(np.zeros(3)) == 0


def test_compare_by_hand():
    # Task 2 has no relevant servers: it is left out and counted.
    system, reference = table([0.5, 0.25, np.nan, 0.0, 1.0, 0.75]), table([0.25, 0.25, np.nan, 0.0, 0.0, 1.0])
    record = statistics.compare(system, reference, "ndcg@10", seed=0)
    counted = {"metric": "ndcg@10", "n": 5, "undefined": 1, "wins": 2, "ties": 2, "losses": 1, "zeros": 1}
    assert {name: record[name] for name in counted} == counted
    means = [record[name] for name in ("mean_system", "mean_reference", "diff")]
    assert means == pytest.approx([0.5, 0.3, 0.2])
    # Non-zero differences 0.25, 1, -0.25 have ranks 1.5, 3, 1.5.
    assert record["rank_biserial"] == pytest.approx(3 / 6)
    # The sign patterns of 0.25 1 0.25 sum to 1.5, 1, 1, 0.5 and their negatives: six of eight reach 1.
    assert record["randomisation_p"] == 6 / 8
    assert record["diff_ci_low"] <= record["diff"] <= record["diff_ci_high"]


def test_a_worse_system_is_reported_as_worse_and_swapping_sides_mirrors_the_record():
    rng = np.random.default_rng(0)
    good = rng.uniform(0.3, 0.8, 60)
    bad = good - rng.uniform(0, 0.2, 60)
    worse, better = (
        statistics.compare(table(one), table(other), "ndcg@10", seed=0, alternative="greater")
        for one, other in ((bad, good), (good, bad))
    )
    assert worse["diff"] <= worse["diff_ci_high"] < 0
    assert (worse["wins"], worse["losses"], worse["rank_biserial"]) == (0, 60, -1)
    assert min(worse["wilcoxon_p"], worse["randomisation_p"]) > 0.999
    assert better["diff"] == pytest.approx(-worse["diff"])
    assert better["wilcoxon_p"] < 1e-6
    assert better["randomisation_p"] < 1e-3
    # A system is no different from itself.
    same = statistics.compare(table(good), table(good), "ndcg@10", seed=0)
    assert (same["ties"], same["diff"], same["diff_ci_low"], same["diff_ci_high"]) == (60, 0, 0, 0)
    assert (same["wilcoxon_p"], same["randomisation_p"], same["rank_biserial"]) == (1, 1, 0)


def test_values_are_averaged_over_seeds_before_the_tasks_are_counted():
    system = table([[0.2, 0.4], [0.4, 0.8], [0.6, 0.0]])
    reference = table([0.3, 0.5], seeds=2)
    record = statistics.compare(system, reference, "ndcg@10", seed=0)
    assert record["mean_system"] == pytest.approx(0.4)
    assert (record["n"], record["wins"], record["losses"]) == (2, 1, 1)
    # Rounding of averages and files makes no winner.
    thirds = np.array([1 / 3, 0.1, 2 / 3, 0.7])
    record = statistics.compare(table(thirds, seeds=3), table(np.round(thirds, 6), seeds=7), "ndcg@10", seed=0)
    assert (record["wins"], record["ties"], record["losses"]) == (0, 4, 0)
    assert record["wilcoxon_p"] == record["randomisation_p"] == 1


PAIR, HOLED, OTHER = table([0.1, 0.2]), table([[0.1, 0.2], [0.1, np.nan]]), table([0.1, 0.2], metric="ndcg@5")
UNPAIRED = [(PAIR, table([0.1, 0.2, 0.3]), "same tasks"), (PAIR, table([0.1, np.nan]), "one system only")]
UNPAIRED += [(HOLED, PAIR, "one system only"), (table([np.nan]), table([np.nan]), "no task")]
UNPAIRED += [(PAIR.assign(task_id=1), PAIR, "twice"), (OTHER, PAIR, "system lacks"), (PAIR, OTHER, "reference lacks")]


@pytest.mark.parametrize(("system", "reference", "reason"), UNPAIRED)
def test_what_cannot_be_paired_is_refused(system, reference, reason):
    with pytest.raises(StudyError, match=reason):
        statistics.compare(system, reference, "ndcg@10", seed=0)


@pytest.fixture(scope="module")
def frames():
    rng = np.random.default_rng(1)
    base = rng.uniform(0.2, 0.6, 120)
    shifts = {"weak": -0.1, "base": 0.0, "strong": 0.1, "same": 0.0}
    noisy = {name: base + shift + rng.normal(0, 0.05, (2, 120)) for name, shift in shifts.items()}
    return {name: table(ndcg).assign(**{"recall@10": recall}) for name, (ndcg, recall) in noisy.items()}


def test_compare_all_corrects_the_whole_family(frames):
    found = statistics.compare_all(frames, "base", ["ndcg@10", "recall@10"], seed=3, resamples=2000)
    assert found["system"].tolist() == ["weak", "weak", "strong", "strong", "same", "same"]
    assert found["metric"].tolist() == ["ndcg@10", "recall@10"] * 3
    assert set(found["reference"]) == {"base"}
    assert set(found["family"]) == {6}
    assert np.sign(found["diff"][:4]).tolist() == [-1, -1, 1, 1]
    for test in ("wilcoxon_p", "randomisation_p"):
        np.testing.assert_allclose(found[f"{test}_holm"], multipletests(found[test], method="holm")[1])
        assert (found[f"{test}_holm"] < 0.01).tolist() == [True, True, True, True, False, False]
    for reference, metrics in (("absent", ["ndcg@10"]), ("base", []), ("base", ["ndcg@10"] * 2)):
        with pytest.raises(StudyError):
            statistics.compare_all(frames, reference, metrics, seed=0)


def test_measures_without_a_cutoff_are_compared_by_their_own_names(frames):
    named = {name: table.rename(columns={"ndcg@10": "tool", "recall@10": "param"}) for name, table in frames.items()}
    found = statistics.compare_all(named, "base", ["tool", "param"], seed=3, resamples=500)
    expected = statistics.compare_all(frames, "base", ["ndcg@10", "recall@10"], seed=3, resamples=500)
    assert found["metric"].tolist() == ["tool", "param"] * 3
    pd.testing.assert_frame_equal(found.drop(columns="metric"), expected.drop(columns="metric"))
    with pytest.raises(StudyError, match=r"not a metric@k column"):  # "param" is none that was asked for
        statistics.compare_all(named, "base", ["tool"], seed=3, resamples=500)
    outside = named | {"weak": named["weak"].assign(tool=2.0)}
    with pytest.raises(StudyError, match="outside"):
        statistics.compare_all(outside, "base", ["tool", "param"], seed=3, resamples=500)


def test_a_declared_family_is_corrected_as_a_whole_whatever_has_run(frames):
    metrics, declared = ["ndcg@10"], ["weak", "strong", "same", "without a run"]
    every = statistics.compare_all(frames, "base", metrics, seed=3, resamples=2000, family=declared)
    assert set(every["family"]) == {4}
    for test in ("wilcoxon_p", "randomisation_p"):
        expected = multipletests([*every[test], 1.0], method="holm")[1][:3]
        np.testing.assert_allclose(every[f"{test}_holm"], expected)
    # The one without an effect is not there: nothing of the others changes. One outside the family is not corrected.
    fewer = {name: frame for name, frame in frames.items() if name != "same"} | {"other": frames["weak"]}
    found = statistics.compare_all(fewer, "base", metrics, seed=3, resamples=2000, family=declared)
    both = found.merge(every, on=["system", "metric"])
    assert both["system"].tolist() == ["weak", "strong"]
    assert both["randomisation_p_holm_x"].tolist() == both["randomisation_p_holm_y"].tolist()
    assert found.set_index("system")["randomisation_p_holm"].isna().to_dict()["other"]
    with pytest.raises(ValueError, match="in a family of"):
        statistics.holm([0.1, 0.2], 1)


def test_a_large_family_draws_more_so_that_an_effect_survives_the_correction(frames):
    many = {"base": frames["base"]} | {f"strong {number}": frames["strong"] for number in range(6)}
    found = statistics.compare_all(many, "base", ["ndcg@10", "recall@10"], seed=3, resamples=10)
    assert found["randomisation_p"].max() == pytest.approx(1 / 1201)
    assert found["randomisation_p_holm"].max() < 0.01
    finer = statistics.compare_all(many, "base", ["ndcg@10"], seed=3, resamples=10, per_comparison=1000)
    assert finer["randomisation_p_holm"].max() < 0.001


@given(st.integers(2, 80), st.integers(1, 4), st.integers(0, 5))
@settings(max_examples=25, deadline=None)
def test_a_comparison_does_not_depend_on_what_it_is_compared_beside(n, m, seed):
    differences = np.random.default_rng(seed).normal(0.1, 1, (n, m)).round(2)
    together = statistics.randomisations(differences, seed=seed, resamples=500)
    alone = [statistics.randomisation(column, seed=seed, resamples=500) for column in differences.T]
    assert together.tolist() == alone
    limits = statistics.bootstrap_intervals(differences, seed=seed, resamples=200)
    apart = [statistics.bootstrap_interval(column, seed=seed, resamples=200) for column in differences.T]
    np.testing.assert_allclose(limits.T, apart, rtol=0, atol=1e-12)


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_shares_agree_with_scipy(counts):
    hits, n = counts
    for method, theirs in (("wilson", "wilson"), ("beta", "exact")):
        value, low, high = statistics.share_interval(hits, n, method)
        expected = stats.binomtest(hits, n).proportion_ci(method=theirs)
        assert (value, low, high) == pytest.approx((hits / n, expected.low, expected.high), abs=1e-9)


def test_the_area_is_that_of_pairs_and_of_scikit_learn():
    # Of the six pairs three are above and one is equal.
    assert statistics.auc(np.array([3.0, 1.0]), np.array([0.0, 1.0, 4.0])) == pytest.approx(3.5 / 6)
    rng = np.random.default_rng(0)
    for _ in range(20):
        positive, negative = rng.integers(0, 6, 9).astype(float), rng.integers(0, 5, 14).astype(float)
        expected = roc_auc_score([1] * 9 + [0] * 14, np.concatenate([positive, negative]))
        assert statistics.auc(positive, negative) == pytest.approx(expected)
    assert np.isnan(statistics.auc(np.array([]), np.array([1.0])))


def test_percentile_limits_leave_out_what_is_undefined():
    draws = np.arange(101.0)
    assert statistics.percentile_limits(draws) == pytest.approx((2.5, 97.5))
    assert statistics.percentile_limits([*draws, np.nan]) == pytest.approx((2.5, 97.5))
    assert np.isnan(statistics.percentile_limits([np.nan, np.nan])).all()


def test_the_interval_of_a_difference_covers_it_about_19_times_in_20():
    rng = np.random.default_rng(5)
    hits = [
        low <= 0.5 <= high
        for low, high in (
            statistics.difference_interval(rng.normal(0.8, 1, 60), rng.normal(0.3, 0.5, 40), seed=1, resamples=400)
            for _ in range(300)
        )
    ]
    assert 0.90 <= np.mean(hits) <= 0.98
