"""Documents, word search, fusion, thresholds, routing, budgets: by hand, and against sorting and other libraries."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.feature_extraction.text import TfidfVectorizer

from study.advisor.encoders import sentence
from study.advisor.encoders.choose import FEW, QuickMiniLm
from study.advisor.retrieval import index as indexes
from study.advisor.retrieval import route as routing
from study.advisor.retrieval.documents import Server, Tool, ToolCatalog
from study.advisor.retrieval.index import Settings, ToolIndex, above, fuse, order_of, with_every_part, within
from study.advisor.retrieval.lexical import Bm25, TfIdfIndex, words_of
from study.advisor.retrieval.ranking import best
from study.advisor.retrieval.route import PAPER, Request, Router, Routing, best_servers, combine, server_texts
from study.advisor.retrieval.texts import MAX_PARTS, count_tokens, decompose, definition_tokens, documents
from study.base import paths
from study.base.errors import StudyError
from study.data.dataset import Dataset, relevance_from_lists
from study.data.splits import Split
from study.tools import discovery, mcp_zero, request_log, results, router
from study.tools.collections.apibank import Call
from study.tools.queries import QuerySet, rank_all
from study.tools.router import Stage
from tests.toy_tools import BLOCK

NAMED = Settings(document="name_desc")
TOOLS = np.array([[0.1, 0.9, 0.8, 0.3, 0.7]], np.float32)


def array(*values):
    return np.array(values, np.float32)


def test_documents(catalog):
    filled = "Tool: read_file\nPurpose: read a file\nParameters: path: where the file is"
    assert documents(catalog, "template")[0] == filled
    assert documents(catalog, "name_desc", limit=4)[0] == "read_file: read"
    assert documents(catalog, "server")[2] == "Mail. send mail send: send a mail"
    with pytest.raises(StudyError, match="unknown document form"):
        documents(catalog, "novel")


def own_bm25(texts, query, k1=1.5, b=0.75):
    counts = pd.DataFrame([Counter(words_of(text)) for text in texts]).fillna(0)
    lengths, df = counts.sum(axis=1), (counts > 0).sum()
    idf = np.log(1 + (len(texts) - df + 0.5) / (df + 0.5))
    scores = idf * counts / counts.add(k1 * (1 - b + b * lengths / lengths.mean()), axis=0)
    return scores.reindex(columns=words_of(query), fill_value=0).sum(axis=1)


TEXT = st.lists(st.sampled_from(["read", "write", "file", "mail", "map"]), min_size=1, max_size=6).map(" ".join)


@given(st.lists(TEXT, min_size=1, max_size=6), st.lists(TEXT, min_size=1, max_size=3))
def test_word_search_is_that_of_its_formula_and_of_scikit_learn(texts, queries):
    np.testing.assert_allclose(Bm25(texts).scores(queries)[0], own_bm25(texts, queries[0]), rtol=1e-4)
    options = {"tokenizer": words_of, "token_pattern": None, "lowercase": False, "sublinear_tf": True}
    other = TfidfVectorizer(**options, dtype=np.float32).fit(texts)
    cosines = [(other.transform([query]) @ other.transform(texts).T).toarray()[0] for query in queries]
    np.testing.assert_array_equal(TfIdfIndex(texts).scores(queries), cosines)


def test_word_search_of_nothing_known_and_words_split_names():
    found = words_of("getUserToken read_file v2 使用 HTTPServer")
    assert found == ["get", "user", "token", "read", "file", "v", "2", "使", "用", "httpserver"]
    assert Bm25(["read file", "send mail"]).scores(["zzz", ""]).tolist() == [[0, 0], [0, 0]]
    assert Bm25(["", "..."]).scores(["read"]).tolist() == [[0, 0]]


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
    fused = fuse([array([3, 2, 1]), array([1, 3, 2])], 60)
    np.testing.assert_allclose(fused[0], [1 / 61 + 1 / 63, 1 / 62 + 1 / 61, 1 / 63 + 1 / 62], rtol=1e-6)
    # The second system knows the third tool alone; the others tie at 0 and are ranked as they stand.
    fused = fuse([array([1, 1, 1, 1]), array([0, 0, 5, 0])], 60)
    ranks = np.array([[1, 2], [2, 3], [3, 1], [4, 4]])
    np.testing.assert_allclose(fused[0], (1 / (60 + ranks)).sum(axis=1), rtol=1e-6)
    equal, order = np.zeros((1, 50), np.float32), order_of(Settings("hybrid"), 50)
    assert rank_all(fuse([equal, equal], 60), order=order)[0].tolist() == list(range(50))
    # Every other search takes equal tools at random.
    assert rank_all(equal)[0].tolist() == order_of(Settings("bm25"), 50).tolist() != list(range(50))


@pytest.mark.parametrize("mode", ["dense", "bm25", "tfidf", "hybrid"])
def test_every_mode_finds_the_obvious_and_refuses_nonsense(catalog, embedder, mode):
    index = ToolIndex(catalog, Settings(mode, "name_desc"), embedder)
    rows, values = index.search("send a mail", 99)
    assert (rows[0], len(rows), values[0] >= values[1]) == (2, 5, True)
    for query, k, reason in (("  ", 3, "empty"), ("x", 0, "0 tools")):
        with pytest.raises(StudyError, match=reason):
            index.search(query, k)
    with pytest.raises(StudyError, match="unknown search mode"):
        Settings("psychic")
    with pytest.raises(StudyError, match="has no tools"):
        ToolIndex(ToolCatalog("empty", (Server("s", "S", ""),), ()))


PARTS = [["Read the file and send it by mail", "Read the file", "send it by mail"], ["salt and pepper on the table"]]
PARTS += [["Plan a trip. Then book a cheap hotel.", "Plan a trip.", "Then book a cheap hotel."], ["Find a route"], [""]]
PARTS += [["turn a word document into a PDF and email it", "turn a word document into a PDF", "email it"]]
PARTS += [["Commit the database schema changes to GitHub", "the database schema changes", "Commit to GitHub"]]
PARTS += [["Send the note to Anna"]]  # "the note" says too little to be searched for
PARTS += [["Find a route. Go. Then book a cheap hotel.", "Find a route. Go.", "Then book a cheap hotel."]]


@pytest.mark.parametrize("parts", PARTS)
def test_parts_of_a_query_by_hand(parts):
    assert decompose(parts[0]) == parts


@given(st.text(max_size=300))
def test_decompose_is_total_and_bounded(query):
    parts = decompose(query)
    assert parts[0] == query
    assert 2 != len(parts) <= MAX_PARTS + 1


def test_every_part_has_its_best_tool_among_the_found(catalog, embedder):
    query = "send the mail and find the route on a map"
    index = ToolIndex(catalog, replace(NAMED, decompose=True), embedder)
    assert (index.scores([query]) >= ToolIndex(catalog, NAMED, embedder).scores([query]) - 1e-6).all()
    assert {2, 4} <= set(index.search(query, 2)[0].tolist())
    scores = array([9, 8, 7, 3, 2, 1], [9, 8, 0, 0, 0, 0], [0, 0, 0, 3, 0, 1], [0, 0, 0, 0, 2, 0], [0] * 6)
    found = [with_every_part(np.arange(k), scores, np.arange(6)).tolist() for k in (1, 2, 3, 4)]
    assert found == [[0], [0, 3], [0, 3, 4], [0, 1, 3, 4]]


def test_token_counts():
    assert count_tokens(["", "hello world", "a" * 3000]).tolist()[:2] == [0, 2]
    # A text far beyond the model's 256 tokens is counted to its end.
    assert count_tokens(["word " * 1000])[0] == 1000
    assert mcp_zero.last_tokens(["one two three", "one"], 2) == ["two three", "one"]
    assert discovery.handed_over(np.array([[2, 0], [1, -1]]), np.array([5, 7, 11])).tolist() == [16, 7]


def test_measures_of_discovery_by_hand(catalog, embedder):
    queries = QuerySet("q", ("a", "b", "c"), ("x", "x", "y"), (((0,),), ((0,), (1, 2)), ((1,),)), ("g", "g", "h"))
    # What is popular knows nothing of its own unit.
    assert discovery.popularity(queries, queries.groups, 4).tolist() == [[0, 1, 0, 0], [0, 1, 0, 0], [2, 1, 1, 0]]
    assert discovery.popularity(queries, queries.ids, 4)[0].tolist() == [1, 2, 1, 0]
    queries = QuerySet("q", tuple("abcd"), tuple("wxyz"), (((0,),), ((0,),), ((1,),), ((4,),)), tuple("abcd"))
    table = pd.DataFrame({"task_id": list("abcd"), "seed": 0, "hit_rate@1": [1.0, 0.0, 0.0, 1.0]})
    line = discovery.macro_means({"s": table}, catalog, queries, ["hit_rate@1"]).iloc[0]
    # Tools 0, 1 and 4 have 0.5, 0 and 1; server 0 has 1/3, server 2 has 1.
    assert (line["by_query"], line["by_tool"], line["by_server"]) == pytest.approx((0.5, 0.5, (1 / 3 + 1) / 2))
    assert (line["tools"], line["servers"], line["largest_server"]) == (3, 2, 0.75)
    queries, sizes = QuerySet("q", ("a",), ("read a file",), (((0,),),), ("g",)), definition_tokens(catalog)
    scores = ToolIndex(catalog, NAMED, embedder).scores(queries.texts)
    table = discovery.by_k(catalog, queries, scores, pool_tokens=int(sizes.sum()))
    assert table["token_reduction"].is_monotonic_decreasing
    # K = 10 hands over all five tools: nothing is saved.
    assert table["token_reduction"].iloc[-1] == pytest.approx(0)
    first = table.loc[0, ["precision", "recall", "hit_rate", "tokens", "tokens_by_characters"]].tolist()
    assert first == [1, 1, 1, sizes[0], len(json.dumps(catalog.tools[0].definition())) // 4]


def test_noisy_copies_are_unit_vectors():
    vectors, rng = np.eye(4, dtype=np.float32), np.random.default_rng(0)
    more = discovery.grown(vectors, 50, rng)
    np.testing.assert_array_equal(more[:4], vectors)
    np.testing.assert_allclose(np.linalg.norm(more, axis=1), 1, rtol=1e-5)
    assert (len(np.unique(more[4:], axis=0)), len(discovery.grown(vectors, 2, rng))) == (46, 2)


def test_thresholds_by_hand(catalog):
    rows, values = np.array([4, 2, 7]), array(0.9, 0.5, 0.1)
    found = [above(rows, values, threshold)[0].tolist() for threshold in (0.5, 0.95, None)]
    assert found == [[4, 2], [4, 2, 7], [4, 2, 7]]
    queries = QuerySet("q", ("a", "b"), ("x", "y"), (((0,), (1,)), ((4,),)), ("a", "b"))
    scores = array([0.9, 0.5, 0.4, 0.1, 0.0], [0.3, 0.2, 0.1, 0.0, 0.25])
    table = discovery.by_threshold(catalog, queries, scores, [0.4], 2).iloc[0]
    # The first query keeps the tools 0 and 1, both right; the other falls back to its best two, of which 4 is right.
    columns = ["fell_back", "mean_tools", "precision", "recall", "hit_rate"]
    assert table[columns].tolist() == [0.5, 2, 0.75, 1, 1]
    assert discovery.by_threshold(catalog, queries, scores, [0.6], 2)["mean_tools"][0] == 1.5


def test_requests_of_a_task_are_joined_by_hand():
    queries = QuerySet("q", ("a", "b"), ("x", "y"), (((0,), (11,)), ((4,),)), ("a", "b"))
    scores = np.zeros((3, 12), np.float32)
    # Two requests of the first task: one ranks tool 0 first, the other tool 11 fifth; the second task finds nothing.
    scores[0, 0], scores[1, :5] = 9, [9, 8, 7, 6, 0]
    scores[1, 11], scores[2, 5:] = 5, np.arange(9, 2, -1)
    table = results.measure_sets(discovery.hand_over(scores, [0, 0, 1], 2, (3, 10)), queries, 12)
    assert (table["recall@3"].tolist(), table["recall@10"][0], table["hit_rate@3"].tolist()) == ([0.5, 0], 1, [1, 0])
    scores = array([3, 2, 1, 0], [0, 3, 2, 1], [1, 0, 0, 2])
    handed = discovery.hand_over(scores, [0, 0, 2], 3, (1, 3))
    assert handed[1] == [[0, 1], [], [3]]
    assert [len(rows) for rows in request_log.same_number(scores, handed)[1]] == [2, 0, 1]


def test_few_new_texts_need_no_torch_and_a_question_is_not_kept(project, monkeypatch):
    asked = []

    def embed(texts, model, device):
        asked.append((model, len(texts)))
        return np.full((len(texts), sentence.DIMENSION), len(asked), dtype=np.float32)

    monkeypatch.setattr(sentence, "_embed", embed)
    many = [f"text {number}" for number in range(FEW + 1)]
    first = QuickMiniLm().encode(many)
    again = QuickMiniLm().encode([*many, "new"])
    QuickMiniLm().encode(["a question"], store=False)
    np.testing.assert_array_equal(again[:-1], first)
    QuickMiniLm().encode(["a question"])
    assert asked == [("minilm", FEW + 1), *[("minilm_numpy", 1)] * 3]
    assert (paths.cache() / "embeddings" / "tools").is_dir()


def test_filters_by_server_and_tag(catalog):
    marked = (replace(catalog.servers[0], tags=("Office",)), replace(catalog.servers[1], sources=("hub",)))
    own = ToolCatalog("toy", (*marked, catalog.servers[2]), catalog.tools)
    assert indexes.matching(own, [], []) is None
    rows = {("MAIL*", None): [2, 3], ("geo", None): [4], (None, "office"): [0, 1], ("*", "HUB"): [2, 3]}
    for (server, tag), expected in rows.items():  # a server by an alias, a name, or an id
        found = indexes.matching(own, [server] if server else [], [tag] if tag else [])
        assert np.flatnonzero(found).tolist() == expected
    with pytest.raises(StudyError, match="geo"):
        indexes.matching(own, ["geo"], ["hub"])


WHOLE = f"First {BLOCK.format('my files', 'read')} then {BLOCK.format('b', 'd: e')}"
OPEN = "<tool_assistant>\nserver: a\ntool: b"
MALFORMED = [OPEN, "<tool_assistant></tool_assistant>", "<tool_assistant>\ntool: b\nserver: a\n</tool_assistant>"]
MALFORMED += [f"<tool_assistant>\n{lines}\n</tool_assistant>" for lines in ("server: a", "server: \ntool: b")]
# An open block does not swallow the next.
REPLIES = [(WHOLE, "my files/read b/d: e", 0), (f"{OPEN}\n{BLOCK.format('c', 'd')}", "c/d", 1)]


@pytest.mark.parametrize(("reply", "expected", "malformed"), [*REPLIES, *((reply, "", 1) for reply in MALFORMED)])
def test_blocks_of_a_reply_and_malformed_ones(reply, expected, malformed):
    found = routing.parse_requests(reply)
    assert " ".join(f"{request.server}/{request.tool}" for request in found) == expected
    assert routing.count_malformed(reply) == malformed


@given(st.text(max_size=400))
def test_parsing_is_total(reply):
    assert routing.count_malformed(reply) >= 0
    assert all(request.server and request.tool for request in routing.parse_requests(reply))


def test_equation_one_is_clipped_and_routing_by_hand():
    s, t = array(0.5, -0.5, -0.5, 0.9), array(0.8, -0.8, 0.8, 0.1)
    np.testing.assert_allclose(routing.zero_score(s, t), [0.5 * 0.8 * 0.8, 0, 0, 0.9 * 0.1 * 0.9], rtol=1e-6)
    np.testing.assert_allclose(routing.zero_score(s, t, "sum"), [1.3, 0, 0.8, 1.0], rtol=1e-6)
    np.testing.assert_allclose(routing.zero_score(s, t, "product"), [0.4, 0, 0, 0.09], rtol=1e-5)
    servers, tools, of = array([0.9, 0.5, 0.1]), array([0.2, 0.8, 1.0]), np.arange(3)
    two = [0.9 * 0.2 * 0.9, 0.5 * 0.8 * 0.8, -np.inf]
    assert combine(servers, tools, of, Routing(servers=2))[0].tolist() == pytest.approx(two)
    absent = combine(array([-np.inf, 0.5, 0.1]), tools, of, Routing(servers=None))[0]
    assert np.isneginf(absent).tolist() == [True, False, False]
    assert best_servers(array([0.5, 0.5, 0.5]), 1).tolist() == [[True, False, False]]
    # A server unlike the request does not hide its tools.
    servers, tools, of = array([-0.1, 0.2]), array([0.9, 0.3, 0.2]), np.array([0, 0, 1])
    assert combine(servers, tools, of, replace(PAPER, servers=None))[0].tolist() == pytest.approx([0, 0, 0.2**3])
    floor = [0.05 * 0.9 * 0.9, 0.05 * 0.3 * 0.3, 0.2**3]
    assert combine(servers, tools, of, Routing())[0].tolist() == pytest.approx(floor)
    for wrong in ({"servers": 0}, {"floor": -0.1}, {"floor": 1.0}):
        with pytest.raises(StudyError, match="not a routing"):
            Routing(**wrong)


def test_the_router_takes_the_better_of_description_and_summary(catalog, embedder):
    routers = [Router(catalog, Routing(matching=kind), embedder) for kind in ("description", "summary", "max")]
    described, summed, both = (own.server_scores(["send mail"]) for own in routers)
    np.testing.assert_allclose(both, np.maximum(described, summed))
    assert (described != summed).any()
    scores = Router(catalog, Routing(servers=1), embedder).scores([Request("mail", "write a file")])
    assert np.isfinite(scores[0]).tolist() == [False, False, True, True, False]
    whole = Router(catalog, Routing(score="tool", servers=None), embedder)
    assert whole.scores([Request("price", "send a mail")])[0].argmax() == 2
    # A server's name is part of its text where that is asked for.
    servers = tuple(Server(name, name, "does things") for name in ("file", "map"))
    alike = ToolCatalog("l", servers, (Tool(0, "a", "x"), Tool(1, "b", "x")))
    named, plain = (Router(alike, Routing(matching="description", named=own), embedder) for own in (True, False))
    assert named.server_scores(["a map"])[0].argmax() == 1
    assert len(set(plain.server_scores(["a map"])[0].tolist())) == 1
    # Summaries name the tools and are cut.
    listed = "send: send a mail; write_file: write a mail to a file"
    assert routing.summaries(catalog)[1] == f"Mail. send mail Tools: {listed}"
    long = ToolCatalog("l", (Server("s", "S", "d"),), tuple(Tool(0, f"t{i}", "x" * 500 + "\nmore") for i in range(50)))
    assert len(routing.summaries(long)[0]) == len("S. d Tools: ") + 900


def test_the_needle_grid_is_the_published_one_and_a_choice_looks_at_the_offer_only(catalog):
    points = mcp_zero.grid(2797)
    assert (len(points), len({size for size, _ in points})) == (755, 44)
    assert all(0 <= index < size for size, index in points)
    for seed in range(20):  # samples group tools by server
        drawn = mcp_zero.sample(catalog, 4, np.random.default_rng(seed))
        owners = catalog.server_of[drawn].tolist()
        assert len(set(drawn.tolist())) == 4
        assert len(dict.fromkeys(owners)) == sum(a != b for a, b in zip([None, *owners], owners, strict=False))
    assert mcp_zero.sample(catalog, 99, np.random.default_rng(0)).tolist() == [0, 1, 2, 3, 4]
    servers, tools = array(0.9, 0.5, 0.1), array(0.9, 0.8, 0.5, 0.4, 0.3)
    for offered, chosen, routed in (([0, 2, 4], 0, Routing()), ([2, 3, 4], 2, Routing()), ([4], 4, Routing(servers=1))):
        assert mcp_zero.first_choice(servers, tools, np.array(offered), catalog, routed, np.arange(5)) == chosen
    trials = [mcp_zero.Point(10, 3), mcp_zero.Point(30, 3), mcp_zero.Point(10, 4)]
    queries = mcp_zero.trials_as_queries(trials, {3: Request("a", "b"), 4: Request("c", "d")})
    assert (queries.ids, queries.groups) == (("10:3", "30:3", "10:4"), ("3", "3", "4"))


def test_foreign_words_for_the_same_tool(catalog):
    servers = Server("x", "Files MCP Server", "keeps files"), Server("y", "Mail", "")
    tools = Tool(0, "readFile", "opens and shows"), Tool(0, "write_file", "Write a file!"), Tool(1, "send", "posts")
    # write_file has the same words; Mail has no server text, so its name stands in.
    found = [(0, Request("keeps files", "opens and shows")), (2, Request("Mail", "posts"))]
    assert mcp_zero.pairs(catalog, [ToolCatalog("o", servers, tools)]) == found
    # Near copies are not written apart.
    text = "Read the whole file at the given path and return its content as text."
    assert not any(mcp_zero.independent(text, other) for other in (text.upper(), text.replace("whole ", "")))
    assert mcp_zero.independent(text, "Opens what lies there and shows it, line by line.")


def test_forms_of_a_query_to_api_bank_and_groups_of_its_calls():
    call = Call("f:3", (("User", "hi"), ("API", "[A()] Response: {}"), ("AI", "ok"), ("User", "now")), 0, (0,), False)
    whole = "User: hi\nAPI: [A()] Response: {}\nAI: ok\nUser: now\nGenerate API Request:"
    expected = {"last_user": "now", "user_lines": "hi\nnow", "last_two": "AI: ok\nUser: now"}
    expected |= {"dialogue": "User: hi\nAI: ok\nUser: now", "dialogue_with_api_lines": whole}
    assert {form: mcp_zero.query(call, form) for form in expected} == expected
    calls = [replace(call, id=name) for name in ("f:1", "f:3", "g:1")]
    assert mcp_zero.queries_of(calls, ["x", "y", "z"]).groups == ("f", "f", "g")


def test_measures_of_the_log_by_hand(catalog):
    queries = QuerySet("q", ("a", "b"), ("x", "y"), (((2, 1),), ((4,),)), ("a", "b"))
    found = request_log.server_measures(array([0.1, 0.2, 0.9], [0.9, 0.5, 0.1]), catalog, queries)
    # The first label is served by the servers 0 and 1, of which 1 is ranked second; the other server is third.
    assert found["mrr"] == pytest.approx((1 / 2 + 1 / 3) / 2)
    assert (found["hit_rate@1"], found["hit_rate@3"]) == (0, 1)
    ranked = np.array([[1, 2, 3, 9], [4, 5, 6, 9], [7, 8, -1, -1]])
    found = request_log.agreement(ranked, [(1, 3, 5), (6,), ()])
    assert found == {"requests": 3, "same_first": pytest.approx(1 / 3), "jaccard@3": pytest.approx((2 / 4 + 1 / 3) / 3)}
    table = request_log.executed({"own": np.array([[2, 1, 0], [0, 1, 4]])}, queries, 5).iloc[0]
    assert (table["requests"], table["hit_rate@1"], table["hit_rate@3"]) == (2, 0.5, 1)


def test_only_tools_of_the_best_servers_and_equal_ones_in_the_given_order(catalog):
    for keep, ranked in {1: [2, 3, -1, -1, -1], 2: [2, 4, 3, -1, -1], None: [1, 2, 4, 3, 0]}.items():
        assert router.route(array([0.2, 0.9, 0.5]), TOOLS, catalog.server_of, keep, np.arange(3)).tolist() == [ranked]
    for first in range(3):
        order = np.array([first, *(row for row in range(3) if row != first)])
        ranked = router.route(np.zeros((1, 3), np.float32), TOOLS, catalog.server_of, 1, order)[0]
        assert {int(catalog.server_of[row]) for row in ranked if row >= 0} == {first}


@given(hnp.arrays(np.int64, st.integers(1, 8), elements=st.integers(1, 100)), st.integers(1, 300), st.integers(0, 200))
def test_a_budget_is_kept_and_never_loses_the_first_that_fits(sizes, budget, more):
    ranked = np.arange(len(sizes))[None]
    small, large = (within(ranked, sizes, limit)[0] for limit in (budget, budget + more))
    assert (sizes[small].sum() <= budget, sizes[large].sum() <= budget + more) == (True, True)
    fitting = [row for row in range(len(sizes)) if sizes[row] <= budget]
    assert small[:1] == fitting[:1]
    # It takes what still fits.
    sizes = np.array([50, 30, 40, 5])
    assert within(np.array([[1, 0, 2, 3, -1]]), sizes, 75) == [[1, 2, 3]]


@pytest.mark.usefixtures("private_cache")
def test_stages_that_rank_servers(catalog, embedder):
    def scores(system, *texts):
        return router.server_scores(Stage(system, None, None), catalog, list(texts), seed=1, embedder=embedder)

    # Of the servers' own texts that of Files is nearest; of all texts that of a tool of Mail.
    task = "write a mail to a file"
    assert np.argmax(embedder.encode([task]) @ embedder.encode(server_texts(catalog, named=True)).T) == 0
    # Counts of file, read, write, mail, map and route in the nearest texts, by hand; Maps shares no word.
    np.testing.assert_allclose(scores("tool_to_agent", task), [[4 / 24**0.5, 5 / 27**0.5, 0]], rtol=1e-6)
    np.testing.assert_allclose(router.oracle(catalog, [((0,), (1, 3)), ((4,),)]), [[1, 0.5, 0], [0, 0, 1]])
    for system in ("tfidf", "bm25", "mcp_zero"):  # the study's own systems rank servers that they never saw
        assert scores(system, "send a mail", "map and route").argmax(axis=1).tolist() == [1, 2]
    assert scores("all", "x").tolist() == [[0, 0, 0]]
    with pytest.raises(StudyError, match="unknown server stage"):
        scores("nobody", "x")


def test_new_servers_and_tasks_stand_behind_the_base_without_labels(catalog):
    texts = ("language", "system", "tools", "category", "subcategory", "url", "author", "license")
    servers = pd.DataFrame({"id": [5, 9], "name": ["Old files", "Old mail"], "description": ["read file", "send mail"]})
    servers = servers.assign(**dict.fromkeys(texts, ""), stars_count=[3, 4], is_official=[True, False])
    tasks = pd.DataFrame({"id": [1, 2], "name": ["a", "b"], "description": ["x", "y"]})
    tasks = tasks.assign(**dict.fromkeys(("language", "category", "subcategory", "theme"), ""))
    lists = (np.array([0]), np.array([1]))
    base, nothing = Dataset("old", servers, tasks, relevance_from_lists(lists, 2), lists), sp.csr_matrix((2, 2))
    known = Split("cold", base.relevance, nothing.astype(np.float32), nothing.astype(np.float32), cold=True)
    data, split, rows, columns = router.joined(catalog, ["read it", "send it"], (base, known))
    assert (data.n_tasks, data.n_servers) == (4, 5)
    assert (rows.tolist(), columns.tolist()) == ([2, 3], [2, 3, 4])
    assert data.servers["id"].tolist() == [5, 9, 10, 11, 12]
    assert data.servers.dtypes.to_dict() == servers.dtypes.to_dict()
    assert data.server_texts()[2] == "Files \n read and write a file \n read_file, write_file"
    assert data.task_texts()[2] == "read it"
    assert split.train.toarray()[:2, :2].tolist() == [[1, 0], [0, 1]]
    assert split.train[2:].nnz == split.train[:, 2:].nnz == split.test.nnz == 0
    assert known.train.shape == (2, 2)  # the base itself is left alone


def test_measures_of_a_stage_by_hand(monkeypatch, catalog):
    monkeypatch.setattr(router, "definition_tokens", lambda _: np.array([10, 20, 30, 40, 50]))
    chosen = router.RouterSettings({"good": Stage("oracle", None, None)}, Settings(), (1, 2), 1, (30, 100), 0)
    queries = QuerySet("q", ("a",), ("t",), (((1,), (4,)),), ("a",))
    runs, lines = router.measure_stage("good", array([0.9, 0.1, 0.5]), TOOLS, catalog, queries, chosen)
    by = pd.DataFrame(lines).set_index(["servers", "budget"])
    # One server: tools 1 (20 tokens) and 0 (10); two servers add tool 4 (50).
    assert by["server_recall"].tolist() == [0.5, 0.5, 1, 1]
    assert by["tokens_of_these_servers"].tolist() == [30, 30, 80, 80]
    assert by["tool_recall"].tolist() == [0.5, 0.5, 0.5, 1]
    assert by["tokens"].tolist() == [30, 30, 30, 80]
    made = {run.protocol: run.table.drop(columns=["task_id", "seed"]).iloc[0].to_dict() for run in runs}
    assert made["router_budget"] == {"recall@30": 0.5, "hit_rate@30": 1, "recall@100": 0.5, "hit_rate@100": 1}
    assert made["router_servers"] == {"recall@1": 0.5, "hit_rate@1": 1, "recall@2": 1, "hit_rate@2": 1}
    assert made["router"]["recall@1"] == 0.5
