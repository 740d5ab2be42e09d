"""The whole chain on planted truth: what was planted comes back, and what is unknown is said."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import kendalltau

from study.base import paths
from study.evaluation.statistics import tau_b
from study.judging import evaluate, labels, store
from study.judging.collection import Collection
from tests.analysis.toys import change
from tests.judging.conftest import DATASET, truth_of


@pytest.fixture
def runs(shared_root):
    return store.read_runs(DATASET)


@pytest.fixture
def planted(shared_root):
    """The collection with planted grades instead of judged ones."""
    judged, truth = store.final(DATASET), truth_of()
    grade = pd.array([truth[int(t), int(s)] for t, s in judged[store.PAIR].to_numpy()], dtype="Int64")
    return Collection.of(store.read_table(DATASET, "topics"), judged.assign(final=grade, grade_1=grade, grade_2=grade))


def ideal(collection):
    """The best ten judged servers of every topic, as a run."""
    order = np.argsort(-collection.grades, axis=1, kind="stable")[:, :10]
    task, rank = np.repeat(collection.topics["task_id"].to_numpy(), 10), np.tile(np.arange(1, 11), len(order))
    return pd.DataFrame({"task_id": task, "seed": 1, "rank": rank, "server_id": collection.servers[order.ravel()]})


def ndcg(collection, run):
    return evaluate.per_task(collection, run)["ndcg@10"].mean()


def strange(runs):
    """The run of TF-IDF, but for first answers that nobody judged."""
    return runs["tfidf"].assign(server_id=runs["tfidf"]["server_id"].where(runs["tfidf"]["rank"] > 1, 10**6))


def test_planted_relevance_is_recovered(collection, planted, runs):
    judged = collection.grades >= 0
    # The third judge knows the truth, so that errors remain only where both first passes erred alike or 1 met 2.
    assert (collection.grades[judged] == planted.grades[judged]).mean() > 0.95
    best = evaluate.per_task(planted, ideal(planted))
    assert best["ndcg@10"].dropna().to_numpy() == pytest.approx(1)
    # Ten places cannot hold more useful servers than ten.
    useful = (planted.grades >= 1).sum(axis=1)
    assert best["bpref"].to_numpy() == pytest.approx(np.minimum(10, useful) / useful)
    noisy, exact = ({name: ndcg(of, run) for name, run in runs.items()} for of in (collection, planted))
    assert noisy == pytest.approx(exact, abs=0.05)
    orders = [sorted(scores, key=scores.get) for scores in (noisy, exact)]
    assert orders[0] == orders[1]
    assert orders[0][0] == "random"


def test_label_precision_is_that_of_the_planted_labels(collection, runs):
    table = labels.label_precision(collection, runs["labels"]).set_index(["scope", "name"])
    truth = pd.read_csv(paths.raw(DATASET) / "truth_labels.csv")
    topics = set(store.read_table(DATASET, "topics")["task_id"])
    truth = truth[truth["task_id"].isin(topics) & truth["in_list"]]
    overall, control = table.loc[("all", "all")], table.loc[("control", "all")]
    useful = (truth["grade"] >= 1).groupby(truth["task_id"]).mean().mean()
    assert overall["useful"] == pytest.approx(useful, abs=0.03)
    assert overall["useful_ci_low"] < overall["useful"] < overall["useful_ci_high"]
    assert "class" not in table.index.get_level_values("scope")
    positions = table.loc["position"]["pairs"]
    assert (sorted(map(int, positions.index)), positions.sum()) == (list(range(1, 11)), overall["pairs"])
    # The control has the mean grade of the catalogue.
    base = np.mean([grade for (task, _), grade in truth_of().items() if task in topics])
    assert control["mean_grade_ci_low"] - 0.02 < base < control["mean_grade_ci_high"] + 0.02
    assert overall["mean_grade_ci_low"] > control["mean_grade_ci_high"]
    # By rule, it finds a useless one.
    classes = runs["labels"].merge(store.final(DATASET), on=store.PAIR)
    classes["class"] = np.where(classes["final"] > 0, "word", "filler")
    table = labels.label_precision(collection, runs["labels"], pd.concat([classes, classes]))
    table = table.set_index(["scope", "name"])
    assert table.loc["class", "useful"].to_dict() == {"filler": 0, "word": 1}
    assert table.loc["class", "pairs"].sum() == table.loc[("all", "all"), "pairs"]


def test_variants_and_unjudged_answers_are_no_evidence(collection, runs, few_draws, root):
    copies = {f"bm25_{letter}": runs["bm25"] for letter in "abc"}
    change("judging/pool.yaml", variants=["bm25_*"])
    plain, more = (
        labels.label_tables(collection, evaluate.score_tables(collection, of)["scores"], of)
        for of in (runs, runs | copies | {"strange": strange(runs)})
    )
    for name in ("two_views", "label_families"):
        pd.testing.assert_frame_equal(plain[name], more[name])
    systems = [table["rank_correlation"]["all_systems"] for table in (plain, more)]
    assert (systems[1] - systems[0]).tolist() == [3, 3]
    assert set(plain["two_views"]["system"]) == set(runs) - {"labels"}
    # The labels themselves score one by labels.
    views = labels.two_views(collection, {"labels": runs["labels"]}, runs["labels"], "test")
    assert views["by_labels"].to_numpy() == pytest.approx(1)


def test_a_better_system_scores_better_and_noise_is_stated(collection, runs, few_draws):
    runs |= {"ideal": ideal(collection)}
    tables = {name: evaluate.per_task(collection, run) for name, run in runs.items()}
    table = evaluate.scores(collection, tables, runs).set_index(["system", "part", "metric"])
    for part in ("valid", "test"):
        rows = table.xs((part, "ndcg@10"), level=("part", "metric"))
        assert rows["mean"].idxmax() == "ideal"
        # Limits are of values in exact units, the mean is not: of one value they differ in its last binary digits.
        assert rows["mean"].between(rows["ci_low"] - 1e-12, rows["ci_high"] + 1e-12).all()
        assert (rows["noise_ci_low"] < rows["noise_ci_high"]).all()
        assert rows["comparable"].all()
        assert (rows["unjudged"] == 0).all()
    assert table.loc[("labels", "test", "precision@5"), "n"] == 32
    assert np.isnan(table.loc[("labels", "test", "bpref"), "noise_ci_low"])
    # Unjudged answers are counted and refused.
    runs = {"tfidf": runs["tfidf"], "strange": strange(runs)}
    tables = {name: evaluate.per_task(collection, run) for name, run in runs.items()}
    unjudged = tables["strange"][["unjudged@10", "unjudged@5"]].mean().tolist()
    assert unjudged == pytest.approx([0.1, 0.2])
    table = evaluate.scores(collection, tables, runs)
    assert not table.loc[table["system"] == "strange", "comparable"].any()
    assert evaluate.comparable(table, "test") == ["tfidf"]


def views_of(judged):
    """Both views of systems s0, s1, ..., ever better by labels, whose four topics are all alike."""
    rows = [(f"s{i}", task, 0.1 * i, value) for i, value in enumerate(judged) for task in range(4)]
    return pd.DataFrame(rows, columns=["system", "task_id", "by_labels", "by_judgements"])


# In the third case one of the three pairs of systems is ordered the other way round. Of six orders, two are as far from
# 0 as 1 and -1 are, and all as far as 1 / 3. In the fourth, tau-b leaves out one of three pairs on one side.
CORRELATIONS = [([0.1, 0.2, 0.3], 1, 1 / 3), ([0.3, 0.2, 0.1], -1, 1 / 3), ([0.2, 0.1, 0.3], 1 / 3, 1)]
CORRELATIONS += [([0.2, 0.2, 0.3], 2 / 6**0.5, np.nan), ([0.2], np.nan, np.nan)]


@pytest.mark.parametrize(("judged", "tau", "p"), CORRELATIONS)
def test_rank_correlation_by_hand(judged, tau, p, few_draws):
    correlation = labels.rank_correlation(views_of(judged))
    assert (correlation["tau"], correlation["p"]) == pytest.approx((tau, p), nan_ok=True)


def test_the_interval_sees_the_draw_of_systems():
    correlation = labels.rank_correlation(views_of([0.2, 0.1, 0.3, 0.4, 0.5]))
    # Topics that agree leave no doubt about these systems. Others could have been tried: s0 and s1 alone give -1.
    assert correlation["topics_ci_low"] == correlation["topics_ci_high"] == correlation["tau"] == pytest.approx(0.8)
    assert (correlation["ci_low"] < 0.4, correlation["ci_high"]) == (True, pytest.approx(1))


def test_kinds_of_systems_are_told_apart_by_hand():
    use = store.LabelUse(with_labels=["s0", "s1"], without_labels=["s3", "s4", "absent"], fused=["s2"], tuned=["s3"])
    table = labels.label_families(views_of([0.1, 0.2, 0.9, 0.6, 0.5]), use).set_index("family")
    learns, sees_none = table.loc["with_labels"], table.loc["without_labels"]
    assert (learns["tau"], sees_none["tau"], table.loc["with_labels and fused", "tau"]) == pytest.approx((1, -1, 1))
    assert (learns["use"], learns["diff"], sees_none["use"]) == pytest.approx((0.15, -0.4, 0.55))
    # Four systems part into two pairs in six ways, of which one is as far below 0.
    assert learns["diff_p"] == pytest.approx(2 / 6)
    assert (learns["diff_ci_low"], learns["diff_ci_high"]) == pytest.approx((-0.5, -0.3))
    assert np.isnan(sees_none["diff"])
    assert (table.loc["untuned", "diff"], table.loc["untuned", "diff_ci_high"]) == pytest.approx((-0.35, -0.3))
    assert np.isnan(table.loc["untuned", "diff_p"])  # of one system no spread is known
    more = store.LabelUse(use.with_labels, ["s2", "s3", "s4"], [], tuned=["s2"])
    table = labels.label_families(views_of([0.1, 0.2, 0.9, 0.6, 0.5]), more).set_index("family")
    assert table.loc[["with_labels", "untuned"], "diff"].tolist() == pytest.approx([0.15 - 2 / 3, -0.4])
    assert table.loc["untuned", "diff_p"] == pytest.approx(2 / 6)
    assert [use.kind(name) for name in ("s2", "s3", "other")] == ["fused", "without_labels", "undeclared"]
    assert store.LabelUse([], [], [], tuned=["s1"]).kind("s1") == "undeclared"  # tuning is no kind
    assert labels.label_families(views_of([0.1]), store.LabelUse([], [], [], [])).empty


def test_noise_is_that_of_a_judge_who_grades_once_more(collection, planted, runs, monkeypatch):
    # One pair in doubt, listed first: 0 or 2, settled as 1 by a third pass.
    monkeypatch.setattr(evaluate, "NOISE_RESAMPLES", 400)
    topics = collection.topics[:1]
    task, part = int(topics["task_id"].iloc[0]), str(topics["part"].iloc[0])
    rows = pd.DataFrame({"task_id": task, "server_id": [1, 2], "grade_1": [0, 1], "grade_2": [2, 1], "final": [1, 1]})
    small = Collection.of(topics, rows)
    run = pd.DataFrame({"task_id": task, "seed": 0, "rank": [1, 2], "server_id": [1, 2]})
    noise = evaluate.judge_noise(small, part)(run)
    assert noise["precision@5"] == (0.2, 0.4)  # useless in a quarter of the draws
    assert noise["core_precision@5"] == (0.0, 0.2)  # core in another quarter
    two = pd.concat([run, run.assign(seed=1, rank=[2, 1])])
    assert evaluate.judge_noise(small, part)(two)["precision@5"] == (0.2, 0.4)
    # Equal passes leave no noise.
    monkeypatch.setattr(evaluate, "NOISE_RESAMPLES", 5)
    certain = evaluate.judge_noise(planted, "test")(runs["tfidf"])
    assert all(low == high for low, high in certain.values())


def test_rank_correlations_of_many_rows_are_those_of_scipy():
    rng = np.random.default_rng(0)
    one, other = rng.integers(0, 4, (50, 6)).astype(float), rng.normal(size=(50, 6))
    one[0] = 1.0  # all tie
    expected = [kendalltau(left, right).statistic for left, right in zip(one, other, strict=True)]
    assert np.isnan(expected[0])
    np.testing.assert_array_equal(tau_b(one, other), expected)
