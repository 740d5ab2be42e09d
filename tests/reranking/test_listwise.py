"""The re-ranker without a language model: features by hand, planted truths, folds that see none of their own tasks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.reranking import listwise
from study.reranking.listwise import NAMES, Listwise, PairFeatures, Pools, T2MRecListwise, behind, importances, train
from study.reranking.system import Rules
from study.runner.toy_fits import stand_ins
from study.t2mrec.settings import Lexical, Scoring, Towers, Training
from study.t2mrec.system import T2MRec

POOL = 12
SMALL = Listwise(trees=20, leaves=4, least=5)
TRAINING = Training(epochs=3, batch_size=16, checkpoint_every=100)
SETTINGS = (Lexical(), Towers(hidden=16, output=8), TRAINING, Scoring(anchors=3, pool=POOL))


@pytest.fixture(scope="module", autouse=True)
def encoders_without_weights(tmp_path_factory):
    with stand_ins(tmp_path_factory.mktemp("cache")):
        yield


@pytest.fixture(scope="module")
def plain(toy, toy_split, tmp_path_factory):
    """T2MRec without a re-ranker."""
    system = T2MRec(*SETTINGS)
    system.fit(toy, toy_split, seed=1, workdir=tmp_path_factory.mktemp("plain"))
    return system


def fitted(toy, split, workdir):
    system = T2MRecListwise(*SETTINGS, listwise=SMALL)
    system.fit(toy, split, seed=1, workdir=workdir)
    return system


@pytest.fixture(scope="module")
def first_fit(toy, toy_split, tmp_path_factory):
    return fitted(toy, toy_split, tmp_path_factory.mktemp("listwise"))


@pytest.fixture
def system(first_fit):
    """The fitted system, without the marks of another test."""
    first_fit.rules, first_fit.invalid_rerankings = Rules(), 0
    return first_fit


@given(st.lists(st.lists(st.integers(-20, 20), max_size=6), max_size=5))
def test_distances_are_of_one_pool_alone(values):
    tasks = np.arange(len(values))[::-1]
    pools = Pools.of(tasks, [np.arange(len(part)) for part in values])
    assert list(pools.tasks) == [task for task, part in zip(tasks, values, strict=True) for _ in part]
    assert list(pools.places) == [rank for part in values for rank in range(1, len(part) + 1)]
    flat = np.array([value for part in values for value in part], np.float32)
    best, step = behind(flat, pools)
    start = 0
    for part in values:
        assert best[start : start + len(part)].tolist() == [max(part) - value for value in part]
        order = np.argsort(-np.array(part), kind="stable")  # of equals, the first lies behind the next better one
        assert step[start + order].tolist() == [0, *-np.diff(np.array(part)[order])][: len(part)]
        start += len(part)


def test_features_of_a_pair(toy, toy_split, plain):
    tasks = toy_split.tasks("test")[:4]
    pools = listwise.candidate_pools(plain, tasks)
    features_of = PairFeatures(toy, toy_split.tasks("train"))
    features = features_of(Pools.of(tasks, pools), plain)
    assert features.shape == (4 * POOL, len(NAMES))
    assert np.isfinite(features).all()
    task, server = tasks[2], pools[2][5]
    value = dict(zip(NAMES, features[2 * POOL + 5], strict=True))  # the third task's sixth candidate
    assert (value["place"], value["anchor"]) == (6, 0)
    assert value["semantic"] == pytest.approx(plain.semantic(tasks[2:3])[0, server], abs=1e-6)
    assert value["fused"] == pytest.approx(plain.score(tasks[2:3])[0, server], abs=1e-6)
    assert value["language"] == (toy.servers["language"].iloc[server] == "Python")
    assert value["minilm"] == pytest.approx(float(features_of.dense[0][task] @ features_of.dense[1][server]), abs=1e-6)
    word, topic = toy.tasks["name"].iloc[task].split()[1], toy.servers["name"].iloc[server].split()[0]
    assert (value["name_name"] > 0) == (word == topic)
    assert value["description_tools"] == 0
    assert list(features[:, NAMES.index("anchor")]) == ([1] * 3 + [0] * (POOL - 3)) * 4
    # Pools without a candidate have no pairs, wherever they stand.
    gaps = Pools.of(np.array([tasks[0], tasks[2], tasks[0]]), [pools[0][:0], pools[2], pools[0][:0]])
    np.testing.assert_allclose(features_of(gaps, plain), features[2 * POOL : 3 * POOL], atol=1e-6)


def planted(n, seed, feature):
    """Pools of eight where the pair with the largest value of one feature is the listed one."""
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(n * 8, len(NAMES))).astype(np.float32)
    column = table[:, NAMES.index(feature)].reshape(n, 8)
    relevant = (column == column.max(axis=1, keepdims=True)).ravel().astype(np.float32)
    return table, relevant, np.full(n, 8)


def first_hits(booster, table, relevant):
    predicted = listwise.scores(booster, table).reshape(-1, 8)
    return relevant.reshape(-1, 8)[np.arange(len(predicted)), predicted.argmax(axis=1)].mean()


@pytest.mark.parametrize("objective", ["rank_xendcg", "lambdarank"])
def test_the_trees_find_what_decides(objective):
    table, relevant, sizes = planted(300, 1, "name_description")
    booster = train(table, relevant, sizes, Listwise(objective=objective, trees=60), seed=1)
    other, labels, _ = planted(200, 2, "name_description")
    assert first_hits(booster, other, labels) > 0.8
    assert next(iter(importances(booster))) == "name_description"
    assert sum(importances(booster).values()) == pytest.approx(1, abs=1e-4)
    # With labels that nothing decides there is nothing to find.
    shuffled = np.random.default_rng(3).permuted(relevant.reshape(-1, 8), axis=1).ravel()
    blind = train(table, shuffled, sizes, Listwise(objective=objective, trees=60), seed=1)
    assert first_hits(blind, other, labels) < 0.45


def test_pools_without_a_listed_server_say_nothing_and_the_same_seed_gives_the_same_trees():
    table, relevant, sizes = planted(60, 1, "words")
    relevant[: 20 * 8] = 0
    expected = train(table[20 * 8 :], relevant[20 * 8 :], sizes[20:], SMALL, seed=1)
    booster = train(table, relevant, sizes, SMALL, seed=1)
    assert booster.model_to_string() == expected.model_to_string()
    assert (nothing := train(table, np.zeros_like(relevant), sizes, SMALL, seed=1)) is None
    assert not listwise.scores(nothing, table).any()
    assert len(listwise.scores(booster, table[:0])) == 0
    assert (listwise.n_leaves(nothing), set(importances(nothing).values())) == (0, {0.0})


def test_only_the_pool_is_put_into_another_order(toy_split, system, plain):
    tasks, labelled = toy_split.tasks("test"), toy_split.known("test")
    rows, values = system.rank(tasks, 30, labelled)
    before, before_values = plain.rank(tasks, 30, labelled)
    np.testing.assert_array_equal(np.sort(rows[:, :POOL]), np.sort(before[:, :POOL]))
    np.testing.assert_array_equal(rows[:, POOL:], before[:, POOL:])
    np.testing.assert_array_equal(values, before_values)
    assert (rows[:, :POOL] != before[:, :POOL]).any()
    assert system.invalid_rerankings == 0
    assert system.parameters() > plain.parameters()
    # The first places do not depend on how many are asked for.
    np.testing.assert_array_equal(system.rank(tasks, 5, labelled)[0], rows[:, :5])
    assert set(system.report()) == {"seconds_trees", "invalid", "gain"}


def test_the_trees_keep_the_rules_of_a_language_model(toy_split, system, monkeypatch):
    """Scores that turn every pool around would replace the first K whole; K - 2 of them stay all the same."""
    tasks, labelled = toy_split.tasks("test"), toy_split.known("test")
    before = T2MRec.rank(system, tasks, 20, labelled)[0]
    monkeypatch.setattr(listwise, "scores", lambda trees, table: np.tile(np.arange(POOL), len(tasks)))
    system.rules = Rules(k=5, substitutions=2)
    for row, old in zip(system.rank(tasks, 20, labelled)[0].tolist(), before.tolist(), strict=True):
        assert row[:5] == [old[11], old[10], old[4], old[3], old[2]]
        assert row[5:POOL] == [*old[9:4:-1], old[1], old[0]]
        assert row[POOL:] == old[POOL:]
    # Free of the limit, the trees' own order.
    system.rules = Rules(k=5, substitutions=POOL)
    np.testing.assert_array_equal(system.rank(tasks, 20, labelled)[0][:, :POOL], before[:, :POOL][:, ::-1])
    assert system.invalid_rerankings == 0


def test_orders_that_break_the_rules_are_discarded_and_counted(toy_split, system, monkeypatch):
    """None at all, two from below the first K, three from below; those after the first five are no order."""
    system.rules = Rules(k=5, substitutions=2)
    tasks, labelled = toy_split.tasks("test"), toy_split.known("test")
    before = T2MRec.rank(system, tasks, 20, labelled)[0]

    def rerank(tasks, pools):
        rolled = [np.roll(pool, number) for number, pool in zip((0, 2, 2, 3, 3), pools[:5], strict=True)]
        return rolled + [np.zeros_like(pool) for pool in pools[5:]]

    monkeypatch.setattr(system, "rerank", rerank)
    rows = system.rank(tasks, 20, labelled)[0]
    np.testing.assert_array_equal(rows[3:], before[3:])
    np.testing.assert_array_equal(rows[1:3, :POOL], np.roll(before[1:3, :POOL], 2, axis=1))
    assert system.invalid_rerankings == len(tasks) - 3


def test_a_fold_sees_nothing_of_its_own_tasks(toy, toy_split, tmp_path, monkeypatch):
    seen, folds = [], []
    fit, rank = T2MRec.fit, T2MRec.rank

    def spy(self, data, split, **options):
        seen.append((type(self), set(split.tasks("train"))))
        fit(self, data, split, **options)

    def listen(self, tasks, *rest):
        folds.append(set(tasks))
        return rank(self, tasks, *rest)

    monkeypatch.setattr(T2MRec, "fit", spy)
    monkeypatch.setattr(T2MRec, "rank", listen)
    fitted(toy, toy_split, tmp_path)
    everyone = set(toy_split.tasks("train"))
    assert seen[2] == (T2MRecListwise, everyone)
    for (kind, trained), pools in zip(seen[:2], folds, strict=True):
        assert kind is T2MRec
        assert trained | pools == everyone
        assert not trained & pools
    assert folds[0] | folds[1] == everyone
    assert not folds[0] & folds[1]
