"""Hand-computed cases, planted truths and independent recomputations of the reference systems."""

import math
import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from baselines.bm25 import Bm25
from baselines.cosine import TfidfCosine
from baselines.popularity import Popularity, RandomOrder, one_hot, refine
from baselines.probes.oracle_neighbour import OracleNeighbour
from baselines.task_knn import TaskKNN, encode_attributes
from tests.baselines import toys
from tests.baselines.toys import copy_dataset, fit, make_dataset, recall10, scores, split_of


def test_random_meets_its_expected_recall_and_differs_by_task_and_by_seed(cold_blocks):
    values = [recall10(fit(RandomOrder(), *cold_blocks, seed=seed), *cold_blocks).mean() for seed in range(200)]
    # 200 x 8 hypergeometric draws (30, 10, 10): standard error of the mean 0.0031
    assert abs(np.mean(values) - 10 / toys.N_SERVERS) < 4 * 0.0031
    first, second = (fit(RandomOrder(), *cold_blocks, seed=seed).score(np.array([3, 4])) for seed in (1, 2))
    assert (first[0] != first[1]).all()
    assert (first != second).all()


def theme_data():
    rows = [("web", "a"), ("WEB ", "a"), ("api", "a"), ("api", "b"), ("", "b"), ("new", "b"), ("", ""), ("web", "a")]
    tasks = [{"name": "t", "theme": theme, "subcategory": sub} for theme, sub in rows]
    lists = [[0, 1], [1], [2, 0], [3, 0], [3], [4], [4], [4]]
    data = make_dataset(tasks, [{"name": "s"}] * 6, lists)
    return data, split_of(data, range(5), [5, 6, 7])


def test_popularity_backs_off_from_theme_to_subcategory_to_all():
    for plain in (Popularity(), toys.build("popularity")):  # gives every task one list
        assert scores(plain, *theme_data(), "test", None).tolist() == [[3, 2, 1, 2, 0, 0]] * 3
    assert scores(Popularity(["theme", "subcategory"]), *theme_data(), "test", None).tolist() == [
        # task 5, theme "new" unseen, subcategory b: (counts in b, overall) = 0:(1,3) 1:(0,2) 2:(0,1) 3:(2,2) 4,5:(0,0)
        [3, 2, 1, 4, 0, 0],
        # task 6 names neither: as plain popularity, not as the other task without a theme
        [3, 2, 1, 2, 0, 0],
        # task 7, theme web (either spelling), then a: 0:(1,2,3) 1:(2,2,2) 2:(0,1,1) 3:(0,0,2) 4,5:(0,0,0)
        [3, 4, 2, 1, 0, 0],
    ]


def test_tasks_without_a_name_are_in_no_group():
    groups, names = one_hot(theme_data()[0].tasks["theme"])
    assert (groups.argmax(axis=1).ravel().tolist(), names) == ([[0, 0, 1, 1, 0, 2, 0, 0]], ["web", "api", "new"])
    assert groups.sum(axis=1).ravel().tolist() == [[1, 1, 1, 1, 0, 1, 0, 1]]


@given(arrays(np.int64, (3, 12), elements=st.integers(0, 3_000_000)))
def test_refining_sorts_like_tuples(counts):
    rank = np.zeros(12, dtype=np.int64)
    for level in counts[::-1]:
        rank = refine(rank, level)
    keys = [tuple(column) for column in counts.T]
    places = {key: place for place, key in enumerate(sorted(set(keys)))}
    assert rank.tolist() == [places[key] for key in keys]


def bags(texts, pairs=False):
    words = [re.findall(r"\b\w\w+\b", text.lower()) for text in texts]
    return [Counter(own + [" ".join(pair) for pair in pairwise(own) if pairs]) for own in words]


def test_tfidf_is_the_cosine_of_the_textbook_weights(cold_blocks):
    data, split = cold_blocks
    said = scores(TfidfCosine(), data, split, "test", None)
    tasks, servers = bags(data.task_texts(), True), bags(data.server_texts(), True)
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


@pytest.mark.parametrize(("k1", "b"), [(1.2, 0.75), (2.0, 0.3), (0.9, 0.0)])
def test_bm25_is_lucenes_formula(k1, b, cold_blocks):
    data, split = cold_blocks
    said = scores(Bm25(k1=k1, b=b), data, split, "test", None)
    tasks, servers = bags(data.task_texts()), bags(data.server_texts())
    documents = Counter(term for bag in servers for term in bag)
    mean = np.mean([bag.total() for bag in servers])
    for row, task in enumerate(split.tasks("test")):
        for server, bag in enumerate(servers):
            expected = 0.0
            for term in bag:
                idf = math.log(1 + (len(servers) - documents[term] + 0.5) / (documents[term] + 0.5))
                expected += tasks[task][term] * idf * bag[term] / (bag[term] + k1 * (1 - b + b * bag.total() / mean))
            assert said[row, server] == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_bm25_survives_odd_texts():
    names = ["zebra", "", "\x00 \N{COLLISION SYMBOL} <script>", "alpha beta"]
    data = make_dataset([{"name": name} for name in names], [{"name": "the alpha"}, {"name": ""}], [[0]] * 4)
    assert (fit(Bm25(), data, split_of(data, [0], [1, 2, 3])).score(np.arange(4)) > 0).tolist() == [
        *[[False, False]] * 3,
        [True, False],
    ]


@pytest.fixture(scope="module")
def colours():
    """Five tasks, each with a server of its own: texts, and themes x y x y x."""
    texts = ["red green", "red green", "red blue", "blue pink", "red green"]
    tasks = [{"name": text, "theme": theme, "language": "Go"} for text, theme in zip(texts, "xyxyx", strict=True)]
    return make_dataset(tasks, [{"name": "s"}] * 5, [[0], [1], [2], [3], [4]])


def plain_knn(data, train, seed=1, **changes):
    knn = TaskKNN(fields=("name",), attributes=("theme", "language"), **changes)
    return fit(knn, data, split_of(data, train, [4]), seed=seed)


def test_task_knn_votes_with_powers_of_similarity(colours):
    said = plain_knn(colours, [0, 2, 3], k=2, power=3, max_ngram=1).score(np.array([4]))[0]
    # document frequencies of the training tasks 0, 2, 3: red 2, green 1, blue 2, pink 1
    frequent, rare = math.log(4 / 3) + 1, math.log(4 / 2) + 1
    near = frequent**2 / (math.hypot(frequent, rare) * math.hypot(frequent, frequent))
    np.testing.assert_allclose(said, [1, 0, near**3, 0, 0], rtol=1e-5)


def test_task_knn_takes_no_more_than_k_never_itself_and_draws_among_equal_ones(colours):
    one, all_ = (plain_knn(colours, range(5), k=k, max_ngram=1).score(np.arange(5)) for k in (1, 10))
    assert not (one + all_).diagonal().any()
    assert (one > 0).sum(axis=1).tolist() == [1, 1, 1, 1, 1]
    np.testing.assert_allclose(one[1, [0, 4]].sum(), 1, rtol=1e-6)
    said = [plain_knn(colours, [0, 1], k=1, seed=seed).score(np.array([4]))[0] for seed in range(12)]
    assert {int(row.argmax()) for row in said} == {0, 1}


@pytest.mark.parametrize(("weight", "expected"), [(0.0, [1, 1]), (1.0, [1, 0.75]), (3.0, [1, (1 + 1.5) / 4])])
def test_task_knn_adds_the_share_of_equal_attributes(weight, expected, colours):
    said = plain_knn(colours, [0, 1], attribute_weight=weight).similarity(np.array([4]))[0]
    np.testing.assert_allclose(said, expected, rtol=1e-6)


def test_task_knn_mixes_both_kinds_of_vectors(colours):
    lexical, mixed, dense = (
        plain_knn(colours, [0, 2, 3], mix=mix).similarity(np.array([4])) for mix in (0.0, 0.25, 1.0)
    )
    np.testing.assert_allclose(mixed, 0.75 * lexical + 0.25 * dense, rtol=1e-5)
    assert (dense >= 0).all()


@given(st.lists(st.tuples(*[st.sampled_from(["", "a", "A ", "b", "c"])] * 3), min_size=1, max_size=8))
def test_products_of_indicators_are_shares_of_equal_attributes(rows):
    names = ("theme", "language", "subcategory")
    data = make_dataset([dict(zip(names, row, strict=True)) for row in rows], [{}], [[0]] * len(rows))
    encoded = encode_attributes(data.tasks, names)
    clean = [[value.strip().lower() for value in row] for row in rows]
    expected = [[sum(a == b != "" for a, b in zip(x, y, strict=True)) / 3 for y in clean] for x in clean]
    np.testing.assert_allclose((encoded @ encoded.T).toarray(), expected, atol=1e-6)


def test_oracle_copies_the_best_neighbour():
    lists = [[0, 1, 2], [2, 3, 4], [3, 4, 5], [3, 4, 5], [0, 2, 5]]
    data = make_dataset([{"name": "t"}] * 5, [{"name": "s"}] * 6, lists)
    said = scores(OracleNeighbour(), data, split_of(data, [0, 1, 2], [3, 4]), "test", None)
    assert said.tolist() == [[0, 0, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0]]


def test_oracle_answers_validation_tasks_from_their_own_labels():
    data, split = copy_dataset()
    swapped = replace(split, valid=split.test, test=split.valid)
    assert recall10(fit(OracleNeighbour(), data, swapped), data, swapped, "valid").tolist() == [1.0] * 20
