"""The readers of the public collections, on small files written here."""

import json

import pytest

from study.errors import StudyError
from study.tools.catalogues import apibank, livemcpbench, published

PREFIXES = [(["mcp-server-chart_line", "mcp-server-chart_bar"], "Chart", "mcp-server-chart_")]
PREFIXES += [(["weather_get"], "Weather360 Server", "weather_")]
PREFIXES += [(["github_search", "github_get"], "GitHub_2", "github_")]
NO_PREFIX = [(["create_directory", "read_file"], "Filesystem"), (["get_products", "get_product"], "productboard mcp")]
NO_PREFIX += [(["get_weather"], "Weather360 Server"), (["plain"], "plain"), ([], "x")]
FINE = ["meta=None content=[TextContent(type='text', text='done')] isError=False", "text='No Error here' isError=False"]
FAILED = ["meta=None content=[] isError=True", "text='Error executing tool x' isError=False"]
FAILED += ['text=\'{"content": [], "isError": true}\' isError=False']
FAILED += ['text=\'{"text": "Failed to start"}\' isError=False']


@pytest.mark.parametrize(("names", "server", "expected"), [*PREFIXES, *((*case, "") for case in NO_PREFIX)])
def test_server_prefix_of_tool_names(names, server, expected):
    assert published.prefix(names, server) == expected


def test_assignments_read_literals_and_run_nothing(tmp_path):
    assert apibank.assignments("description = 'x'\ninput_parameters = {'a': {'type': 'str'}}")["description"] == "x"
    trap = tmp_path / "ran"
    assert apibank.assignments(f"description = open({str(trap)!r}, 'w')") is None
    assert apibank.assignments("not python at all (") is None
    assert apibank.assignments("x = " + "(" * 100_000) is None
    assert not trap.exists()


def test_narrow_reading_of_descriptions(tmp_path):
    texts = {"Good": 'description = "A."\ninput_parameters = {}', "Blank": 'description = "B." \ninput_parameters = {}'}
    rows = "".join(f'{name},"{text.replace(chr(34), chr(34) * 2)}"\n' for name, text in texts.items())
    (tmp_path / "data").mkdir()
    (tmp_path / apibank.APIS_FILE).write_text(f"{apibank.NAME},{apibank.TEXT}\n{rows}", encoding="utf-8")
    line = {"role": "API", "param_dict": {"a": 1}, "result": {"api_name": "Good", "output": ["x"]}}
    (tmp_path / apibank.DIALOGUES).mkdir(parents=True)
    lines = [{"role": "User", "text": "hi"}, *(line | {"api_name": name} for name in texts)]
    (tmp_path / apibank.DIALOGUES / "d.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    catalog = apibank.load_apibank(tmp_path).catalog
    assert {tool.name: tool.description for tool in catalog.tools} == {"Good": "A.", "Blank": "B."}
    narrow = apibank.narrowly_read(tmp_path, catalog)
    assert {tool.name: tool.description for tool in narrow.tools} == {"Good": "A.", "Blank": ""}
    # An API line shows the call once, and its output.
    assert apibank.calls(tmp_path, catalog)[1].lines[-1] == ("API", '[Good(a=1)] Response: ["x"]')


def test_calls_that_count_as_equal_are_siblings(tmp_path):
    folder = tmp_path / published.TOOLS_FOLDER / "smithery"
    folder.mkdir(parents=True)
    (folder / "Web.json").write_text(json.dumps([{"name": "read"}, {"name": "send"}]))
    (tmp_path / published.INFO_FILE).write_text(json.dumps([{"all_paths": []}]))
    said = [("read", {"url": "a.org/B c"}), ("read", {"url": "A.orgb-C"}), ("send", {"url": "A.orgb-C"})]
    said += [("read", {"url": "a.org/d", "n": 1}), ("read", {"n": 1.0, "url": "a.org/d"}), ("read", None)]
    samples = []
    for row, (tool, arguments) in enumerate(said):
        call = None if arguments is None else {"name": tool, "arguments": arguments}
        samples.append({"source_instruction": f"do {row}", "tool": tool, "function_call": call})
    folder = tmp_path / published.SAMPLES_FOLDER / "Smithery"
    folder.mkdir(parents=True)
    (folder / "Web.json").write_text(json.dumps(samples))
    groups = published.load_mcpflow(tmp_path).queries["instructions"].groups
    assert groups[0] == groups[1]
    assert groups[3] == groups[4]
    assert len(set(groups)) == 4


def write_livemcpbench(folder, tools="1. read\n 2) gone\n3 . read\n10.write"):
    (folder / "tools/LiveMCPTool").mkdir(parents=True)
    (folder / "annotated_data").mkdir()
    block = {"tools": [{"name": "read", "description": "r", "inputSchema": {}}, {"name": "write", "description": None}]}
    servers = [{"name": name, "description": "x", "tools": {own: block}} for name, own in (("A", "sub"), ("B", "b"))]
    (folder / livemcpbench.TOOLS_FILE).write_text(json.dumps(servers))
    tasks = [
        {"task_id": "1", "Question": "do", "Annotator Metadata": {"Tools": tools, "Number of tools": "4"}},
        {"task_id": "2", "Question": "no", "Annotator Metadata": {"Tools": "1. gone", "Number of tools": "2"}},
    ]
    (folder / livemcpbench.TASKS_FILE).write_text(json.dumps(tasks))
    return folder


def test_livemcpbench_labels(tmp_path):
    loaded = livemcpbench.load_livemcpbench(write_livemcpbench(tmp_path))
    queries, rows = loaded.queries["tasks"], loaded.cleaning.set_index("rule")["rows"]
    assert queries.ids == ("1",)
    assert queries.labels == (((0, 2), (1, 3)),)
    expected = {"label names no tool, left out": 2, "label repeated in one task, joined": 1}
    expected |= {"task without a known label left out": 1, "stated number of tools is wrong": 1}
    assert rows[list(expected)].to_dict() == expected
    assert loaded.catalog.servers[0].aliases == ("sub",)


def test_log_rows_and_verdicts(tmp_path):
    catalog = livemcpbench.load_livemcpbench(write_livemcpbench(tmp_path)).catalog
    route = {"id": "1", "function": {"name": "route", "arguments": json.dumps({"query": "please"})}}
    runs = [
        {"id": str(n), "function": {"name": "execute-tool", "arguments": text}}
        for n, text in ((2, json.dumps({"server_name": "b", "tool_name": "write"})), (3, "{broken"))
    ]
    shown = "matched_tools:\\n- server_name: sub\\n  tool_name: read\\n  x\\n- server_name: zz\\n  tool_name: read\\n"
    messages = [
        {"role": "assistant", "tool_calls": [route]},
        {"role": "tool", "tool_call_id": "1", "content": shown},
        {"role": "assistant", "tool_calls": runs},
        {"role": "tool", "tool_call_id": "2", "content": "text='Failed to'"},
        {"role": "tool", "tool_call_id": "3", "content": "fine isError=False"},
    ]
    (tmp_path / livemcpbench.LOG_FILE).parent.mkdir(parents=True)
    log = [{"task_id": "1", "messages": messages, "task_success": "failure"}]
    (tmp_path / livemcpbench.LOG_FILE).write_text(json.dumps(log))
    (episode,) = livemcpbench.load_log(tmp_path, catalog)
    assert episode.routes == (livemcpbench.Route("please", (0,)),)
    assert [(run.tool, run.ok, run.after) for run in episode.executions] == [(3, False, 1), (None, True, 1)]
    assert not episode.success


@pytest.mark.parametrize("reply", [*FINE, *FAILED])
def test_which_replies_are_failures(reply):
    assert livemcpbench.succeeded(reply) is (reply in FINE)


def test_mcptools_ids_that_repeat(tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "ground_truth").mkdir()
    tool = {"tool_name": "get", "tool_id": "s::get", "description": "d", "input_schema": None}
    servers = [{"server_id": "s", "name": "S", "description": "", "tools": [tool]}] * 2
    queries = [
        {"query_id": n, "query": text, "correct_tool_id": gold, "origin_task_id": "t"}
        for n, text, gold in (("a", "x", "s::get"), ("b", "x", "s::get"), ("c", "y", "z::no"))
    ]
    (tmp_path / published.SERVERS_FILE).write_text("\n".join(map(json.dumps, servers)) + "\n")
    (tmp_path / published.QUERIES_FILE).write_text("\n".join(map(json.dumps, queries)))
    loaded = published.load_mcptools(tmp_path)
    assert [server.id for server in loaded.catalog.servers] == ["s", "s#2"]
    assert loaded.queries["atlas"].ids == ("a",)
    assert loaded.queries["atlas"].labels == (((0, 1),),)
    (tmp_path / published.SERVERS_FILE).write_text('{"server_id": "s"')
    with pytest.raises(StudyError, match="line 1"):
        published.load_mcptools(tmp_path)
