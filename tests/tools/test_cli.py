"""`study tools` on the command line: find by every method, a model that asks, synthesise, feedback, refusals."""

import json
import re

import pandas as pd
import pytest
import yaml

from study.advisor.engine.intent.feedback import Event, feedback_of
from study.advisor.engine.intent.recommender import assign
from study.advisor.engine.intent.settings import FACTORS
from study.advisor.retrieval.index import Settings, ToolIndex
from study.advisor.retrieval.route import Request, Router
from study.advisor.retrieval.texts import definition_tokens
from study.base import paths
from study.base.errors import StudyError
from study.cli.tools import catalogue_file
from study.tools import experiments
from study.tools.collections import Loaded
from study.tools.intent import lessons
from tests.advisor.gateway.served import config, entry
from tests.tools.test_experiments import QUERIES
from tests.toy_tools import BLOCK

TOY = ("--catalogue", "toy")
REFUSED = {
    "find x --catalogue toy --method foo": "unknown search method 'foo'",
    "find _ --catalogue toy": "is empty",
    "find x --catalogue nothing": "study tools index --catalogue nothing",
    "find x --catalogue ../../etc/passwd": "not a catalogue name",
    "find x --catalogue toy --by oracle": "unknown server stage",
    "run --catalogue nothing": "no experiments",
    "run --part quality": "unknown part",
    "run --catalogue mcptools --part latency": "no experiments",
    "loop x": "no servers to call",
    "serve": "fix",
    "serve --catalogue absent": "fix",
    "index --mcp-config mcp.json --catalogue mcptools": "published catalogue",
    "index --mcp-config mcp.json --catalogue livemcpbench": "published catalogue",
    "index --mcp-config mcp.json --catalogue a --catalogue b": "make one catalogue",
}


@pytest.mark.parametrize("words", REFUSED)
def test_the_command_line_refuses(toy, run, tmp_path, words):
    config(tmp_path, a=entry("good"))
    with pytest.raises(StudyError, match=REFUSED[words]):
        run(*({"mcp.json": str(tmp_path / "mcp.json"), "_": " "}.get(word, word) for word in words.split()))
    assert not catalogue_file("mcptools").exists()


@pytest.mark.parametrize("method", ["dense", "bm25", "hybrid", "routed"])
def test_find_answers_with_schemas_and_looks_for_the_parts_of_a_query(toy, run, catalog, embedder, method):
    words = ["find", "read a file", *TOY, "--method", method, "--document", "name_desc"]
    first, second = json.loads(run(*words, "-k", "2", "--json").output)
    assert (first["rank"], first["server"]) == (1, {"id": "fs", "name": "Files", "sources": ["toy"]})
    given = {"name": "read_file", "description": "read a file", "inputSchema": catalog.tools[0].schema}
    assert first["tool"] == given
    assert first["score"] >= second["score"]
    assert "Files / read_file" in run(*words).output.splitlines()[0]
    query = "read the big file and then send it by mail"
    assert json.loads(run("find", query, *TOY, "--json", "--decompose", "--method", method).output)
    assert "send it by mail" in embedder.asked or method == "bm25"
    only = run("find", "write a file", *TOY, "--json", "--server", "mail", "--method", method).output
    assert {one["server"]["id"] for one in json.loads(only)} == {"mail"}


def test_latency_alone_writes_its_own_table(toy, run, catalog, monkeypatch):
    monkeypatch.setattr(experiments, "load_collection", lambda name: Loaded(catalog, {"tasks": QUERIES}, None))
    monkeypatch.setattr(experiments, "load_log", lambda *_: [])
    assert run("run", "--catalogue", "intent", "--part", "latency").exit_code == 0
    folder = paths.tables("livemcpbench")
    assert sorted(path.name for path in folder.iterdir()) == ["intent_latency.csv", "intent_latency.json"]
    line = pd.read_csv(folder / "intent_latency.csv").iloc[0]
    assert line["cache_hits"] == 2
    assert 0 < line["first_p50_ms"] <= line["first_p95_ms"]
    assert "cores" in json.loads((folder / "intent_latency.json").read_text())["hardware"]


def test_an_endpoint_by_configuration(server, project, catalog):
    path = project / "conf/tools/embedder.yaml"
    other = {"kind": "endpoint", "base_url": f"http://127.0.0.1:{server.server_port}/v1", "model": "e", "dimension": 2}
    chosen = yaml.safe_load(path.read_text()) | other | {"retries": 0}
    (project / "conf").unlink()
    path.parent.mkdir(parents=True)
    path.write_text(yaml.safe_dump(chosen))
    server.script = ["own_vectors"] * 20
    assert len(ToolIndex(catalog, Settings(document="name_desc")).search("send a mail", 2)[0]) == 2
    assert Router(catalog).scores([Request("mail", "send")]).shape == (1, 5)
    assert {(path, body["model"]) for path, body, _ in server.seen} == {("/v1/embeddings", "e")}


def test_a_request_block_is_routed_and_a_model_asks_for_tools_that_are_not_called(server, toy, run):
    (hit,) = json.loads(run("find", f"please: {BLOCK.format('mail', 'send')}", *TOY, "-k", "1", "--json").output)
    assert (hit["server"]["name"], hit["tool"]["name"]) == ("Mail", "send")
    url = f"http://127.0.0.1:{server.server_port}/v1"
    server.script = ["block"]
    done = run("loop", "read it", "--dry", "--url", url, "--model", "m", *TOY, "--json")
    hit, *_ = json.loads(done.stdout)
    assert (hit["server"]["name"], hit["tool"]["name"]) == ("Files", "read_file")
    assert done.stderr.rstrip().endswith("hello")
    assert not feedback_of("tools-mine").events()
    lines = [json.loads(line) for line in run("synthesise", *TOY, "--tools", "2").stdout.splitlines()]
    assert {line["tool"] for line in lines} <= {"read_file", "write_file", "send", "route"}


def test_servers_first_then_their_tools_within_a_budget(toy, run, catalog):
    words = ["find", "send a mail", *TOY, "--document", "name_desc", "--by"]
    whole = json.loads(run(*words, "tfidf", "--servers", "2", "--budget", "70", "--json").output)
    names = [(answer["server"]["name"], answer["tool"]["name"]) for answer in whole["tools"]]
    assert names[:2] == [("Mail", "send"), ("Mail", "write_file")]
    assert whole["servers"][0]["name"] == "Mail"
    assert whole["servers"][0]["score"] > whole["servers"][1]["score"]
    sizes = definition_tokens(catalog)
    row_of = {(catalog.servers[tool.server].name, tool.name): row for row, tool in enumerate(catalog.tools)}
    assert (whole["tokens"], whole["budget"]) == (sizes[[row_of[name] for name in names]].sum(), 70)
    lines = run(*words, "mcp_zero", "--servers", "1", "--budget", "2000").output.splitlines()
    assert re.fullmatch(r"servers: Mail \(\d\.\d{3}\)", lines[0])
    assert ("Mail / send" in lines[1], lines[-1]) == (True, f"{sizes[[2, 3]].sum()} of 2000 tokens")
    assert "servers" not in run(*words, "all").output


def test_intent_ranks_by_what_was_noted_and_the_notes_are_summed_up(toy, run):
    by_intent = ["find", "read a file", "-k", "3", "--method", "intent", *TOY]
    assert "fs/read_file" not in run("run", "--part", "feedback", *TOY).output
    before = json.loads(run(*by_intent, "--json").output)
    assert before[0]["tool"]["name"] == "read_file"
    assert "relevance" in run(*by_intent).output
    keys, store = ("fs/read_file", "fs/write_file", "mail/write_file"), feedback_of("tools-toy")
    rows = tuple((1.0 - rank / 4, 0.5, 0.0, 0.5, 0.5) for rank in range(3))
    for selected, success in ((keys[1], True), (keys[0], False), (None, None)):
        store.append(Event("a", "h", keys, selected, success, rating=4.0 if success else None, factors=rows))
    out = run("run", "--part", "feedback", *TOY).output
    assert re.search(r"click_through_rate +0.667", out)
    # One successful use tells something: its tool against the other two shown; too little to settle weights.
    assert [lesson.shape for lesson in lessons(store.events())] == [(2, len(FACTORS))]
    assert ("weights by 1 successful uses" in out, "do not use them" in out) == (True, True)
    assert sum(json.loads(out.splitlines()[-1]).values()) == pytest.approx(1, abs=1e-3)
    assert json.loads(run(*by_intent, "--json").output) != before


def test_every_variant_of_a_comparison_is_named(toy, run):
    store, names = feedback_of("tools-toy"), ["control", "variant_a", "variant_b"]
    for agent in (f"agent {number}" for number in range(90)):
        fine = assign(agent, names, "trial") == "variant_a"
        store.append(Event(agent, "h", (), "fs/read_file", fine, experiment="trial"))
    lines = [line.split() for line in run("run", "--part", "feedback", *TOY).stdout.splitlines()]
    decided = {line[0]: line[-1] for line in lines if line and line[0].startswith("variant_")}
    assert decided == {"variant_a": "better", "variant_b": "open"}


def test_requirements_of_tools(toy, run, tmp_path):
    needs = {"fs/read_file": {"permissions": ["read"]}}
    for held, offered in (({}, True), ({"permissions": ["read"]}, True), ({"permissions": ["write"]}, False)):
        (tmp_path / "context.json").write_text(json.dumps({"needs": needs} | held))
        words = ["--method", "intent", "--context", str(tmp_path / "context.json"), "--json"]
        answers = json.loads(run("find", "read a file", *words, *TOY).stdout)
        names = {(answer["server"]["id"], answer["tool"]["name"]) for answer in answers}
        assert (("fs", "read_file") in names) is offered
