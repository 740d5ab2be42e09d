"""Rank correlations of systems: against scipy, planted orders, label variants, ties, resumable random splits; the
variance of a difference by hand, and what it is in simulated studies."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from study.analysis.audit import robustness
from study.analysis.audit.protocols import labelled
from study.analysis.audit.robustness import Robustness, components
from study.analysis.framework import ANALYSES, Context, load_settings, run_analyses
from study.base import paths
from study.base.errors import StudyError
from study.base.files import write_csv
from study.base.settings import read_yaml
from study.config import compose as config
from study.data.dataset import load
from study.data.splits import make
from study.evaluation import metrics
from study.evaluation.statistics import rank_correlation
from study.runner.row_store import read_per_task, read_top10
from study.runner.rows import run_row
from tests.analysis.toys import small_study
from tests.rows import put_row
from tests.tiny_study import REPOSITORY

TINY = ["dataset=synthetic", "profile=smoke", "dataset.generator.n_servers=120", "dataset.generator.n_tasks=100"]
TINY += ["dataset.generator.list_length=10"]
METRIC = "ndcg@10"


def scores(means, n=50, noise=0.0, seed=0):
    """One row per system with the given mean, one column per task."""
    values = np.array(means)[:, None] + noise * np.random.default_rng(seed).normal(size=(len(means), n))
    return pd.DataFrame(values, index=[f"s{row}" for row in range(len(means))])


@given(st.lists(st.floats(0, 1), min_size=3, max_size=8, unique=True), st.randoms())
def test_correlations_of_fixed_scores_are_scipys(means, random):
    other = means.copy()
    random.shuffle(other)
    found = robustness.correlations(scores(means), scores(other), resamples=3, seed=0)
    assert found["tau"] == pytest.approx(stats.kendalltau(means, other).statistic)
    assert found["rho"] == pytest.approx(stats.spearmanr(means, other).statistic)
    assert found["tau_low"] == found["tau_high"] == pytest.approx(found["tau"])  # tasks that all agree leave no doubt


def test_planted_orders():
    base, reverse = scores([0.1, 0.2, 0.3, 0.4]), scores([0.4, 0.3, 0.2, 0.1])
    assert robustness.correlations(base, base, resamples=5, seed=0)["tau"] == pytest.approx(1)
    assert robustness.correlations(base, reverse, resamples=5, seed=0)["tau"] == pytest.approx(-1)
    one, other = (scores([0.1, 0.2, 0.3], noise=1.0, seed=seed) for seed in (0, 1))
    noisy = robustness.correlations(one, other, resamples=200, seed=0)
    assert noisy["tau_high"] - noisy["tau_low"] > 1  # three systems within noise have no order
    alone = robustness.correlations(base, scores([0.1]), resamples=5, seed=0)
    assert alone["systems"] == 1
    assert np.isnan(alone["tau"])
    # Equal scores have no order.
    assert np.isnan(rank_correlation(np.ones(4), np.arange(4.0))).all()


def test_every_pair_of_seeds_is_compared_over_the_systems_that_have_both():
    frames = {}
    for name, seeds, value in (("a", [1, 2, 3], 0.1), ("b", [1, 2], 0.2), ("c", [1, 2, 3], 0.3), ("lone", [0], 0.4)):
        frames[name] = pd.DataFrame({"task_id": [1, 2] * len(seeds), "seed": np.repeat(seeds, 2), "m": value})
    rows = {row["variant"]: row for row in robustness.seed_table(frames, "m", resamples=3, seed=0)}
    wanted = {"seed 1 against seed 2": 3, "seed 1 against seed 3": 2, "seed 2 against seed 3": 2}
    assert {name: row["systems"] for name, row in rows.items()} == wanted
    assert all(row["tau"] == pytest.approx(1) for row in rows.values())
    assert robustness.seed_table({name: frames[name] for name in ("a", "lone")}, "m", resamples=3, seed=0) == []


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Tables of a small study with four cheap systems, one of them with a seed of its own, and one oracle."""
    splits = {"split_seeds": [101, 102], "resamples": 20}
    splits["split_systems"] = {"cold": ["popularity", "tfidf", "attribute_counts"], "warm": ["popularity", "tfidf"]}
    splits["few_splits"] = {"attribute_counts": 1}
    splits["differences"] = {"cold": [["tfidf", "popularity"], ["tfidf", "t2mrec"]]}  # T2MRec has no run
    splits["differences"]["warm"] = [["tfidf", "popularity"]]
    changes = {"audit/robustness.yaml": splits, "profile/smoke.yaml": {"seeds": [1, 2]}}
    variants = read_yaml(REPOSITORY / "conf/system/simple/popularity.yaml")["variants"]
    variants["theme"]["seeds"] = [0]
    changes["system/simple/popularity.yaml"] = {"variants": variants}
    with small_study(tmp_path_factory.mktemp("robust"), TINY, changes):
        for system in ("random", "popularity", "tfidf", "oracle_neighbour", "popularity_theme"):
            run_row(config.load([*TINY, f"system={system}"]))
        for system in ("popularity", "tfidf"):
            run_row(config.load([*TINY, f"system={system}", "protocol=warm"]))
        yield {path.stem: pd.read_csv(path) for path in run_analyses(["robustness/order"], config.load(TINY))}


def test_every_family_has_its_rows_and_oracles_none(made):
    table = made["rank_robustness"]
    assert set(table["family"]) == {"seeds", "metric", "labels", "protocol", "tie rule", "random splits"}
    seeds = table[table["family"] == "seeds"]
    assert seeds["variant"].tolist() == ["seed 1 against seed 2"]
    assert seeds["systems"].tolist() == [3]  # one system ran with another seed alone
    assert table.loc[table["family"] == "metric", "systems"].max() == 4
    assert "mcp_task_all.csv" in set(table["variant"])
    inside = table.dropna(subset=["tau"])
    assert (inside["tau"].between(-1, 1) & (inside["tau_low"] <= inside["tau_high"])).all()
    runs = robustness.split_fits("synthetic").load().query("metric == 'ndcg@10' and tie_rule == 'seeded permutation'")
    spreads = []
    for protocol, row in zip(("cold", "warm"), made["variance"].to_dict("records"), strict=True):
        wide = runs[runs["protocol"] == protocol].pivot_table(index="split_seed", columns="system", values="value")
        assert (row["protocol"], row["system"], row["reference"]) == (protocol, "tfidf", "popularity")
        assert (row["splits"], row["seeds"]) == (2, 2)
        assert row["split_sd"] == pytest.approx((wide["tfidf"] - wide["popularity"]).std(), rel=1e-4)
        spreads.append(row["split_sd"])
    assert spreads[0] != spreads[1]


def test_random_splits_go_on_where_they_stopped(made, monkeypatch):
    """A stopped run: most of the fits stand in the table, one in the cache, and one is of another state of the code."""
    fits = robustness.split_fits("synthetic")
    before = fits.load()
    keys = before[list(fits.keys)].drop_duplicates()
    assert len(keys) == 9
    of_fit = dict(list(before.groupby(list(fits.keys))))
    parts = [of_fit[key] for key in keys.itertuples(index=False, name=None)]
    pd.concat([*parts[:-2], parts[-2].assign(fingerprint="of another state")]).to_parquet(fits.path)
    fits.add(parts[-1])
    calls, once = [], robustness.split_run
    monkeypatch.setattr(robustness, "split_run", lambda *a, **b: (calls.append(1), once(*a, **b))[1])
    again = robustness.run_splits(config.load(TINY))
    assert len(calls) == 1
    pd.testing.assert_frame_equal(again.drop(columns="commit"), before.drop(columns="commit"))
    assert not list(fits.cache.glob("*.parquet"))
    robustness.run_splits(config.load(TINY))
    assert len(calls) == 1


def test_ties_of_a_split_run_are_broken_by_id(made, monkeypatch):
    data = load("synthetic")
    split = make(data, "cold", seed=101)

    class Flat:
        def fit(self, data, split, *, seed, workdir):
            self.n = data.n_servers

        def score(self, tasks):
            return np.zeros((len(tasks), self.n), np.float32)

    monkeypatch.setattr(robustness, "build_system", lambda _: Flat())
    found = robustness.split_run(config.load([*TINY, "system=popularity"]), data, split, system_seed=1)
    flat = found.set_index(["tie_rule", "metric"])["value"]
    tasks = split.tasks("test")
    order = np.argsort(data.servers["id"].to_numpy())
    for rule, top in (("by id, ascending", order[:10]), ("by id, descending", order[::-1][:10])):
        wanted = metrics.ndcg(np.tile(top, (len(tasks), 1)), split.test[tasks], 10).mean()
        assert flat[rule, "ndcg@10"] == pytest.approx(wanted)
    assert found["tie_rule"].nunique() == 3


def test_kept_lists_are_measured_against_other_labels(made):
    """Against the released lists the kept top tens give the committed values again."""
    data = load("synthetic")
    frames = read_per_task("synthetic", "cold", robustness.ranked_systems())
    split, runs = make(data, "cold"), read_top10("synthetic", "cold", frames)
    again = robustness.relabelled(split, data, runs, "ndcg@10")
    base = robustness.task_scores(frames, "ndcg@10")
    pd.testing.assert_frame_equal(again, base, check_names=False, atol=1e-5)
    first = robustness.relabelled(split, labelled(data, "released", 1), runs, "recall@10")
    assert set(first.to_numpy().ravel()) <= {0.0, 0.5, 1.0}  # of one label, over two seeds


def test_one_system_and_a_protocol_without_whole_lists_are_refused(made, tmp_path, monkeypatch):
    with pytest.raises(StudyError, match="whole list"):
        robustness.label_table("synthetic", load("synthetic"), "warm", {}, load_settings(Robustness))
    monkeypatch.setattr(paths, "results", lambda dataset: tmp_path)
    one = pd.DataFrame({"task_id": [1], "seed": [1], "ndcg@10": [0.5]})
    put_row("synthetic", "cold", "tfidf", one)
    monkeypatch.setattr(robustness, "run_splits", lambda _: pd.DataFrame())
    with pytest.raises(StudyError, match="an order needs two"):
        robustness.robustness(Context(ANALYSES["robustness/order"], config.load(TINY)))


def test_judged_scores_join(new_results):
    assert robustness.judged_table("x") == []
    known = pd.DataFrame({"part": ["test"], "systems": 3, "topics": 9, "tau": -1.0})
    known = known.assign(topics_ci_low=-1.0, topics_ci_high=0.0)
    views = pd.DataFrame({"part": ["test"] * 3, "by_labels": [1, 2, 3], "by_judgements": [3, 2, 1]})
    for name, table in (("rank_correlation", known), ("two_views", views)):
        write_csv(new_results / "judged" / "tables" / f"{name}.csv", table)
    row = robustness.judged_table("x")[0]
    assert (row["tau"], row["rho"], row["n"]) == (-1, pytest.approx(-1), 9)


def run(values):
    """A per-task table from seed -> values."""
    parts = [pd.DataFrame({"task_id": range(len(row)), "seed": seed, METRIC: row}) for seed, row in values.items()]
    return pd.concat(parts, ignore_index=True)


def test_components_by_hand():
    """Differences 0.4, 0.2, 0.0, 0.2: mean 0.2, variance 0.08 / 3. Means over seeds 0.5 and 0.3, and 0.2 twice."""
    system = run({1: [0.7, 0.5, 0.3, 0.5], 2: [0.5, 0.3, 0.1, 0.3]})
    reference = run({seed: [0.2] * 4 for seed in (1, 2)})
    found = components(system, reference, METRIC, n_tasks=16, over_splits=[0.0, 0.4])
    assert found["diff"] == pytest.approx(0.2)
    assert found["task_sd"] ** 2 == pytest.approx(0.08 / 3 / 4)
    assert found["seed_sd"] ** 2 == pytest.approx(0.02 / 2)
    assert (found["split_diff"], found["split_sd"] ** 2) == pytest.approx((0.2, 0.08))
    assert found["split_alone_sd"] ** 2 == pytest.approx(0.08 - 0.75 * 0.08 / 12 - 0.02)
    assert [found[name] for name in ("n", "seeds", "reference_seeds", "splits")] == [4, 2, 2, 2]
    assert components(system, reference, METRIC, n_tasks=16, over_splits=[0.2, 0.2])["split_alone_sd"] == 0
    # One seed and no split tell nothing.
    found = components(run({1: [0.1, 0.5]}), run({1: [0.1, 0.2]}), METRIC, n_tasks=4)
    assert found["splits"] == 0
    assert np.isnan([found[name] for name in ("seed_sd", "split_diff", "split_sd", "split_alone_sd")]).all()


def test_splits_that_only_draw_other_tasks_leave_nothing_to_the_split_itself():
    """Fixed differences of 400 tasks of which a split tests 100: its spread is that of drawing without replacement."""
    rng = np.random.default_rng(0)
    tasks, zeros = rng.normal(0.5, 0.1, 400), run(dict.fromkeys((1, 2), np.zeros(100)))
    drawn = [rng.permutation(tasks)[:100] for _ in range(2000)]
    over = [part.mean() for part in drawn]
    one = run(dict.fromkeys((1, 2), drawn[0]))
    found = components(one, zeros, METRIC, n_tasks=400, over_splits=over)
    assert found["split_sd"] == pytest.approx(0.75**0.5 * tasks.std() / 10, rel=0.05)
    assert found["split_alone_sd"] < 0.4 * found["split_sd"]
    planted = found["split_sd"] ** 2 + 0.02**2
    moved = components(one, zeros, METRIC, n_tasks=400, over_splits=np.array(over) + rng.normal(0, 0.02, 2000))
    assert moved["split_sd"] ** 2 == pytest.approx(planted, rel=0.1)
    assert moved["split_alone_sd"] == pytest.approx(0.02, abs=0.003)
