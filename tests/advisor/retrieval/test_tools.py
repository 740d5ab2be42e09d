"""Tools of servers: schemas, building and merging of catalogues, documents, word search, fusion, routing, budgets."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from mcp_types import methods, version
from sklearn.feature_extraction.text import TfidfVectorizer

from study.advisor.encoders import sentence
from study.advisor.encoders.choose import FEW, MiniLm
from study.advisor.engine.render import tools_data
from study.advisor.retrieval import documents as catalogues
from study.advisor.retrieval import index as indexes
from study.advisor.retrieval import route as routing
from study.advisor.retrieval.building import Builder
from study.advisor.retrieval.documents import Server, Tool, ToolCatalog, concatenate, fault, load_catalog, parameters
from study.advisor.retrieval.index import Settings, ToolIndex, fuse, order_of, with_every_part, within
from study.advisor.retrieval.lexical import Bm25, TfIdfIndex, words_of
from study.advisor.retrieval.merge import extend, merge_catalogs
from study.advisor.retrieval.ranking import best
from study.advisor.retrieval.route import PAPER, Request, Router, Routing, best_servers, combine
from study.advisor.retrieval.texts import MAX_PARTS, count_tokens, decompose, documents
from study.base import paths
from study.base.errors import StudyError
from tests.toy_tools import BLOCK, listing

NAMED = Settings(document="name_desc")


def array(*values):
    return np.array(values, np.float32)


def test_parameters_in_order_with_types():
    own = {"b": {"type": ["string", "null"], "description": "x"}, "a": {"$ref": "#/$defs/A~1B"}, "c": 3}
    referred = {"A/B": {"type": "integer", "description": "y"}}
    listed = parameters({"properties": own, "required": ["a"], "$defs": referred})
    expected = [("b", "string or null", "x", False), ("a", "integer", "y", True), ("c", "", "", False)]
    assert [(p.name, p.type, p.description, p.required) for p in listed] == expected
    # Branches are followed once, and so is a parameter that refers to itself.
    branches = [{"properties": {"a": {}}}, {"$ref": "#/$defs/x"}]
    both = {"allOf": branches, "$defs": {"x": {"properties": {"a": {}, "b": {}}}}}
    assert [p.name for p in parameters(both)] == ["a", "b"]
    itself = {"properties": {"node": {"$ref": "#/$defs/node"}}, "$defs": {"node": {"$ref": "#/$defs/node"}}}
    assert [(p.name, p.type) for p in parameters(itself)] == [("node", "")]


CYCLE = {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}
BROKEN = [{"$ref": "#"}, {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}, {"$ref": "#/$defs/a", "$defs": CYCLE}]
BROKEN += [{"$ref": "https://elsewhere.example/schema"}, {"$ref": "#/nowhere/7"}, {"$ref": "#/x/1", "x": [{}]}]
BROKEN += [{"properties": [1, 2]}, {"required": "name", "allOf": 3}]


@pytest.mark.parametrize("schema", BROKEN)
def test_broken_or_cyclic_schemas_have_no_parameters(schema):
    assert parameters(schema) == ()


def test_huge_schemas():
    many = {"properties": {f"p{number}": {} for number in range(5_000)}}
    assert len(parameters(many)) == catalogues.MAX_PARAMETERS
    assert fault({"description": "x" * 300_000}) == "input schema is too large, left out"
    deep = {}
    for _ in range(200_000):
        deep = {"properties": deep}
    assert fault(deep) == "input schema nests too deeply, left out"
    while deep:  # freed level by level: Python's own destructor recurses
        deep = deep.pop("properties", None)
    assert fault([1]) == "input schema is not an object, left out"
    assert fault({"type": "object"}) is None


def test_builder_counts_what_it_mends():
    builder = Builder("b")
    first, second = builder.server("s", "S", None), builder.server("s", "", "d")
    assert builder.tool(first, "t", "text", {"type": "object"}) == 0
    assert builder.tool(first, None, "text", {}) is builder.tool(first, "  ", "text", {}) is None
    assert builder.tool(second, "t", "lone \ud800", "schema?") == 1
    catalog = builder.build()
    assert [server.id for server in catalog.servers] == ["s", "s#2"]
    assert (catalog.tools[1].description, catalog.tools[1].schema) == ("lone ?", {})
    expected = {"tool without a name left out": 2, "repeated server id numbered": 1}
    expected |= {"letters that UTF-8 cannot hold replaced": 1, "input schema is not an object, left out": 1}
    expected |= {"name shared with another tool": 2, "name repeated inside one server": 0}
    assert builder.cleaning().set_index("rule")["rows"][list(expected)].to_dict() == expected


def test_a_catalogue_goes_to_disk_and_back_and_its_subset_keeps_old_rows(catalog, tmp_path):
    path = tmp_path / "c.json"
    catalogues.save_catalog(path, catalog)
    assert load_catalog(path) == catalog
    assert load_catalog(path).fingerprint() == catalog.fingerprint()
    bad = [("no such catalogue", None), ("another format", path.read_text().replace("1", "0", 1))]
    broken = ('{"format": 1, "name": "x", "servers": [{}], "tools": []}', '{"format": 1, "na', "[" * 100_000)
    for reason, text in [*bad, *(("not a tool catalogue", text) for text in broken)]:
        path.write_text(text) if text else path.unlink()
        with pytest.raises(StudyError, match=reason):
            load_catalog(path)
    part, rows = catalog.subset([2, 0])
    assert [tool.name for tool in part.tools] == ["read_file", "write_file", "route"]
    assert rows.tolist() == [0, 1, 4]
    assert [part.servers[tool.server].name for tool in part.tools] == ["Files", "Files", "Maps"]


def test_planted_copies_are_merged_or_left_out():
    one, copy = listing("One", "b  c", "a"), listing("Other", "a", "b\nc")
    merged = merge_catalogs("all", [one, copy, listing("Third", "a", "b", "c"), listing("B", ""), listing("C", "")])
    assert (merged.entity_of, merged.groups()) == ((0, 0, 1, 2, 3), [[0, 1]])
    first = merged.catalog.servers[0]
    assert (first.sources, first.aliases, len(merged.catalog.tools)) == (("One", "Other"), ("Other",), 7)
    base, same, partly = listing("One", "a", "b"), listing("Two", "b", "a"), listing("Three", "a", "new")
    grown = extend("grown", base, concatenate("two", [same, partly]))
    # t0 "a" of Three is t0 "a" of One; Two is One under another name.
    assert [tool.description for tool in grown.tools] == ["a", "b", "new"]
    assert grown.tools[:2] == base.tools
    # Compared with another catalogue, everything that this one does not have is new.
    other = extend("grown", base, concatenate("two", [same, partly]), against=same)
    assert [tool.description for tool in other.tools] == ["a", "b", "a", "new"]


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
    words = words_of("getUserToken read_file v2 使用 HTTPServer")
    assert words == ["get", "user", "token", "read", "file", "v", "2", "使", "用", "httpserver"]
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
    assert best(fuse([equal, equal], 60)[0], 50, order)[0].tolist() == list(range(50))
    # Every other search takes equal tools at random.
    assert order_of(Settings("bm25"), 50).tolist() != list(range(50))


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
    rows = [with_every_part(np.arange(k), scores, np.arange(6)).tolist() for k in (1, 2, 3, 4)]
    assert rows == [[0], [0, 3], [0, 3, 4], [0, 1, 3, 4]]


def test_token_counts():
    assert count_tokens(["", "hello world", "a" * 3000]).tolist()[:2] == [0, 2]
    # A text far beyond the model's 256 tokens is counted to its end.
    assert count_tokens(["word " * 1000])[0] == 1000


def test_few_new_texts_need_no_torch_and_a_question_is_not_kept(project, monkeypatch):
    calls = []

    def embed(texts, model):
        calls.append((model, len(texts)))
        return np.full((len(texts), sentence.DIMENSION), len(calls), dtype=np.float32)

    monkeypatch.setattr(sentence, "_embed", embed)
    many = [f"text {number}" for number in range(FEW + 1)]
    first = MiniLm(quick=True).encode(many)
    again = MiniLm(quick=True).encode([*many, "new"])
    MiniLm(quick=True).encode(["a question"], store=False)
    np.testing.assert_array_equal(again[:-1], first)
    MiniLm(quick=True).encode(["a question"])
    assert calls == [("minilm", FEW + 1), *[("minilm_numpy", 1)] * 3]
    assert (paths.cache() / "embeddings" / "tools").is_dir()


def test_filters_by_server_and_tag(catalog):
    marked = (replace(catalog.servers[0], tags=("Office",)), replace(catalog.servers[1], sources=("hub",)))
    own = ToolCatalog("toy", (*marked, catalog.servers[2]), catalog.tools)
    assert indexes.matching(own, [], []) is None
    rows = {("MAIL*", None): [2, 3], ("geo", None): [4], (None, "office"): [0, 1], ("*", "HUB"): [2, 3]}
    for (server, tag), expected in rows.items():  # a server by an alias, a name, or an id
        mask = indexes.matching(own, [server] if server else [], [tag] if tag else [])
        assert np.flatnonzero(mask).tolist() == expected
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
    requests = routing.parse_requests(reply)
    assert " ".join(f"{request.server}/{request.tool}" for request in requests) == expected
    assert routing.count_malformed(reply) == malformed


@given(st.text(max_size=400))
def test_reading_blocks_is_total(reply):
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


def test_answers_are_tools_by_the_protocol(catalog):
    tools = [answer["tool"] for answer in tools_data(catalog, range(5))]
    # A tool without parameters too.
    assert tools[2]["inputSchema"] == {"type": "object", "properties": {}}
    methods.validate_server_result("tools/list", version.LATEST_HANDSHAKE_VERSION, {"tools": tools})


@pytest.mark.parametrize(
    ("servers", "owner", "reason"), [(["a"], 1, "has no server"), (["a", "a"], 0, "repeats a server id")]
)
def test_catalogues_are_checked(servers, owner, reason):
    with pytest.raises(StudyError, match=reason):
        ToolCatalog("c", tuple(Server(name, "A", "") for name in servers), (Tool(owner, "t", ""),))
