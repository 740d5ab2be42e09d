"""Other people's benchmarks as data sets, from a hand-made catalogue of tools."""

from dataclasses import replace

import pandas as pd
import pytest

from study.advisor.retrieval.documents import Server, Tool, ToolCatalog
from study.analysis.usefulness import other_requests as transfer
from study.tools.collections import published
from study.tools.collections.files import Loaded
from study.tools.queries import QuerySet
from tests.analysis.toys import toy

# The tools of a server do not stand together; the last server has none.
SERVERS = (Server("a", "Maps", "Finds ways."), Server("b", "Mail", "Sends letters."), Server("c", "Idle", ""))
TOOLS = (Tool(1, "send", "sends"), Tool(0, "route", "finds a way"), Tool(1, "read", "reads"))
# The first query wants a way and any tool of Mail, the second a letter read; no query wants Idle.
TEXTS = ("Find the way and write home", "Read my mail")
QUERIES = QuerySet("tasks", ("q1", "q2"), TEXTS, (((1,), (0, 2)), ((2,),)), ("q1", "q2"))


@pytest.fixture(autouse=True)
def _benchmark(monkeypatch):
    loaded = Loaded(ToolCatalog("toy", SERVERS, TOOLS), {"tasks": QUERIES}, pd.DataFrame())
    monkeypatch.setattr(published, "load_collection", {"livemcpbench": loaded}.__getitem__)


def test_a_benchmark_alone():
    data, relevant, queries = transfer.as_dataset("livemcpbench")
    assert queries is QUERIES
    assert data.name == "livemcpbench"
    assert data.servers["name"].tolist() == ["Maps", "Mail", "Idle"]
    assert data.servers["description"].tolist() == ["Finds ways.", "Sends letters.", ""]
    assert data.servers["tools"].tolist() == ["route", "send, read", ""]
    assert data.tasks["description"].tolist() == list(QUERIES.texts)
    # What systems may read and the benchmark does not have is empty, and no query brings its labels along.
    for table in (data.servers, data.tasks):
        assert set(transfer.COLUMNS) <= set(table.columns)
        assert table["id"].tolist() == list(range(len(table)))
    assert (data.tasks[["name", "theme", "category"]] == "").all(axis=None)
    assert data.relevance.shape == (2, 3)
    assert data.relevance.nnz == 0
    assert [len(rows) for rows in data.lists] == [0, 0]
    # A server that several tools of a label or several labels name counts once.
    assert relevant.toarray().tolist() == [[1, 1, 0], [0, 1, 0]]


def test_a_benchmark_inside_a_catalogue_stands_behind_its_servers():
    own = pd.DataFrame({"id": [7, 9], "name": ["Slack", "Maps"], "description": ["Posts.", "Other maps."]})
    own = own.assign(language=["Go", None], stars_count=["5", "6"])
    catalogue = replace(toy([], [[]], 2), servers=own)
    data, relevant, _ = transfer.as_dataset("livemcpbench", inside=catalogue)
    assert data.servers["name"].tolist() == ["Slack", "Maps", "Maps", "Mail", "Idle"]
    assert data.servers["tools"].tolist() == ["", "", "route", "send, read", ""]
    assert data.servers["language"].tolist() == ["Go", "", "", "", ""]
    assert data.servers["id"].tolist() == [0, 1, 2, 3, 4]
    assert "stars_count" not in data.servers
    # The catalogue's own server of the same name is not relevant.
    assert relevant.toarray().tolist() == [[0, 0, 1, 1, 0], [0, 0, 0, 1, 0]]
    assert data.relevance.shape == (2, 5)
    assert data.relevance.nnz == 0
