"""Order and repetition of lists, and the annotation mixture: hand-computed cases and planted truths."""

import itertools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from study.analysis.audit import labels, labels_mixture
from study.analysis.audit.figures_labels import plot_mixture_fit
from study.analysis.audit.settings import Labels, read
from study.data.lists import shuffled
from tests.analysis.toys import NO_REASON, UNSORTED, made, toy

SETTINGS = read(Labels)
FAST = replace(SETTINGS, permutations=20, simulations=2, tolerance=1e-4)


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """1,000 servers and 2,000 tasks by the default mixture."""
    return made(tmp_path_factory.mktemp("planted"), n_servers=1000, n_tasks=2000)


@given(arrays(np.int64, (4, 5), elements=st.integers(0, 9)), st.integers(0, 100))
def test_permutations_keep_what_they_promise(matrix, seed):
    matrix = np.where(np.arange(5) < np.array([[5], [3], [1], [4]]), matrix, -1)
    rng = np.random.default_rng(seed)
    moved, dealt = shuffled(matrix, rng), labels.redealt(matrix, rng)
    np.testing.assert_array_equal(np.sort(moved, axis=1), np.sort(matrix, axis=1))
    np.testing.assert_array_equal(moved >= 0, matrix >= 0)
    np.testing.assert_array_equal(dealt >= 0, matrix >= 0)
    np.testing.assert_array_equal(np.sort(dealt.ravel()), np.sort(matrix.ravel()))


def test_planted_sorted_and_copied_lists_are_found(planted):
    data, truth = planted
    table = labels.list_table(data, FAST).set_index("measure")
    share = truth["parameters"]["ascending_share"]
    sorted_lists = table.loc["lists wholly ascending by id"]
    assert abs(sorted_lists["observed"] - share) < 0.03
    assert sorted_lists["chance_high"] < 0.001
    assert sorted_lists["p"] == pytest.approx(1 / 21)
    # A share of the tasks copies the list of another; defects are planted afterwards in 1 % of the lists.
    copied = table.loc["lists beyond the first of each set", "observed"]
    assert abs(copied - truth["parameters"]["duplicate_share"]) < 0.02


def test_lists_without_order_or_copies_show_none(tmp_path):
    data, _ = made(tmp_path, n_servers=500, mixture=NO_REASON, **UNSORTED)
    table = labels.list_table(data, FAST)
    inside = (table["observed"] >= table["chance_low"] - 0.003) & (table["observed"] <= table["chance_high"] + 0.05)
    assert inside[table["measure"].str.contains("ascending by|beyond|follows|run of 6")].all()


def test_groups_by_hand():
    data = toy([{"theme": theme} for theme in "aaba"], [[0, 1], [1, 0], [0, 1], [2, 3]], 6)
    table = labels.group_table(data)
    row = table[table["size"] == 3].iloc[0]
    assert (row["groups"], row["tasks"], row["pairs"]) == (1, 3, 3)
    assert row[["same_theme", "same_order", "chance_theme"]].tolist() == pytest.approx([1 / 3, 1 / 3, 3 / 6])
    assert table.iloc[-1]["tasks"] == 3


def brute_posterior(x, mixture):
    """Sum over every assignment of reasons to the entries of each list."""
    independent, m, totals = labels_mixture.emissions(x, mixture), len(x.cluster), []
    for task, row in enumerate(x.matrix):
        row, post, total = row[row >= 0], np.zeros((x.matrix.shape[1], 5)), 0.0
        for reasons in itertools.product(range(5), repeat=len(row)):
            p, last = 1.0, None
            for j, reason in enumerate(reasons):
                p *= mixture.weights[reason]
                if reason == labels_mixture.ALPHABETICAL:
                    gap = None if last is None else row[j] - last
                    p *= 1 / m if gap is None else mixture.rho * (1 - mixture.rho) ** (gap - 1) if gap > 0 else 0.0
                    last = row[j]
                else:
                    p *= independent[task, j, reason]
            total += p
            for j, reason in enumerate(reasons):
                post[j, reason] += p
        totals.append((post / total, np.log(total)))
    return totals


@pytest.mark.parametrize("matrix", [[[1, 2, 4, 0], [5, 0, 1, -1]], [[0, 1, 2, 3], [3, 2, 5, 4]]])
def test_the_posterior_is_exact(matrix):
    """Two tasks with different themes, languages and words over six servers."""
    matrix, words = np.asarray(matrix), (np.array([1, 2]), np.array([], dtype=np.int64))
    hit = np.array([np.isin(row, own) / max(len(own), 1) for row, own in zip(matrix, words, strict=True)])
    spoken, topics = np.random.default_rng(0).random((2, 6)) < 0.6, np.ones((2, 3), dtype=bool)
    of_tasks = {"theme": np.array([0, 1]), "language": np.array([0, 1]), "words": words, "word_match": hit}
    x = labels_mixture.Inputs(
        matrix=matrix, cluster=np.array([0, 0, 1, 1, 2, 2]), spoken=spoken, topics=topics, **of_tasks
    )
    rng = np.random.default_rng(3)
    theta = rng.dirichlet(np.ones(3), 2)
    weight = rng.random(6) + 0.5
    mixture = labels_mixture.Mixture(rng.dirichlet(np.ones(5)), np.full(5, 0.2), theta, weight, 0.4, 0.0, 0)
    posterior, log_likelihood, _ = labels_mixture.expect(x, mixture)
    for task, (wanted, total) in enumerate(brute_posterior(x, mixture)):
        np.testing.assert_allclose(posterior[task], wanted, atol=1e-12)
        assert log_likelihood[task] == pytest.approx(total)


def test_the_likelihood_never_falls(planted):
    """EM climbs; the smoothing of theta and w costs at most a little."""
    x = labels_mixture.inputs(planted[0], FAST, clusters(planted[0]))
    x = replace(x, topics=labels_mixture.evident(x, 0.5, FAST.topic_p))
    even, theta = np.full(5, 0.2), x.topics / np.maximum(x.topics.sum(axis=1, keepdims=True), 1)
    start = labels_mixture.Mixture(even, even, theta, np.ones(len(x.cluster)), 0.5, -np.inf, 0)
    settings = [replace(FAST, iterations=n, tolerance=0) for n in (1, 2, 4, 8)]
    values = [labels_mixture.expectation_maximisation(x, start, each).log_likelihood for each in settings]
    assert values == sorted(values)


def clusters(data):
    """The servers' subcategory, which is their facet."""
    return pd.factorize(data.servers["subcategory_clean"])[0].astype(np.int64)


def recovered(data):
    """The inputs with their topics, the mixture, and its shares as the generator names them."""
    x, mixture = labels_mixture.fit(labels_mixture.inputs(data, FAST, clusters(data)), FAST)
    words, topic, language, alphabetical, random = mixture.shares
    shares = {"topic_match": topic + words, "language_match": language, "alphabetical": alphabetical, "random": random}
    return x, mixture, shares


def test_the_planted_mixture_is_recovered_and_wrong_ones_fail_the_goodness_of_fit(planted):
    """Every share within 0.04, the shape of the runs, and the lists' repetition and sorting."""
    x, mixture, shares = recovered(planted[0])
    assert shares == pytest.approx(planted[1]["mixture_drawn"], abs=0.04)
    assert mixture.rho > 0.98  # the generator takes the next server
    assert abs(labels.copied_share(x.matrix) - 0.15) < 0.02
    assert abs(labels.sorted_share(x.matrix, FAST) - 0.2) < 0.03
    # What the fit explains lies within its simulations; sorted lists that it is not told of do not.
    rng = np.random.default_rng(0)
    seen = labels.statistics(x, x.matrix, FAST)
    told = labels.simulate(x, mixture, rng, ascending=0.22, copied=0.15)
    untold = labels.simulate(x, mixture, rng, ascending=0.0, copied=0.0)
    for name in ("lists wholly ascending by id", "lists beyond the first of each set"):
        assert abs(labels.statistics(x, told, FAST)[name] - seen[name]) < 0.05
        assert labels.statistics(x, untold, FAST)[name] < 0.01
    np.testing.assert_array_equal(untold >= 0, x.matrix >= 0)
    assert not ((told >= 0) & (x.matrix < 0)).any()
    assert all(len(set(row[row >= 0])) == (row >= 0).sum() for row in untold)
    # Lists drawn from the fitted weights show what the lists show; other weights do not, and predict worse.
    wrong = replace(mixture, weights=mixture.weights[[4, 0, 1, 2, 3]])
    names = ("labels in the task's language", "labels whose server follows its predecessor in the catalogue")
    for chosen, fits in ((mixture, True), (wrong, False)):
        drawn = labels.statistics(x, labels.simulate(x, chosen, rng, ascending=0.2, copied=0.15), FAST)
        assert all(abs(drawn[name] - seen[name]) < 0.05 for name in names) == fits
    told, untold = (float(labels_mixture.expect(x, one)[1].sum()) for one in (mixture, wrong))
    assert told > untold


@pytest.mark.parametrize("mixture", [(0.25, 0.15, 0.4, 0.2), (0.3, 0.5, 0.0, 0.2)])
def test_other_planted_mixtures_are_recovered(mixture, tmp_path):
    mixture = dict(zip(("topic_match", "language_match", "alphabetical", "random"), mixture, strict=True))
    data, truth = made(tmp_path, n_servers=700, n_tasks=1200, mixture=mixture)
    assert recovered(data)[2] == pytest.approx(truth["mixture_drawn"], abs=0.06)


def test_lists_held_out_are_told_by_the_planted_mixture_and_not_by_one_without_reasons(planted, tmp_path):
    data, _ = planted
    x = labels_mixture.inputs(data, FAST, clusters(data))
    found, n_labels = labels.held_out(x, FAST), (x.matrix >= 0).sum()
    assert 0.1 * n_labels < found["labels"] < 0.3 * n_labels
    assert found["mixture"] > max(found["by_popularity"], found["evenly"]) + 0.3
    assert found["evenly"] == pytest.approx(-np.log(data.n_servers))
    blank, _ = made(tmp_path, n_servers=300, n_tasks=400, mixture=NO_REASON, **UNSORTED)
    found = labels.held_out(labels_mixture.inputs(blank, FAST, clusters(blank)), FAST)
    assert found["mixture"] < found["evenly"] + 0.05  # nothing to learn: no better than drawing evenly


def test_the_tables_are_complete_and_can_be_drawn(planted):
    tables = labels.mixture_tables(planted[0], FAST, clusters(planted[0]))
    fit = tables["mixture_fit"]
    assert fit["inside"].tolist() == fit["observed"].between(fit["fitted_low"], fit["fitted_high"]).tolist()
    shares = tables["mixture"].set_index("parameter").loc[[f"share {name}" for name in labels_mixture.REASONS]]
    assert shares["value"].sum() == pytest.approx(1)
    assert shares["value"].between(shares["ci_low"], shares["ci_high"]).all()
    plot_mixture_fit(tables).canvas.draw()
