"""Requests that are no tasks: known items, names of products, benchmarks of others; on hand-made catalogues."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from study.advisor.retrieval.documents import Server, Tool, ToolCatalog
from study.advisor.retrieval.names import key
from study.analysis import framework
from study.analysis.framework import load_settings, run_analyses
from study.analysis.usefulness import choosing, pareto
from study.analysis.usefulness import other_requests as other
from study.base.errors import StudyError, UnavailableError
from study.base.settings import build_settings
from study.config.compose import load
from study.tools import collections
from study.tools.collections import Loaded
from study.tools.queries import QuerySet
from tests.analysis.toys import toy


def data_of(servers):
    """Two tasks without labels over these servers."""
    rows = dict(enumerate(other.fill_columns(servers).to_dict("records")))
    return toy([{"description": "unused"}] * 2, [[], []], len(servers), rows)


def analysed(monkeypatch, name, data, settings):
    monkeypatch.setattr(framework, "load_settings", lambda kind: settings)
    monkeypatch.setattr(framework.datasets, "load", lambda name: data)
    (path,) = run_analyses([f"usefulness/{name}"], load(["dataset=synthetic"]))
    return pd.read_csv(path)


def test_one_name_in_two_spellings_is_one_request_and_the_first_wanted_server_counts():
    asked = other.by_name("server name", ["PDF-Reader", "pdf reader", "Mail", "!?"], [0, 3, 1, 2])
    assert asked["request"].tolist() == ["PDF-Reader", "Mail"]
    assert asked["targets"].tolist() == [frozenset({0, 3}), frozenset({1})]
    ranked, wanted = [[4, 2, 0], [1, 3], [9, 8, 7]], [frozenset({0, 2}), frozenset({1}), frozenset({0})]
    assert other.first_hits(ranked, wanted).tolist() == [2, 1, np.inf]


def test_known_items_are_asked_by_name_tool_and_request_and_a_server_that_is_not_there_is_refused(conf_root):
    (conf_root / "conf/usefulness/known_items.csv").write_text("server_id,request\n7,read my mail\n8,plot it\n")
    servers = pd.DataFrame({"id": [7, 8], "name": ["Mail", "Plot"], "tools": ["send_mail, read_mail", ""]})
    asked = other.known_requests(servers)
    assert asked["request"].tolist() == ["Mail", "Plot", "send_mail", "read_mail", "read my mail", "plot it"]
    assert asked["targets"].tolist() == [frozenset({row}) for row in (0, 1, 0, 0, 0, 1)]
    with pytest.raises(StudyError, match="no server of the catalogue") as caught:
        other.known_requests(servers[:1])
    assert caught.value.row == 1


def test_exact_names_are_found_by_a_system_that_reads_names(monkeypatch, conf_root):
    names = ["alpha tool", "beta tool", "gamma tool"]
    data = data_of(pd.DataFrame({"name": names, "description": ["x", "y", "z"]}))
    written = pd.DataFrame({"server_id": data.servers["id"][2:], "request": ["gamma please"]})
    monkeypatch.setattr(other, "read_csv", lambda path: written)
    found = analysed(monkeypatch, "known_items", data, other.KnownItems(["bm25"], [], 2, 0)).set_index("kind")
    assert found.loc["server name", ["requests", "first", "first_10"]].tolist() == [3, 1.0, 1.0]
    assert found.loc["request", "first"] == 1.0
    assert "tool name" not in found.index  # this catalogue lists none


NAMES = ["Slack MCP Server", "Memory Server", "Slack Search", "Google Maps", "Google", "Paris Weather"]
SERVERS = pd.DataFrame({"name": NAMES, "description": [f"It serves {name}." for name in NAMES], "id": range(6)})
VALUES = {
    "seed": 0,
    "requests": 3,
    "systems": ["tfidf", "random"],
    "kinds": {
        "chat": {"products": ["Slack", "Absent"], "sentences": ["Post to {product}", "Slackers read {product} daily"]},
        "maps": {"products": ["Google Maps"], "sentences": ["Route with {product}"]},
    },
    "not_the_tool": {
        "place": [{"word": "Paris", "text": "A Story about Paris"}, {"word": "Rome", "text": "A story about Rome"}],
        "company": [{"word": "Google", "text": "What Google paid in fines"}],
    },
}


def settings(**changes):
    return build_settings(other.Navigational, VALUES | changes, Path("navigational.yaml"))


def test_what_the_catalogue_can_answer_is_asked_in_every_form():
    asked = other.all_forms(settings(), SERVERS)
    assert list(asked.itertuples(index=False, name=None)) == [
        ("as written", "chat", "Post to Slack", {0, 2}),
        ("as written", "chat", "Slackers read Slack daily", {0, 2}),
        ("as written", "maps", "Route with Google Maps", {3}),
        ("lower case", "chat", "Post to slack", {0, 2}),
        ("lower case", "chat", "Slackers read slack daily", {0, 2}),
        ("lower case", "maps", "Route with google maps", {3}),
        ("word is not the tool", "place", "A Story about Paris", {5}),
        ("word is not the tool", "company", "What Google paid in fines", {3, 4}),
    ]
    assert (other.all_forms(settings(requests=2), SERVERS)["form"] == other.WRITTEN).sum() == 2


def test_the_first_server_is_looked_at_and_counted_by_form_and_kind(conf_root, monkeypatch):
    # Every word stands in its servers' texts and in no other, so a cosine of words puts one of them first each time.
    table = analysed(monkeypatch, "navigational", data_of(SERVERS), settings())
    assert len(table) == 2 * 9
    found = table[table["system"].eq("tfidf") & table["kind"].eq("all")]
    assert found["first_bears_word"].tolist() == [1.0] * 3
    monkeypatch.setattr(other, "first_rows", lambda *given: [[row] for row in (2, 1, 3, 0, 5, 4, 5, 1)])
    table = analysed(monkeypatch, "navigational", data_of(SERVERS), settings(systems=["tfidf"]))
    counted = ["form", "kind", "requests", "first_bears_word"]
    assert table[counted].to_numpy().tolist() == [
        ["as written", "all", 3, pytest.approx(2 / 3)],
        ["as written", "chat", 2, 0.5],
        ["as written", "maps", 1, 1.0],
        ["lower case", "all", 3, pytest.approx(1 / 3)],
        ["lower case", "chat", 2, 0.5],
        ["lower case", "maps", 1, 0.0],
        ["word is not the tool", "all", 2, 0.5],
        ["word is not the tool", "place", 1, 1.0],
        ["word is not the tool", "company", 1, 0.0],
    ]
    with pytest.raises(UnavailableError):  # a catalogue without these names keeps its table
        analysed(monkeypatch, "navigational", data_of(SERVERS), settings(kinds={}, not_the_tool={}))


def test_no_committed_request_asks_something_else_than_it_seems_to():
    chosen = load_settings(other.Navigational)
    assert all(other.SLOT in sentence for kind in chosen.kinds.values() for sentence in kind["sentences"])
    others = [entry for entries in chosen.not_the_tool.values() for entry in entries]
    assert all(key(own["word"]) and re.search(rf"(?<!\w){re.escape(own['word'])}(?!\w)", own["text"]) for own in others)


@pytest.mark.mirror
def test_the_real_catalogue_bears_the_words_that_are_asked_for(task2mcp):
    chosen, servers = load_settings(other.Navigational), task2mcp.data.servers
    forms = other.all_forms(chosen, servers)["form"].tolist()
    assert forms.count(other.WRITTEN) == forms.count(other.LOWER) == chosen.requests
    assert forms.count(other.NOT_THE_TOOL) == sum(map(len, chosen.not_the_tool.values()))
    calendar = pd.date_range("2026-01-01", "2026-12-31")
    dated = {"time": [{"word": word, "text": word} for word in {*calendar.month_name(), *calendar.day_name()}]}
    assert other.NOT_THE_TOOL not in set(other.all_forms(settings(not_the_tool=dated), servers)["form"])


@pytest.fixture
def queries(monkeypatch):
    """A benchmark: tools of a server do not stand together, the last server has none. The first query wants a way and
    any tool of Mail, the second a letter read; none wants Idle."""
    servers = (Server("a", "Maps", "Finds ways."), Server("b", "Mail", "Sends letters."), Server("c", "Idle", ""))
    tools = (Tool(1, "send", "sends"), Tool(0, "route", "finds a way"), Tool(1, "read", "reads"))
    texts = ("Find the way and write home", "Read my mail")
    made = QuerySet("tasks", ("q1", "q2"), texts, (((1,), (0, 2)), ((2,),)), ("q1", "q2"))
    loaded = Loaded(ToolCatalog("toy", servers, tools), {"tasks": made}, pd.DataFrame())
    monkeypatch.setattr(collections, "load_collection", {"livemcpbench": loaded}.__getitem__)
    return made


def test_a_benchmark_alone_and_inside_a_catalogue_behind_whose_servers_it_stands(queries):
    data, relevant, asked = other.as_dataset("livemcpbench")
    assert asked is queries
    assert data.servers["name"].tolist() == ["Maps", "Mail", "Idle"]
    assert data.servers["tools"].tolist() == ["route", "send, read", ""]
    assert data.tasks["description"].tolist() == list(queries.texts)
    # What systems may read and the benchmark does not have is empty, and no query brings its labels along.
    for table in (data.servers, data.tasks):
        assert set(other.COLUMNS) <= set(table.columns)
        assert table["id"].tolist() == list(range(len(table)))
    assert (data.tasks[["name", "theme", "category"]] == "").all(axis=None)
    assert (data.relevance.shape, data.relevance.nnz, [len(rows) for rows in data.lists]) == ((2, 3), 0, [0, 0])
    # A server that several tools of a label or several labels name counts once.
    assert relevant.toarray().tolist() == [[1, 1, 0], [0, 1, 0]]
    own = pd.DataFrame({"id": [7, 9], "name": ["Slack", "Maps"], "description": ["Posts.", "Other maps."]})
    own = own.assign(language=["Go", None], stars_count=["5", "6"])
    data, relevant, _ = other.as_dataset("livemcpbench", inside=replace(toy([], [[]], 2), servers=own))
    assert data.servers["name"].tolist() == ["Slack", "Maps", "Maps", "Mail", "Idle"]
    assert data.servers["language"].tolist() == ["Go", "", "", "", ""]
    assert data.servers["id"].tolist() == [0, 1, 2, 3, 4]
    # The catalogue's own server of the same name is not relevant.
    assert relevant.toarray().tolist() == [[0, 0, 1, 1, 0], [0, 0, 0, 1, 0]]
    assert data.relevance.nnz == 0


def test_rank_fusion_of_the_named_systems_is_asked():
    found = other.build_systems(other.Transfer(["bm25"], ["tfidf", "bm25"], "bm25", "ndcg@10", seed=0))
    assert list(found) == ["bm25", "fusion"]
    assert list(found["fusion"].members) == ["tfidf", "bm25"]


KINDS = [choosing.Choice, choosing.Steps, pareto.Latency, other.Transfer]


@pytest.mark.parametrize("kind", KINDS)
def test_committed_settings_are_read(kind):
    assert load_settings(kind)
