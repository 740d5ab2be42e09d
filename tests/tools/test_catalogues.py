"""Schemas, cleaning, crediting and merging by hand and on hostile input, and the readers of the public collections."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.advisor.retrieval import documents
from study.advisor.retrieval.building import Builder
from study.advisor.retrieval.documents import Server, Tool, ToolCatalog, concatenate, fault, load_catalog, parameters
from study.advisor.retrieval.merge import extend, merge_catalogs
from study.base.errors import StudyError
from study.cli.tool_catalogues import catalogue_file
from study.evaluation import metrics
from study.tools.collections import apibank, livemcpbench, published, registries
from study.tools.collections.files import Loaded
from study.tools.experiments import entity_counts, group_members, names_agree
from study.tools.queries import QuerySet, credit


def put(path, content):
    """Write a value as JSON, a list of texts as lines, or a text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")


def test_parameters_in_order_with_types():
    own = {"b": {"type": ["string", "null"], "description": "x"}, "a": {"$ref": "#/$defs/A~1B"}, "c": 3}
    referred = {"A/B": {"type": "integer", "description": "y"}}
    found = parameters({"properties": own, "required": ["a"], "$defs": referred})
    expected = [("b", "string or null", "x", False), ("a", "integer", "y", True), ("c", "", "", False)]
    assert [(p.name, p.type, p.description, p.required) for p in found] == expected
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
    assert len(parameters(many)) == documents.MAX_PARAMETERS
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


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: ToolCatalog("c", (Server("a", "A", ""),), (Tool(1, "t", ""),)), "has no server"),
        (lambda: ToolCatalog("c", (Server("a", "A", ""), Server("a", "A", "")), ()), "repeats a server id"),
        (lambda: QuerySet("q", ("a",), ("x",), (((1, 2), (2,)),), ("g",)), "overlap"),
        (lambda: QuerySet("q", ("a",), (), (), ()), "different length"),
        (lambda: QuerySet("q", ("a", "a"), ("x", "y"), (((1,),), ((2,),)), ("g", "g")), "repeats an id"),
    ],
)
def test_catalogues_and_query_sets_are_checked(make, reason):
    with pytest.raises(StudyError, match=reason):
        make()


def test_a_catalogue_goes_to_disk_and_back_and_its_subset_keeps_old_rows(catalog, tmp_path):
    path = tmp_path / "c.json"
    documents.save_catalog(path, catalog)
    assert load_catalog(path) == catalog
    assert load_catalog(path).fingerprint() == catalog.fingerprint()
    bad = {"no such catalogue": None, "another format": path.read_text().replace("1", "0", 1)}
    bad |= {"not a tool catalogue": '{"format": 1, "name": "x", "servers": [{}], "tools": []}'}
    bad |= {"not readable JSON": '{"format": 1, "na'}
    for reason, text in bad.items():
        path.write_text(text) if text else path.unlink()
        with pytest.raises(StudyError, match=reason):
            load_catalog(path)
    part, rows = catalog.subset([2, 0])
    assert [tool.name for tool in part.tools] == ["read_file", "write_file", "route"]
    assert rows.tolist() == [0, 1, 4]
    assert [part.servers[tool.server].name for tool in part.tools] == ["Files", "Files", "Maps"]


def test_credit_by_hand():
    # Labels: {1 or 3} and {4}. The first of 1 and 3 counts once, whichever it is.
    for ranked, hits in ([3, 1, 0], [1, 0, 0]), ([0, 3, 4], [0, 1, 1]), ([4, 0, 1], [1, 0, 1]), ([0, 2, -1], [0, 0, 0]):
        rewritten, relevant = credit(np.array([ranked]), [((1, 3), (4,))], 5)
        assert [int(row >= 0 and relevant[0, row] > 0) for row in rewritten[0]] == hits, ranked
        assert len(set(rewritten[0][rewritten[0] >= 0])) == (rewritten >= 0).sum()


@given(st.data())
def test_credit_finds_each_label_at_its_best_tool(data):
    n = data.draw(st.integers(2, 12))
    ranked = np.array([data.draw(st.permutations(range(n)))[: data.draw(st.integers(1, n))]])
    tools = data.draw(st.permutations(range(n)))
    cuts = sorted(data.draw(st.sets(st.integers(1, n), min_size=1, max_size=4)))
    labels = [tuple(tuple(tools[a:b]) for a, b in zip([0, *cuts], cuts, strict=False))]
    rewritten, relevant = credit(ranked, labels, n)
    for k in range(1, n + 1):
        expected = np.mean([bool(set(ranked[0, :k]) & set(label)) for label in labels[0]])
        assert metrics.recall(rewritten, relevant, k)[0] == pytest.approx(expected)


def listing(name, *texts):
    tools = tuple(Tool(0, f"t{i}", text) for i, text in enumerate(texts))
    return ToolCatalog(name, (Server("s", name, "about"),), tools)


def test_planted_copies_are_merged_or_left_out():
    one, copy = listing("One", "b  c", "a"), listing("Other", "a", "b\nc")
    merged = merge_catalogs("all", [one, copy, listing("Third", "a", "b", "c"), listing("B", ""), listing("C", "")])
    assert (merged.entity_of, merged.groups()) == ((0, 0, 1, 2, 3), [[0, 1]])
    first = merged.catalog.servers[0]
    assert (first.sources, first.aliases, len(merged.catalog.tools)) == (("One", "Other"), ("Other",), 7)
    base, known, partly = listing("One", "a", "b"), listing("Two", "b", "a"), listing("Three", "a", "new")
    grown = extend("grown", base, concatenate("two", [known, partly]))
    # t0 "a" of Three is t0 "a" of One; Two is One under another name.
    assert [tool.description for tool in grown.tools] == ["a", "b", "new"]
    assert grown.tools[:2] == base.tools
    # Compared with another catalogue, everything that this one does not have is new.
    other = extend("grown", base, concatenate("two", [known, partly]), against=known)
    assert [tool.description for tool in other.tools] == ["a", "b", "a", "new"]


def test_names_that_can_be_one_server_and_entities_by_hand():
    one = [["GitHub MCP Server", "github"], ["Weather Server", "mcp-weather-pro"]]
    several = [["jdbc", "quarkus"], ["Files", "files", "Mail"], ["MCP Server", "mcp"]]
    for names in one + several:
        assert names_agree(names) is names_agree(names[::-1]) is (names in one), names
    texts = {"One": ("a", "b"), "One MCP server": ("b", "a"), "Two": ("a  b",), "X": ("a b",)}
    catalogs = [listing(name, *own) for name, own in texts.items()]
    merged = merge_catalogs("m", catalogs)
    expected = {"listings": 4, "entities": 2, "groups": 2, "listings_in_groups": 4, "names_disagree": 1}
    assert entity_counts(catalogs, merged) == {"catalogues": "One + One MCP server + Two + X"} | expected
    # No text of a tool leaves the catalogues.
    rows = [(1, "One", "", "s", 2, True), (1, "One MCP server", "", "s", 2, True)]
    rows += [(2, "Two", "", "s", 1, False), (2, "X", "", "s", 1, False)]
    assert list(group_members(catalogs, merged).itertuples(index=False, name=None)) == rows


def test_several_catalogues_are_indexed_as_one(toy, run, monkeypatch):
    known = {"mcptools": listing("One", "read a file", "b"), "mcpflow": listing("Two", "b", "read  a file")}
    monkeypatch.setattr(registries, "load_collection", lambda name: Loaded(known[name], {}, None))
    shown = run("index", "--catalogue", "mcptools", "--catalogue", "mcpflow").output
    assert "2 listings, 1 entities, 1 groups" in shown
    found = load_catalog(catalogue_file("merged"))
    assert [(server.name, server.aliases, len(found.tools)) for server in found.servers] == [("One", ("Two",), 2)]
    # Own ones that are indexed, and published ones.
    assert "4 listings, 4 entities" in run("index", "--catalogue", "toy", "--catalogue", "mcptools").output
    found = load_catalog(catalogue_file("merged"))
    assert [server.name for server in found.servers] == ["Files", "Mail", "Maps", "One"]
    for words in (["absent"], ["toy"], ["absent", "toy"]):
        with pytest.raises(StudyError):
            run("index", *(part for word in words for part in ("--catalogue", word)))


PREFIXES = [(["mcp-server-chart_line", "mcp-server-chart_bar"], "Chart", "mcp-server-chart_")]
PREFIXES += [(["weather_get"], "Weather360 Server", "weather_"), (["plain"], "plain", ""), ([], "x", "")]
PREFIXES += [(["github_search", "github_get"], "GitHub_2", "github_"), (["get_weather"], "Weather360 Server", "")]
PREFIXES += [(["create_directory", "read_file"], "Filesystem", ""), (["get_one", "get_all"], "productboard mcp", "")]


@pytest.mark.parametrize(("names", "server", "expected"), PREFIXES)
def test_server_prefix_of_tool_names(names, server, expected):
    assert published.prefix(names, server) == expected


def test_assignments_read_literals_and_run_nothing(tmp_path):
    assert apibank.assignments("description = 'x'\ninput_parameters = {'a': {'type': 'str'}}")["description"] == "x"
    trap = tmp_path / "ran"
    for text in (f"description = open({str(trap)!r}, 'w')", "not python at all (", "x = " + "(" * 100_000):
        assert apibank.assignments(text) is None
    assert not trap.exists()


def test_narrow_reading_of_descriptions(tmp_path):
    texts = {"Good": 'description = "A."\ninput_parameters = {}', "Blank": 'description = "B." \ninput_parameters = {}'}
    rows = "".join(f'{name},"{text.replace(chr(34), chr(34) * 2)}"\n' for name, text in texts.items())
    put(tmp_path / apibank.APIS_FILE, f"{apibank.NAME},{apibank.TEXT}\n{rows}")
    line = {"role": "API", "param_dict": {"a": 1}, "result": {"api_name": "Good", "output": ["x"]}}
    lines = [{"role": "User", "text": "hi"}, *(line | {"api_name": name} for name in texts)]
    put(tmp_path / apibank.DIALOGUES / "d.jsonl", "".join(json.dumps(one) + "\n" for one in lines))
    catalog = apibank.load_apibank(tmp_path).catalog
    assert {tool.name: tool.description for tool in catalog.tools} == {"Good": "A.", "Blank": "B."}
    narrow = apibank.narrowly_read(tmp_path, catalog)
    assert {tool.name: tool.description for tool in narrow.tools} == {"Good": "A.", "Blank": ""}
    # An API line shows the call once, and its output.
    assert apibank.calls(tmp_path, catalog)[1].lines[-1] == ("API", '[Good(a=1)] Response: ["x"]')


def test_calls_of_mcp_flow_that_count_as_equal_are_siblings_and_its_plain_reading_cuts_names(tmp_path):
    put(tmp_path / published.TOOLS_FOLDER / "smithery" / "Web.json", [{"name": "read"}, {"name": "send"}])
    put(tmp_path / published.INFO_FILE, [{"all_paths": []}])
    said = [("read", {"url": "a.org/B c"}), ("read", {"url": "A.orgb-C"}), ("send", {"url": "A.orgb-C"})]
    said += [("read", {"url": "a.org/d", "n": 1}), ("read", {"n": 1.0, "url": "a.org/d"}), ("read", None)]
    samples = []
    for row, (tool, arguments) in enumerate(said):
        call = None if arguments is None else {"name": tool, "arguments": arguments}
        samples.append({"source_instruction": f"do {row}", "tool": tool, "function_call": call})
    put(tmp_path / published.SAMPLES_FOLDER / "Smithery" / "Web.json", samples)
    groups = published.load_mcpflow(tmp_path).queries["instructions"].groups
    assert (groups[0], groups[3], len(set(groups))) == (groups[1], groups[4], 4)
    entries = [{"name": "get_user_name", "description": "x"}, {"name": None, "description": "y"}]
    put(tmp_path / published.TOOLS_FOLDER / "market" / "Some Server.json", entries)
    found = published.plainly_read(tmp_path)
    texts = [("user_name", "x"), ("", "y"), ("read", ""), ("send", "")]
    assert [(tool.name, tool.description) for tool in found.tools] == texts
    assert found.servers[0].id == "market/Some Server"


@pytest.fixture
def livemcp(tmp_path):
    """A folder with two servers that have the same tools, and two tasks."""
    block = {"tools": [{"name": "read", "description": "r", "inputSchema": {}}, {"name": "write", "description": None}]}
    servers = [{"name": name, "description": "x", "tools": {own: block}} for name, own in (("A", "sub"), ("B", "b"))]
    put(tmp_path / livemcpbench.TOOLS_FILE, servers)
    named = {"1": ("do", "1. read\n 2) gone\n3 . read\n10.write", "4"), "2": ("no", "1. gone", "2")}
    tasks = [
        {"task_id": key, "Question": text, "Annotator Metadata": {"Tools": tools, "Number of tools": number}}
        for key, (text, tools, number) in named.items()
    ]
    put(tmp_path / livemcpbench.TASKS_FILE, tasks)
    return tmp_path


def test_livemcpbench_labels(livemcp):
    loaded = livemcpbench.load_livemcpbench(livemcp)
    queries = loaded.queries["tasks"]
    assert (queries.ids, queries.labels) == (("1",), (((0, 2), (1, 3)),))
    expected = {"label names no tool, left out": 2, "label repeated in one task, joined": 1}
    expected |= {"task without a known label left out": 1, "stated number of tools is wrong": 1}
    assert loaded.cleaning.set_index("rule")["rows"][list(expected)].to_dict() == expected
    assert loaded.catalog.servers[0].aliases == ("sub",)


def test_log_rows_and_verdicts(livemcp):
    def called(number, name, arguments):
        return {"id": number, "function": {"name": name, "arguments": arguments}}

    runs = [called("2", "execute-tool", json.dumps({"server_name": "b", "tool_name": "write"}))]
    runs += [called("3", "execute-tool", "{broken")]
    shown = "matched_tools:\\n- server_name: sub\\n  tool_name: read\\n  x\\n- server_name: zz\\n  tool_name: read\\n"
    messages = [
        {"role": "assistant", "tool_calls": [called("1", "route", json.dumps({"query": "please"}))]},
        {"role": "tool", "tool_call_id": "1", "content": shown},
        {"role": "assistant", "tool_calls": runs},
        {"role": "tool", "tool_call_id": "2", "content": "text='Failed to'"},
        {"role": "tool", "tool_call_id": "3", "content": "fine isError=False"},
    ]
    put(livemcp / livemcpbench.LOG_FILE, [{"task_id": "1", "messages": messages, "task_success": "failure"}])
    (episode,) = livemcpbench.load_log(livemcp, livemcpbench.load_livemcpbench(livemcp).catalog)
    assert episode.routes == (livemcpbench.Route("please", (0,)),)
    assert [(run.tool, run.ok, run.after) for run in episode.executions] == [(3, False, 1), (None, True, 1)]
    assert not episode.success


@pytest.mark.parametrize(
    ("reply", "fine"),
    [
        ("meta=None content=[TextContent(type='text', text='done')] isError=False", True),
        ("text='No Error here' isError=False", True),
        ("meta=None content=[] isError=True", False),
        ("text='Error executing tool x' isError=False", False),
        ('text=\'{"content": [], "isError": true}\' isError=False', False),
        ('text=\'{"text": "Failed to start"}\' isError=False', False),
    ],
)
def test_which_replies_are_failures(reply, fine):
    assert livemcpbench.succeeded(reply) is fine


def test_mcptools_ids_that_repeat_and_its_cleaning_table(project, monkeypatch):
    folder = project / "raw"
    tool = {"tool_name": "get", "tool_id": "s::get", "description": "d", "input_schema": None}
    servers = [{"server_id": "s", "name": "S", "description": "", "tools": [tool]}] * 2
    queries = [
        {"query_id": n, "query": text, "correct_tool_id": gold, "origin_task_id": "t"}
        for n, text, gold in (("a", "x", "s::get"), ("b", "x", "s::get"), ("c", "y", "z::no"))
    ]
    put(folder / published.SERVERS_FILE, "\n".join(map(json.dumps, servers)) + "\n")
    put(folder / published.QUERIES_FILE, "\n".join(map(json.dumps, queries)))
    monkeypatch.setattr(published.sources, "fetch", lambda name, config: folder if name == config["name"] else None)
    loaded = published.load_collection("mcptools")
    assert [server.id for server in loaded.catalog.servers] == ["s", "s#2"]
    assert (loaded.queries["atlas"].ids, loaded.queries["atlas"].labels) == (("a",), (((0, 1),),))
    kept = (project / "results/mcptools/tables/cleaning.csv").read_text()
    assert kept.count("\n") == len(loaded.cleaning) + 1
    put(folder / published.SERVERS_FILE, '{"server_id": "s"')
    with pytest.raises(StudyError, match="line 1"):
        published.load_mcptools(folder)
