"""Documents, word search, fusion, thresholds, tokens: by hand, and against sorting and an own BM25 formula."""

import json
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.feature_extraction.text import TfidfVectorizer

from study.advisor.retrieval import texts as token_counts
from study.advisor.retrieval.documents import Server, ToolCatalog
from study.advisor.retrieval.index import Settings, ToolIndex, above, fuse, order_of, with_every_part
from study.advisor.retrieval.lexical import Bm25, TfIdfIndex, words_of
from study.advisor.retrieval.ranking import best
from study.advisor.retrieval.texts import MAX_PARTS, decompose, documents
from study.base.errors import StudyError
from study.tools import discovery as experiments
from study.tools import results
from study.tools.mcp_zero import last_tokens
from study.tools.queries import QuerySet, rank_all


def test_documents(catalog):
    filled = "Tool: read_file\nPurpose: read a file\nParameters: path: where the file is"
    assert documents(catalog, "template")[0] == filled
    assert documents(catalog, "name_desc", limit=4)[0] == "read_file: read"
    assert documents(catalog, "server")[2] == "Mail. send mail send: send a mail"
    with pytest.raises(StudyError, match="unknown document form"):
        documents(catalog, "novel")


def own_bm25(documents, query, k1=1.5, b=0.75):
    counts = pd.DataFrame([Counter(words_of(text)) for text in documents]).fillna(0)
    lengths, df = counts.sum(axis=1), (counts > 0).sum()
    idf = np.log(1 + (len(documents) - df + 0.5) / (df + 0.5))
    scores = idf * counts / counts.add(k1 * (1 - b + b * lengths / lengths.mean()), axis=0)
    return scores.reindex(columns=words_of(query), fill_value=0).sum(axis=1)


WORD = st.sampled_from(["read", "write", "file", "mail", "map"])
TEXT = st.lists(WORD, min_size=1, max_size=6).map(" ".join)
PARTS = [["Read the file and send it by mail", "Read the file", "send it by mail"], ["salt and pepper on the table"]]
PARTS += [["Plan a trip. Then book a cheap hotel.", "Plan a trip.", "Then book a cheap hotel."], ["Find a route"], [""]]
PARTS += [["turn a word document into a PDF and email it", "turn a word document into a PDF", "email it"]]
PARTS += [
    ["Commit the database schema changes to GitHub", "the database schema changes", "Commit to GitHub"],
    ["Send the note to Anna"],  # "the note" says too little to be searched for
]
PARTS += [["Find a route. Go. Then book a cheap hotel.", "Find a route. Go.", "Then book a cheap hotel."]]


@given(st.lists(TEXT, min_size=1, max_size=6), TEXT)
def test_bm25_against_its_formula(documents, query):
    np.testing.assert_allclose(Bm25(documents).scores([query])[0], own_bm25(documents, query), rtol=1e-4)


@given(st.lists(TEXT, min_size=1, max_size=6), st.lists(TEXT, max_size=3))
def test_tfidf_is_that_of_scikit_learn(documents, queries):
    options = {"tokenizer": words_of, "token_pattern": None, "lowercase": False, "sublinear_tf": True}
    other = TfidfVectorizer(**options, dtype=np.float32).fit(documents)
    cosines = [(other.transform([query]) @ other.transform(documents).T).toarray()[0] for query in queries]
    np.testing.assert_array_equal(TfIdfIndex(documents).scores(queries), np.reshape(cosines, (-1, len(documents))))


def test_word_search_of_nothing_known_and_words_split_names():
    found = words_of("getUserToken read_file v2 使用 HTTPServer")
    assert found == ["get", "user", "token", "read", "file", "v", "2", "使", "用", "httpserver"]
    assert Bm25(["read file", "send mail"]).scores(["zzz", ""]).tolist() == [[0, 0], [0, 0]]
    assert Bm25(["", "..."]).scores(["read"]).tolist() == [[0, 0]]
    assert TfIdfIndex(["read file", "send mail"]).scores(["read read"])[0].argmax() == 0


@given(
    hnp.arrays(np.float32, st.integers(1, 30), elements=st.sampled_from([-np.inf, 0.0, 0.25, 1.0])),
    st.integers(1, 40),
    st.integers(0, 5),
)
def test_best_is_a_stable_sort(scores, k, seed):
    order = np.random.default_rng(seed).permutation(len(scores))
    rows, values = best(scores, k, order)
    expected = order[np.argsort(-scores[order], kind="stable")][:k]
    assert rows.tolist() == [row for row in expected if np.isfinite(scores[row])]
    assert values.tolist() == scores[rows].tolist()


def test_fusion_by_hand_and_its_ties_keep_the_order_of_the_catalogue():
    fused = fuse([np.array([[3.0, 2, 1]], np.float32), np.array([[1.0, 3, 2]], np.float32)], 60)
    np.testing.assert_allclose(fused[0], [1 / 61 + 1 / 63, 1 / 62 + 1 / 61, 1 / 63 + 1 / 62], rtol=1e-6)
    # The second system knows the third tool alone; the others tie at 0 and are ranked as they stand.
    fused = fuse([np.array([[1.0, 1, 1, 1]], np.float32), np.array([[0.0, 0, 5, 0]], np.float32)], 60)
    ranks = np.array([[1, 2], [2, 3], [3, 1], [4, 4]])
    np.testing.assert_allclose(fused[0], (1 / (60 + ranks)).sum(axis=1), rtol=1e-6)
    equal = np.zeros((1, 50), np.float32)
    order = order_of(Settings("hybrid"), 50)
    assert rank_all(fuse([equal, equal], 60), order=order)[0].tolist() == list(range(50))
    assert rank_all(equal, order=order)[0].tolist() == list(range(50))
    # Every other search takes equal tools at random.
    assert rank_all(equal)[0].tolist() == order_of(Settings("bm25"), 50).tolist() != list(range(50))


def test_popularity_knows_nothing_of_its_own_unit():
    queries = QuerySet("q", ("a", "b", "c"), ("x", "x", "y"), (((0,),), ((0,), (1, 2)), ((1,),)), ("g", "g", "h"))
    assert experiments.popularity(queries, queries.groups, 4).tolist() == [[0, 1, 0, 0], [0, 1, 0, 0], [2, 1, 1, 0]]
    assert experiments.popularity(queries, queries.ids, 4)[0].tolist() == [1, 2, 1, 0]


def test_means_over_tools_and_servers_by_hand(catalog):
    queries = QuerySet("q", tuple("abcd"), tuple("wxyz"), (((0,),), ((0,),), ((1,),), ((4,),)), tuple("abcd"))
    table = pd.DataFrame({"task_id": list("abcd"), "seed": 0, "hit_rate@1": [1.0, 0.0, 0.0, 1.0]})
    line = experiments.macro_means({"s": table}, catalog, queries, ["hit_rate@1"]).iloc[0]
    # Tools 0, 1 and 4 have 0.5, 0 and 1; server 0 has 1/3, server 2 has 1.
    assert (line["by_query"], line["by_tool"]) == (0.5, 0.5)
    assert line["by_server"] == pytest.approx((1 / 3 + 1) / 2)
    assert (line["tools"], line["servers"], line["largest_server"]) == (3, 2, 0.75)


@pytest.mark.parametrize("mode", ["dense", "bm25", "tfidf", "hybrid"])
def test_every_mode_finds_the_obvious_and_refuses_nonsense(catalog, embedder, mode):
    index = ToolIndex(catalog, Settings(mode, "name_desc"), embedder)
    rows, values = index.search("send a mail", 2)
    assert rows[0] == 2
    assert values[0] >= values[1]
    for query, k, reason in (("  ", 3, "empty"), ("x", 0, "0 tools")):
        with pytest.raises(StudyError, match=reason):
            index.search(query, k)


def test_what_no_index_can_be_made_of(catalog, embedder):
    with pytest.raises(StudyError, match="unknown search mode"):
        Settings("psychic")
    with pytest.raises(StudyError, match="has no tools"):
        ToolIndex(ToolCatalog("empty", (Server("s", "S", ""),), ()))
    assert len(ToolIndex(catalog, Settings(), embedder).search("read", 99)[0]) == 5


def test_parts_of_a_query_reach_both_servers(catalog, embedder):
    query = "read the big file and then find the route on a map"
    plain = ToolIndex(catalog, Settings(document="name_desc"), embedder).scores([query])[0]
    parts = ToolIndex(catalog, Settings(document="name_desc", decompose=True), embedder).scores([query])[0]
    assert (parts >= plain - 1e-6).all()
    assert {0, 4} == set(np.argsort(-parts)[:2].tolist())


def test_every_part_has_its_best_tool_among_the_found(catalog, embedder):
    query = "send the mail and find the route on a map"
    index = ToolIndex(catalog, Settings(document="name_desc", decompose=True), embedder)
    assert {2, 4} <= set(index.search(query, 2)[0].tolist())


def test_places_for_every_part_by_hand():
    scores = np.array([[9, 8, 7, 3, 2, 1], [9, 8, 0, 0, 0, 0], [0, 0, 0, 3, 0, 1], [0, 0, 0, 0, 2, 0], [0] * 6])
    found = [with_every_part(np.arange(k), scores.astype(np.float32), np.arange(6)).tolist() for k in (1, 2, 3, 4)]
    assert found == [[0], [0, 3], [0, 3, 4], [0, 1, 3, 4]]


@pytest.mark.parametrize("parts", PARTS)
def test_decompose(parts):
    assert decompose(parts[0]) == parts


@given(st.text(max_size=300))
def test_decompose_is_total_and_bounded(query):
    parts = decompose(query)
    assert parts[0] == query
    assert 2 != len(parts) <= MAX_PARTS + 1


def test_token_counts():
    assert token_counts.count_tokens(["", "hello world", "a" * 3000]).tolist()[:2] == [0, 2]
    # A text far beyond the model's 256 tokens is counted to its end.
    assert token_counts.count_tokens(["word " * 1000])[0] == 1000
    assert last_tokens(["one two three", "one"], 2) == ["two three", "one"]
    sizes = np.array([5, 7, 11])
    assert experiments.handed_over(np.array([[2, 0], [1, -1]]), sizes).tolist() == [16, 7]


def test_reduction_falls_with_k_and_ends_at_zero(catalog, embedder):
    queries = QuerySet("q", ("a",), ("read a file",), (((0,),),), ("g",))
    scores = ToolIndex(catalog, Settings(document="name_desc"), embedder).scores(queries.texts)
    table = experiments.by_k(catalog, queries, scores, pool_tokens=int(token_counts.definition_tokens(catalog).sum()))
    assert table["token_reduction"].is_monotonic_decreasing
    # K = 10 hands over all five tools: nothing is saved.
    assert table["token_reduction"].iloc[-1] == pytest.approx(0)
    assert table.loc[0, ["precision", "recall", "hit_rate"]].tolist() == [1, 1, 1]
    assert table["tokens_by_characters"][0] == len(json.dumps(catalog.tools[0].definition())) // 4
    assert table["tokens"][0] == token_counts.definition_tokens(catalog)[0]


def test_thresholds_by_hand(catalog):
    rows, values = np.array([4, 2, 7]), np.array([0.9, 0.5, 0.1], np.float32)
    found = [above(rows, values, threshold)[0].tolist() for threshold in (0.5, 0.95, None)]
    assert found == [[4, 2], [4, 2, 7], [4, 2, 7]]
    queries = QuerySet("q", ("a", "b"), ("x", "y"), (((0,), (1,)), ((4,),)), ("a", "b"))
    scores = np.array([[0.9, 0.5, 0.4, 0.1, 0.0], [0.3, 0.2, 0.1, 0.0, 0.25]], np.float32)
    table = experiments.by_threshold(catalog, queries, scores, [0.4], 2).iloc[0]
    # The first query keeps the tools 0 and 1, both right; the other falls back to its best two, of which 4 is right.
    assert (table["fell_back"], table["mean_tools"]) == (0.5, 2)
    assert (table["precision"], table["recall"], table["hit_rate"]) == (0.75, 1, 1)
    assert experiments.by_threshold(catalog, queries, scores, [0.6], 2)["mean_tools"][0] == 1.5


def test_latency_times_the_search_that_users_get(catalog, embedder, monkeypatch):
    index, calls = ToolIndex(catalog, Settings(document="name_desc"), embedder), []
    monkeypatch.setattr(experiments, "cosines", lambda a, b: calls.append(a.shape) or a @ b.T)
    found = experiments.latency(index, ("read", "send"), 2)
    assert calls == [(1, 8), (1, 8)]
    assert 0 < found["search_p95_ms"] < found["latency_p95_ms"] + 1000


def test_requests_of_a_task_are_joined_by_hand():
    queries = QuerySet("q", ("a", "b"), ("x", "y"), (((0,), (11,)), ((4,),)), ("a", "b"))
    scores = np.zeros((3, 12), np.float32)
    # Two requests of the first task: one ranks tool 0 first, the other tool 11 fifth; the second task finds nothing.
    scores[0, 0], scores[1, :5] = 9, [9, 8, 7, 6, 0]
    scores[1, 11], scores[2, 5:] = 5, np.arange(9, 2, -1)
    table = results.measure_sets(experiments.hand_over(scores, [0, 0, 1], 2, (3, 10)), queries, 12)
    assert table["recall@3"].tolist() == [0.5, 0]
    assert table["recall@10"][0] == 1
    assert table["hit_rate@3"].tolist() == [1, 0]


def test_noisy_copies_are_unit_vectors():
    vectors = np.eye(4, dtype=np.float32)
    more = experiments.grown(vectors, 50, np.random.default_rng(0))
    np.testing.assert_array_equal(more[:4], vectors)
    np.testing.assert_allclose(np.linalg.norm(more, axis=1), 1, rtol=1e-5)
    assert len(np.unique(more[4:], axis=0)) == 46
    assert len(experiments.grown(vectors, 2, np.random.default_rng(0))) == 2
