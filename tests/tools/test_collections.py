"""The readers of the public collections, by hand and on hostile input; several catalogues indexed as one."""

import json

import pytest

from study.advisor.retrieval.documents import load_catalog
from study.base.errors import StudyError
from study.cli.tools import catalogue_file
from study.tools import collections
from study.tools.collections import Loaded, Route
from tests.toy_tools import listing


def put(path, content):
    """Write a value as JSON, or a text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")


def test_several_catalogues_are_indexed_as_one(toy, run, monkeypatch):
    catalogs = {"mcptools": listing("One", "read a file", "b"), "mcpflow": listing("Two", "b", "read  a file")}
    monkeypatch.setattr(collections, "load_collection", lambda name: Loaded(catalogs[name], {}, None))
    output = run("index", "--catalogue", "mcptools", "--catalogue", "mcpflow").output
    assert "2 listings, 1 entities, 1 groups" in output
    merged = load_catalog(catalogue_file("merged"))
    assert [(server.name, server.aliases, len(merged.tools)) for server in merged.servers] == [("One", ("Two",), 2)]
    # Own ones that are indexed, and published ones.
    assert "4 listings, 4 entities" in run("index", "--catalogue", "toy", "--catalogue", "mcptools").output
    merged = load_catalog(catalogue_file("merged"))
    assert [server.name for server in merged.servers] == ["Files", "Mail", "Maps", "One"]
    for words in (["absent"], ["toy"], ["absent", "toy"]):
        with pytest.raises(StudyError):
            run("index", *(part for word in words for part in ("--catalogue", word)))


PREFIXES = [(["mcp-server-chart_line", "mcp-server-chart_bar"], "Chart", "mcp-server-chart_")]
PREFIXES += [(["weather_get"], "Weather360 Server", "weather_"), (["plain"], "plain", ""), ([], "x", "")]
PREFIXES += [(["github_search", "github_get"], "GitHub_2", "github_"), (["get_weather"], "Weather360 Server", "")]
PREFIXES += [(["create_directory", "read_file"], "Filesystem", ""), (["get_one", "get_all"], "productboard mcp", "")]


@pytest.mark.parametrize(("names", "server", "expected"), PREFIXES)
def test_server_prefix_of_tool_names(names, server, expected):
    assert collections.prefix(names, server) == expected


def test_assignments_read_literals_and_run_nothing(tmp_path):
    assert collections.assignments("description = 'x'\ninput_parameters = {'a': {'type': 'str'}}")["description"] == "x"
    trap = tmp_path / "ran"
    for text in (f"description = open({str(trap)!r}, 'w')", "not python at all (", "x = " + "(" * 100_000):
        assert collections.assignments(text) is None
    assert not trap.exists()


def test_narrow_reading_of_descriptions(tmp_path):
    texts = {"Good": 'description = "A."\ninput_parameters = {}', "Blank": 'description = "B." \ninput_parameters = {}'}
    rows = "".join(f'{name},"{text.replace(chr(34), chr(34) * 2)}"\n' for name, text in texts.items())
    put(tmp_path / collections.APIS_FILE, f"{collections.API_NAME},{collections.API_TEXT}\n{rows}")
    line = {"role": "API", "param_dict": {"a": 1}, "result": {"api_name": "Good", "output": ["x"]}}
    lines = [{"role": "User", "text": "hi"}, *(line | {"api_name": name} for name in texts)]
    put(tmp_path / collections.DIALOGUES / "d.jsonl", "".join(json.dumps(one) + "\n" for one in lines))
    catalog = collections.load_apibank(tmp_path).catalog
    assert {tool.name: tool.description for tool in catalog.tools} == {"Good": "A.", "Blank": "B."}
    narrow = collections.narrowly_read(tmp_path, catalog)
    assert {tool.name: tool.description for tool in narrow.tools} == {"Good": "A.", "Blank": ""}
    # An API line shows the call once, and its output.
    assert collections.api_calls(tmp_path, catalog)[1].lines[-1] == ("API", '[Good(a=1)] Response: ["x"]')


def test_calls_of_mcp_flow_that_count_as_equal_are_siblings_and_its_plain_reading_cuts_names(tmp_path):
    put(tmp_path / collections.TOOLS_FOLDER / "smithery" / "Web.json", [{"name": "read"}, {"name": "send"}])
    put(tmp_path / collections.INFO_FILE, [{"all_paths": []}])
    calls = [("read", {"url": "a.org/B c"}), ("read", {"url": "A.orgb-C"}), ("send", {"url": "A.orgb-C"})]
    calls += [("read", {"url": "a.org/d", "n": 1}), ("read", {"n": 1.0, "url": "a.org/d"}), ("read", None)]
    samples = []
    for row, (tool, arguments) in enumerate(calls):
        call = None if arguments is None else {"name": tool, "arguments": arguments}
        samples.append({"source_instruction": f"do {row}", "tool": tool, "function_call": call})
    put(tmp_path / collections.SAMPLES_FOLDER / "Smithery" / "Web.json", samples)
    groups = collections.load_mcpflow(tmp_path).queries["instructions"].groups
    assert (groups[0], groups[3], len(set(groups))) == (groups[1], groups[4], 4)
    entries = [{"name": "get_user_name", "description": "x"}, {"name": None, "description": "y"}]
    put(tmp_path / collections.TOOLS_FOLDER / "market" / "Some Server.json", entries)
    plain = collections.plainly_read(tmp_path)
    texts = [("user_name", "x"), ("", "y"), ("read", ""), ("send", "")]
    assert [(tool.name, tool.description) for tool in plain.tools] == texts
    assert plain.servers[0].id == "market/Some Server"


@pytest.fixture
def livemcp(tmp_path):
    """A folder with two servers that have the same tools, and two tasks."""
    block = {"tools": [{"name": "read", "description": "r", "inputSchema": {}}, {"name": "write", "description": None}]}
    servers = [
        {"name": name, "description": "x", "tools": {alias: block}} for name, alias in (("A", "sub"), ("B", "b"))
    ]
    put(tmp_path / collections.TOOLS_FILE, servers)
    named = {"1": ("do", "1. read\n 2) gone\n3 . read\n10.write", "4"), "2": ("no", "1. gone", "2")}
    tasks = [
        {"task_id": key, "Question": text, "Annotator Metadata": {"Tools": tools, "Number of tools": number}}
        for key, (text, tools, number) in named.items()
    ]
    put(tmp_path / collections.TASKS_FILE, tasks)
    return tmp_path


def test_livemcpbench_labels(livemcp):
    loaded = collections.load_livemcpbench(livemcp)
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
    reply = "matched_tools:\\n- server_name: sub\\n  tool_name: read\\n  x\\n- server_name: zz\\n  tool_name: read\\n"
    messages = [
        {"role": "assistant", "tool_calls": [called("1", "route", json.dumps({"query": "please"}))]},
        {"role": "tool", "tool_call_id": "1", "content": reply},
        {"role": "assistant", "tool_calls": runs},
        {"role": "tool", "tool_call_id": "2", "content": "text='Failed to'"},
        {"role": "tool", "tool_call_id": "3", "content": "fine isError=False"},
    ]
    put(livemcp / collections.LOG_FILE, [{"task_id": "1", "messages": messages, "task_success": "failure"}])
    (episode,) = collections.load_log(livemcp, collections.load_livemcpbench(livemcp).catalog)
    assert episode.routes == (Route("please", (0,)),)
    assert [(run.tool, run.ok, run.after) for run in episode.executions] == [(3, False, 1), (None, True, 1)]
    assert not episode.success


REPLIES = {
    "meta=None content=[TextContent(type='text', text='done')] isError=False": True,
    "text='No Error here' isError=False": True,
    "meta=None content=[] isError=True": False,
    "text='Error executing tool x' isError=False": False,
    'text=\'{"content": [], "isError": true}\' isError=False': False,
    'text=\'{"text": "Failed to start"}\' isError=False': False,
}


@pytest.mark.parametrize("reply", REPLIES)
def test_which_replies_are_failures(reply):
    assert (collections.FAILED.search(reply) is None) is REPLIES[reply]


def test_mcptools_ids_that_repeat_and_its_cleaning_table(project, monkeypatch):
    folder = project / "raw"
    tool = {"tool_name": "get", "tool_id": "s::get", "description": "d", "input_schema": None}
    servers = [{"server_id": "s", "name": "S", "description": "", "tools": [tool]}] * 2
    queries = [
        {"query_id": n, "query": text, "correct_tool_id": gold, "origin_task_id": "t"}
        for n, text, gold in (("a", "x", "s::get"), ("b", "x", "s::get"), ("c", "y", "z::no"))
    ]
    put(folder / collections.SERVERS_FILE, "\n".join(map(json.dumps, servers)) + "\n")
    put(folder / collections.QUERIES_FILE, "\n".join(map(json.dumps, queries)))
    monkeypatch.setattr(collections.sources, "fetch", lambda name, config: folder if name == config["name"] else None)
    loaded = collections.load_collection("mcptools")
    assert [server.id for server in loaded.catalog.servers] == ["s", "s#2"]
    assert (loaded.queries["atlas"].ids, loaded.queries["atlas"].labels) == (("a",), (((0, 1),),))
    text = (project / "results/mcptools/tables/cleaning.csv").read_text()
    assert text.count("\n") == len(loaded.cleaning) + 1
