"""Hand-computed cases, planted truths and independent recomputations of the reference systems."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from baselines.bm25 import Bm25
from baselines.oracle_neighbour import OracleNeighbour
from baselines.popularity import Popularity, fit_group_counts, refine
from baselines.random_order import RandomOrder
from baselines.task_knn import TaskKNN, one_hot
from baselines.tfidf import TfidfCosine
from study.data.dataset import relevance_from_lists
from study.data.splits import Split, make
from tests.baselines.toys import (
    LABELS,
    N_SERVERS,
    WORDS,
    block_dataset,
    build,
    copy_dataset,
    make_dataset,
    recall10,
    rows_of,
    scores,
    top10,
)

CONTENT = ("tfidf", "bm25", "minilm", "task_knn")
GROUPED = ("popularity_subcategory", "popularity_theme")


def split_of(data, train, test):
    """A cold split in which the named tasks are training and test tasks."""
    parts = [np.isin(np.arange(data.n_tasks), rows) for rows in (train, [], test)]
    return Split("cold", *(rows_of(data, chosen) for chosen in parts), cold=True)


# Planted truths


@pytest.mark.parametrize("mix", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("attribute_weight", [0.0, 2.0])
def test_task_knn_finds_the_training_task_with_the_same_text(mix, attribute_weight, tmp_path):
    data, split = copy_dataset()
    system = build("task_knn", k=1, mix=mix, attribute_weight=attribute_weight)
    system.fit(data, split, seed=1, workdir=tmp_path)
    assert recall10(top10(system, data, split), split).tolist() == [1.0] * 20


def test_task_knn_without_the_copies_is_no_better_than_chance(tmp_path):
    data, split = copy_dataset()
    shuffled = np.random.default_rng(0).permutation(20)
    wrong = replace(split, test=sp.csr_matrix(split.test[np.r_[np.arange(20), 20 + shuffled]]))
    system = build("task_knn", k=1)
    system.fit(data, wrong, seed=1, workdir=tmp_path)
    assert recall10(top10(system, data, wrong), wrong).mean() < 0.6  # chance: 10 / 30


@pytest.mark.parametrize("name", [*CONTENT, *GROUPED])
def test_blocks_are_told_apart(name, tmp_path):
    data = block_dataset()
    split = make(data, "cold")
    system = build(name)
    system.fit(data, split, seed=1, workdir=tmp_path)
    own = (top10(system, data, split) >= N_SERVERS // 2) == (split.tasks("test") >= data.n_tasks // 2)[:, None]
    assert own.mean() >= 0.99


def test_plain_popularity_gives_every_task_one_list(tmp_path):
    data = block_dataset()
    split = make(data, "cold")
    system = build("popularity")
    system.fit(data, split, seed=1, workdir=tmp_path)
    assert len({tuple(row) for row in top10(system, data, split)}) == 1


# Symmetries


@pytest.mark.parametrize("name", ["popularity", *GROUPED, *CONTENT, "oracle_neighbour"])
@pytest.mark.parametrize("protocol", ["cold", "warm"])
def test_relabelled_servers_get_the_same_scores(name, protocol, tmp_path):
    data = block_dataset()
    split = make(data, protocol)
    new_row = np.random.default_rng(5).permutation(data.n_servers)  # old row -> new row
    old_row = np.argsort(new_row)
    lists = tuple(new_row[row] for row in data.lists)
    servers = data.servers.iloc[old_row].reset_index(drop=True).assign(id=data.servers["id"])
    relabelled = replace(data, servers=servers, lists=lists, relevance=relevance_from_lists(lists, data.n_servers))
    moved = {part: sp.csr_matrix(split.part(part)[:, old_row]) for part in ("train", "valid", "test")}
    before = scores(build(name), data, split, "test", tmp_path)
    after = scores(build(name), relabelled, replace(split, **moved), "test", tmp_path)
    np.testing.assert_allclose(after[:, new_row], before, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["random", "popularity", *GROUPED, *CONTENT, "oracle_neighbour"])
def test_a_tasks_scores_do_not_depend_on_its_batch(name, tmp_path):
    data = block_dataset()
    split = make(data, "warm")
    system = build(name)
    together = scores(system, data, split, "test", tmp_path)
    alone = np.concatenate([system.score(split.tasks("test")[[row]]) for row in range(len(together))])
    np.testing.assert_allclose(alone, together, rtol=1e-4, atol=1e-6)


# Random


def test_random_meets_its_expected_recall(tmp_path):
    data = block_dataset()
    split = make(data, "cold")
    values = []
    for seed in range(200):
        system = RandomOrder()
        system.fit(data, split, seed=seed, workdir=tmp_path)
        values.append(recall10(top10(system, data, split, seed=seed), split).mean())
    # 200 x 8 hypergeometric draws (30, 10, 10): standard error of the mean 0.0031
    assert abs(np.mean(values) - 10 / N_SERVERS) < 4 * 0.0031


def test_random_differs_by_task_and_by_seed(tmp_path):
    data = block_dataset()
    split = make(data, "cold")
    first, second = RandomOrder(), RandomOrder()
    first.fit(data, split, seed=1, workdir=tmp_path)
    second.fit(data, split, seed=2, workdir=tmp_path)
    tasks = np.array([3, 4])
    assert (first.score(tasks)[0] != first.score(tasks)[1]).all()
    assert (first.score(tasks) != second.score(tasks)).all()


# Popularity


def theme_data():
    rows = [("web", "a"), ("WEB ", "a"), ("api", "a"), ("api", "b"), ("", "b"), ("new", "b"), ("", ""), ("web", "a")]
    tasks = [{"name": "t", "theme": theme, "subcategory": sub} for theme, sub in rows]
    lists = [[0, 1], [1], [2, 0], [3, 0], [3], [4], [4], [4]]
    data = make_dataset(tasks, [{"name": "s"}] * 6, lists)
    return data, split_of(data, train=[0, 1, 2, 3, 4], test=[5, 6, 7])


def test_popularity_counts_training_tasks(tmp_path):
    data, split = theme_data()
    said = scores(Popularity(), data, split, "test", tmp_path)
    # counts 3 2 1 2 0 0
    assert said[0].tolist() == [3, 2, 1, 2, 0, 0]
    assert (said == said[0]).all()


def test_popularity_backs_off_from_theme_to_subcategory_to_all(tmp_path):
    data, split = theme_data()
    said = scores(Popularity(["theme", "subcategory"]), data, split, "test", tmp_path)
    # task 5, theme "new" unseen, subcategory b: (counts in b, overall) = 0:(1,3) 1:(0,2) 2:(0,1) 3:(2,2) 4,5:(0,0)
    assert said[0].tolist() == [3, 2, 1, 4, 0, 0]
    # task 6 names neither: as plain popularity, not as the other task without a theme
    assert said[1].tolist() == [3, 2, 1, 2, 0, 0]
    # task 7, theme web (either spelling), then a: 0:(1,2,3) 1:(2,2,2) 2:(0,1,1) 3:(0,0,2) 4,5:(0,0,0)
    assert said[2].tolist() == [3, 4, 2, 1, 0, 0]


def test_popularity_heeds_the_narrow_level_first(tmp_path):
    tasks = [{"theme": theme, "subcategory": "s"} for theme in "xyyyx"]
    data = make_dataset(tasks, [{"name": "s"}] * 3, [[0], [1], [1], [1], [2]])
    split = split_of(data, train=[0, 1, 2, 3], test=[4])
    assert scores(Popularity(["theme", "subcategory"]), data, split, "test", tmp_path).tolist() == [[2, 1, 0]]
    assert scores(Popularity(["subcategory", "theme"]), data, split, "test", tmp_path).tolist() == [[1, 2, 0]]


def test_group_counts_leave_out_tasks_without_a_name():
    data, split = theme_data()
    groups, counts = fit_group_counts(split.train, data.tasks["theme"])
    assert groups.tolist() == [0, 0, 1, 1, 3, 2, 3, 0]
    assert counts.toarray().astype(int).tolist() == [[1, 2, 0, 0, 0, 0], [2, 0, 1, 1, 0, 0], [0] * 6, [0] * 6]


@given(arrays(np.int64, (3, 12), elements=st.integers(0, 3_000_000)))
def test_refining_sorts_like_tuples(counts):
    rank = np.zeros(12, dtype=np.int64)
    for level in counts[::-1]:
        rank = refine(rank, level)
    keys = [tuple(column) for column in counts.T]
    places = {key: place for place, key in enumerate(sorted(set(keys)))}
    assert rank.tolist() == [places[key] for key in keys]


# TF-IDF and BM25 against their formulas


def tokens(text):
    return re.findall(r"\b\w\w+\b", text.lower())


def bags(data):
    return [Counter(tokens(text)) for text in data.task_texts()], [
        Counter(tokens(text)) for text in data.server_texts()
    ]


def test_tfidf_is_the_cosine_of_the_textbook_weights(tmp_path):
    data = block_dataset()
    split = make(data, "cold")
    said = scores(TfidfCosine(ngram_range=(1, 1)), data, split, "test", tmp_path)
    tasks, servers = bags(data)
    known = servers + [tasks[row] for row in split.tasks("train")]
    documents = Counter(term for bag in known for term in bag)

    def vector(bag):
        idf = {term: math.log((1 + len(known)) / (1 + documents[term])) + 1 for term in bag if term in documents}
        weights = {term: bag[term] * value for term, value in idf.items()}
        length = math.sqrt(sum(value**2 for value in weights.values()))
        return {term: value / length for term, value in weights.items()}

    for row, task in enumerate(split.tasks("test")):
        query = vector(tasks[task])
        expected = [sum(query.get(term, 0) * value for term, value in vector(bag).items()) for bag in servers]
        np.testing.assert_allclose(said[row], expected, rtol=1e-5, atol=1e-6)


def test_tfidf_keeps_the_most_frequent_terms(tmp_path):
    data = block_dataset()
    system = TfidfCosine(max_features=7)
    system.fit(data, make(data, "cold"), seed=1, workdir=tmp_path)
    assert system.tasks.shape == (data.n_tasks, 7)
    assert system.servers.shape == (7, data.n_servers)


@pytest.mark.parametrize(("k1", "b"), [(1.2, 0.75), (2.0, 0.3), (0.9, 0.0)])
def test_bm25_is_lucenes_formula(k1, b, tmp_path):
    data = block_dataset()
    split = make(data, "cold")
    said = scores(Bm25(k1=k1, b=b), data, split, "test", tmp_path)
    tasks, servers = bags(data)
    documents = Counter(term for bag in servers for term in bag)
    mean = np.mean([bag.total() for bag in servers])
    for row, task in enumerate(split.tasks("test")):
        for server, bag in enumerate(servers):
            expected = 0.0
            for term, times in tasks[task].items():
                if not bag[term]:
                    continue
                idf = math.log(1 + (len(servers) - documents[term] + 0.5) / (documents[term] + 0.5))
                expected += times * idf * bag[term] / (bag[term] + k1 * (1 - b + b * bag.total() / mean))
            assert said[row, server] == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_bm25_drops_stop_words_and_survives_odd_texts(tmp_path):
    tasks = [
        {"name": "the and of"},
        {"name": "zebra"},
        {"name": ""},
        {"name": "\x00 \N{COLLISION SYMBOL} <script>"},
        {"name": "alpha beta"},
    ]
    data = make_dataset(tasks, [{"name": "the alpha"}, {"name": "beta and beta"}, {"name": ""}], [[0]] * 5)
    split = split_of(data, train=[0], test=[1, 2, 3, 4])
    system = Bm25(stopwords="en")
    system.fit(data, split, seed=1, workdir=tmp_path)
    said = system.score(np.arange(5))
    assert not said[:4].any()
    assert (said[4] > 0).tolist() == [True, True, False]
    keeping = Bm25()
    keeping.fit(data, split, seed=1, workdir=tmp_path)
    assert keeping.score(np.array([0]))[0, 0] > 0


# Task-KNN


def knn_data():
    texts = ["red green", "red green", "red blue", "blue pink", "red green"]
    tasks = [{"name": text, "theme": theme, "language": "Go"} for text, theme in zip(texts, "xyxyx", strict=True)]
    return make_dataset(tasks, [{"name": "s"}] * 5, [[0], [1], [2], [3], [4]])


def plain_knn(**changes):
    return TaskKNN(fields=("name",), attributes=("theme", "language"), **changes)


def test_task_knn_votes_with_powers_of_similarity(tmp_path):
    data = knn_data()
    split = split_of(data, train=[0, 2, 3], test=[4])
    system = plain_knn(k=2, power=3, max_ngram=1)
    said = scores(system, data, split, "test", tmp_path)[0]
    # document frequencies of the training tasks 0, 2, 3: red 2, green 1, blue 2, pink 1
    frequent, rare = math.log(4 / 3) + 1, math.log(4 / 2) + 1
    near = frequent**2 / (math.hypot(frequent, rare) * math.hypot(frequent, frequent))
    np.testing.assert_allclose(said, [1, 0, near**3, 0, 0], rtol=1e-5)


def test_task_knn_takes_no_more_than_k_and_never_itself(tmp_path):
    data = knn_data()
    warm = Split("warm", data.relevance, data.relevance * 0, data.relevance, cold=False)
    system = plain_knn(k=1, max_ngram=1)
    said = scores(system, data, warm, "test", tmp_path)
    assert said.diagonal().tolist() == [0.0] * 5
    assert (said > 0).sum(axis=1).tolist() == [1, 1, 1, 1, 1]
    np.testing.assert_allclose(said[1, [0, 4]].sum(), 1, rtol=1e-6)
    everyone = scores(plain_knn(k=10, max_ngram=1), data, warm, "test", tmp_path)
    assert everyone.diagonal().tolist() == [0.0] * 5


def test_task_knn_draws_among_equal_neighbours_by_seed(tmp_path):
    data = knn_data()
    split = split_of(data, train=[0, 1], test=[4])
    system = plain_knn(k=1)
    chosen = {int(scores(system, data, split, "test", tmp_path, seed=seed)[0].argmax()) for seed in range(12)}
    assert chosen == {0, 1}


@pytest.mark.parametrize(("weight", "expected"), [(0.0, [1, 1]), (1.0, [1, 0.75]), (3.0, [1, (1 + 1.5) / 4])])
def test_task_knn_adds_the_share_of_equal_attributes(weight, expected, tmp_path):
    data = knn_data()
    split = split_of(data, train=[0, 1], test=[4])
    system = plain_knn(attribute_weight=weight)
    system.fit(data, split, seed=1, workdir=tmp_path)
    np.testing.assert_allclose(system.similarity(np.array([4]))[0], expected, rtol=1e-6)


def test_task_knn_mixes_both_kinds_of_vectors(tmp_path):
    data = knn_data()
    split = split_of(data, train=[0, 2, 3], test=[4])
    parts = {}
    for mix in (0.0, 0.25, 1.0):
        system = plain_knn(mix=mix)
        system.fit(data, split, seed=1, workdir=tmp_path)
        parts[mix] = system.similarity(np.array([4]))
    np.testing.assert_allclose(parts[0.25], 0.75 * parts[0.0] + 0.25 * parts[1.0], rtol=1e-5)
    assert (parts[1.0] >= 0).all()


@given(st.lists(st.tuples(*[st.sampled_from(["", "a", "A ", "b", "c"])] * 3), min_size=1, max_size=8))
def test_one_hot_products_are_shares_of_equal_attributes(rows):
    names = ("theme", "language", "subcategory")
    data = make_dataset([dict(zip(names, row, strict=True)) for row in rows], [{}], [[0]] * len(rows))
    encoded = one_hot(data.tasks, names)
    clean = [[value.strip().lower() for value in row] for row in rows]
    expected = [[sum(a == b != "" for a, b in zip(x, y, strict=True)) / 3 for y in clean] for x in clean]
    np.testing.assert_allclose((encoded @ encoded.T).toarray(), expected, atol=1e-6)


# Oracle neighbour


def test_oracle_copies_the_best_neighbour(tmp_path):
    lists = [[0, 1, 2], [2, 3, 4], [3, 4, 5], [3, 4, 5], [0, 2, 5]]
    data = make_dataset([{"name": "t"}] * 5, [{"name": "s"}] * 6, lists)
    split = split_of(data, train=[0, 1, 2], test=[3, 4])
    said = scores(OracleNeighbour(), data, split, "test", tmp_path)
    assert said.tolist() == [[0, 0, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0]]


def test_oracle_bounds_every_copy_of_one_neighbour(tmp_path):
    data = block_dataset()
    split = make(data, "cold")
    system = OracleNeighbour()
    system.fit(data, split, seed=1, workdir=tmp_path)
    best = recall10(top10(system, data, split), split)
    answers, known = split.test[split.tasks("test")], split.train[split.tasks("train")]
    np.testing.assert_allclose(best, (answers @ known.T).toarray().max(axis=1) / LABELS)


def test_oracle_answers_validation_tasks_from_their_own_labels(tmp_path):
    data, split = copy_dataset()
    swapped = replace(split, valid=split.test, test=split.valid)
    system = OracleNeighbour()
    system.fit(data, swapped, seed=1, workdir=tmp_path)
    assert recall10(top10(system, data, swapped, "valid"), swapped, "valid").tolist() == [1.0] * 20


def test_toys_are_what_they_claim():
    data, split = copy_dataset()
    assert data.task_texts()[:20] == data.task_texts()[20:]
    assert len(set(data.task_texts())) == 20
    assert not set(WORDS[0]) & set(WORDS[1])
    assert split.tasks("train").tolist() == list(range(20))
