"""`study tools` on the command line: find, route, request, synthesise, the loop of recommend and feedback, refusals."""

import json
import re

import numpy as np
import pandas as pd
import pytest
import yaml

from study import paths
from study.advisor.engine.intent.feedback import Event, feedback_of
from study.advisor.engine.intent.ranking import assign
from study.advisor.engine.intent.settings import FACTORS
from study.advisor.retrieval.documents import save_catalog
from study.advisor.retrieval.index import Settings, ToolIndex
from study.advisor.retrieval.route import Request, Router
from study.advisor.retrieval.texts import definition_tokens
from study.cli.tool_catalogues import catalogue_file
from study.errors import StudyError
from study.tools import experiments
from study.tools.collections.files import Loaded
from study.tools.intent import lessons
from tests.tools.test_results import QUERIES

TOY = ("--catalogue", "toy")
REFUSED = [(["find", "x", *TOY, "--mode", "foo"], "unknown search mode 'foo'"), (["route", " ", *TOY], "no task")]
REFUSED += [(["find", "x", "--catalogue", "nothing"], "study tools index --catalogue nothing")]
REFUSED += [(["find", "x", "--catalogue", "../../etc/passwd"], "not a catalogue name")]
REFUSED += [(["run", "--catalogue", "nothing"], "no experiments"), (["run", "--part", "quality"], "unknown part")]
REFUSED += [(["run", "--catalogue", "mcptools", "--part", "latency"], "no experiments")]
REFUSED += [(["route", "x", *TOY, "--by", "oracle"], "unknown server stage")]


@pytest.mark.parametrize("mode", ["dense", "bm25", "hybrid", "routed"])
def test_find_answers_with_schemas_and_looks_for_the_parts_of_a_query(toy, run, catalog, embedder, mode):
    words = ["find", "read a file", *TOY, "--mode", mode, "--document", "name_desc"]
    first, second = json.loads(run(*words, "-k", "2", "--json").output)
    assert (first["rank"], first["server"]) == (1, {"id": "fs", "name": "Files", "sources": ["toy"]})
    given = {"name": "read_file", "description": "read a file", "inputSchema": catalog.tools[0].schema}
    assert first["tool"] == given
    assert first["score"] >= second["score"]
    assert "Files / read_file" in run(*words).output.splitlines()[0]
    query = "read the big file and then send it by mail"
    assert json.loads(run("find", query, *TOY, "--json", "--decompose", "--mode", mode).output)
    assert "send it by mail" in embedder.asked or mode == "bm25"


@pytest.mark.parametrize(("words", "reason"), REFUSED)
def test_the_command_line_refuses(toy, run, words, reason):
    with pytest.raises(StudyError, match=reason):
        run(*words)


def test_latency_alone_writes_its_own_tables(toy, run, catalog, monkeypatch):
    monkeypatch.setattr(experiments, "load_collection", lambda name: Loaded(catalog, {"tasks": QUERIES}, None))
    monkeypatch.setattr(experiments, "load_log", lambda *_: [])
    assert run("run", "--part", "latency").exit_code == 0
    folder = paths.tables("livemcpbench")
    assert sorted(path.name for path in folder.iterdir()) == ["discovery_latency.csv", "discovery_latency.json"]
    line = pd.read_csv(folder / "discovery_latency.csv").iloc[0]
    assert (line["tools"], line["queries"]) == (5, 2)
    assert 0 < line["latency_p50_ms"] <= line["latency_p95_ms"]
    assert "cores" in json.loads((folder / "discovery_latency.json").read_text())["hardware"]


def test_an_endpoint_by_configuration(server, project, run, catalog):
    path = project / "conf/tools/embedder.yaml"
    own = {"kind": "endpoint", "base_url": f"http://127.0.0.1:{server.server_port}/v1", "model": "e", "dimension": 2}
    chosen = yaml.safe_load(path.read_text()) | own | {"retries": 0}
    (project / "conf").unlink()
    path.parent.mkdir(parents=True)
    path.write_text(yaml.safe_dump(chosen))
    server.script = ["own_vectors"] * 20
    index = ToolIndex(catalog, Settings(document="name_desc"))
    assert len(index.search("send a mail", 2)[0]) == 2
    assert Router(catalog).scores([Request("mail", "send")]).shape == (1, 5)
    save_catalog(catalogue_file("toy"), catalog)
    assert run("find", "x", *TOY).output
    assert {(path, body["model"]) for path, body, _ in server.seen} == {("/v1/embeddings", "e")}
    server.script = ["html"]
    with pytest.raises(StudyError, match="1 attempts"):
        index.search("something else", 2)


def test_a_model_asks_for_tools(server, toy, run, tmp_path):
    url, cassette = f"http://127.0.0.1:{server.server_port}/v1", str(tmp_path / "c.jsonl")
    fixed = ["request", "read it", "--url", url, "--model", "m", *TOY, "-k", "1", "--json"]
    server.script = ["block"]
    recorded = run(*fixed, "--cassette", cassette, "--mode", "record")
    (found,) = json.loads(recorded.stdout)
    assert (found["server"]["name"], found["tool"]["name"]) == ("Files", "read_file")
    assert "1 requests, 0 malformed" in recorded.stderr
    assert recorded.stderr.rstrip().endswith("hello")
    asked = len(server.seen)
    assert run(*fixed, "--cassette", cassette).stdout == recorded.stdout
    assert len(server.seen) == asked == 2
    server.script = ["block"]
    assert run(*fixed, "--mode", "off").stdout == recorded.stdout
    for words, reason in (([], "needs a cassette"), (["--mode", "guess"], "unknown mode")):
        with pytest.raises(StudyError, match=reason):
            run(*fixed, *words)


def test_route(toy, run, catalog):
    words = ["route", "send a mail", *TOY, "--by"]
    whole = json.loads(run(*words, "tfidf", "--servers", "2", "--budget", "70", "--json").output)
    names = [(answer["server"]["name"], answer["tool"]["name"]) for answer in whole["tools"]]
    assert names[:2] == [("Mail", "send"), ("Mail", "write_file")]
    assert whole["servers"][0]["name"] == "Mail"
    assert whole["servers"][0]["score"] > whole["servers"][1]["score"]
    sizes = definition_tokens(catalog)
    row_of = {(catalog.servers[tool.server].name, tool.name): row for row, tool in enumerate(catalog.tools)}
    assert (whole["tokens"], whole["budget"]) == (sizes[[row_of[name] for name in names]].sum(), 70)
    lines = run(*words, "mcp_zero", "--servers", "1").output.splitlines()
    assert re.fullmatch(r"servers: Mail \(\d\.\d{3}\)", lines[0])
    assert "Mail / send" in lines[1]
    assert lines[-1] == f"{sizes[[2, 3]].sum()} of 2000 tokens"
    assert run(*words, "all").output.splitlines()[0] == "servers: all"


def test_made_instructions(toy, run, catalog):
    lines = [json.loads(line) for line in run("synthesise", *TOY, "--tools", "2").stdout.splitlines()]
    assert {line["tool"] for line in lines} <= {tool.name for tool in catalog.tools}


def test_the_loop_of_recommendation_and_feedback(toy, run):
    done = run("recommend", "read a file", "-k", "3", "--agent", "a", *TOY)
    assert "fs/read_file" in done.stdout.splitlines()[0]
    assert "relevance" in done.stdout
    event = json.loads(done.stderr)
    assert (len(event["shown"]), len(event["factors"][0])) == (3, len(FACTORS))
    assert "read a file" not in done.stderr
    chosen = ["--selected", event["shown"][1], "--success", "--rating", "4", "--latency-ms", "20"]
    for words in (chosen, ["--selected", "fs/read_file", "--failure"], []):
        run("feedback", json.dumps(event), *words, *TOY)
    stored = feedback_of("tools-toy").events()
    assert [found.success for found in stored] == [True, False, None]
    assert re.search(r"click_through_rate +0.667", run("feedback", *TOY).stdout)
    # One successful use tells something: its tool against the other two shown; too little to settle weights.
    assert [own.shape for own in lessons(stored)] == [(2, len(FACTORS))]
    tuned = run("feedback", "--tune", *TOY)
    assert tuned.stdout.startswith("1 successful uses")
    assert "do not use them" in tuned.stderr
    assert sum(json.loads(tuned.stdout.splitlines()[1]).values()) == pytest.approx(1, abs=1e-3)
    again = json.loads(run("recommend", "read a file", "-k", "3", "--experiment", "trial", *TOY).stderr)
    assert again["experiment"] == "trial"
    assert again["factors"] != event["factors"]


def test_compare_names_every_variant(toy, run):
    store, names = feedback_of("tools-toy"), ["control", "variant_a", "variant_b"]
    rng = np.random.default_rng(0)
    for agent in (f"agent {number}" for number in range(600)):
        rate = 0.95 if assign(agent, names, "trial") == "variant_a" else 0.3
        store.append(Event(agent, "h", (), "fs/read_file", bool(rng.random() < rate), experiment="trial"))
    lines = [line.split() for line in run("feedback", "--compare", "trial", *TOY).stdout.splitlines()]
    assert {line[0]: line[-1] for line in lines[1:]} == {"variant_a": "better", "variant_b": "open"}


def test_requirements_of_tools(toy, run, tmp_path):
    needs = tmp_path / "needs.json"
    needs.write_text(json.dumps({"fs/read_file": {"permissions": ["read"]}}))
    for words, offered in (([], True), (["--permission", "read"], True), (["--permission", "write"], False)):
        found = run("recommend", "read a file", "--needs", str(needs), *words, *TOY).stdout
        assert ("fs/read_file" in found) is offered


def test_bad_events_are_refused(toy, run):
    start = '{"agent": "a", "query": "h"'
    bad = ["{", "[]", start + ', "colour": 1}', start + ', "shown": ["t"], "factors": [[1]]}']
    for words in (*([event] for event in bad), [start + "}", "--rating", "9"]):
        with pytest.raises(StudyError):
            run("feedback", *words, *TOY)
    assert not feedback_of("tools-toy").events()
