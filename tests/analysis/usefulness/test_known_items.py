"""Known-item requests: what counts as one name, which server must be found, and where it is found."""

import numpy as np
import pandas as pd
import pytest

from study.analysis import framework
from study.analysis.framework import run_analyses
from study.analysis.usefulness import other_requests
from study.analysis.usefulness.other_requests import KnownItems, filled
from study.base.errors import StudyError
from study.config.compose import load
from tests.analysis.toys import toy

SETTINGS = KnownItems(["bm25"], [], 2, 0)


def test_one_name_in_two_spellings_is_one_request_and_either_server_is_right():
    asked = other_requests.by_name("server name", ["PDF-Reader", "pdf reader", "Mail", "!?"], [0, 3, 1, 2])
    assert asked["request"].tolist() == ["PDF-Reader", "Mail"]
    assert asked["wanted"].tolist() == [frozenset({0, 3}), frozenset({1})]


def test_places_of_the_first_wanted_server():
    ranked = [[4, 2, 0], [1, 3], [9, 8, 7]]
    found = other_requests.places(ranked, [frozenset({0, 2}), frozenset({1}), frozenset({0})])
    assert found.tolist() == [2, 1, np.inf]


@pytest.fixture
def conf(tmp_path, monkeypatch):
    """A folder of settings with requests for the servers 7 and 8."""
    monkeypatch.setattr(other_requests.paths, "conf", lambda: tmp_path)
    (tmp_path / "usefulness").mkdir()
    (tmp_path / "usefulness" / "known_items.csv").write_text("server_id,request\n7,read my mail\n8,plot it\n")


@pytest.mark.usefixtures("conf")
def test_a_request_for_a_server_that_is_not_there_is_refused():
    servers = pd.DataFrame({"id": [7, 8], "name": ["Mail", "Plot"], "tools": ["send_mail, read_mail", ""]})
    asked = other_requests.known_requests(servers)
    expected = ["Mail", "Plot", "send_mail", "read_mail", "read my mail", "plot it"]
    assert asked["request"].tolist() == expected
    assert asked["wanted"].tolist() == [frozenset({row}) for row in (0, 1, 0, 0, 0, 1)]
    with pytest.raises(StudyError, match="no server of the catalogue") as caught:
        other_requests.known_requests(servers[:1])
    assert caught.value.row == 1


def test_exact_names_are_found_by_a_system_that_reads_names(monkeypatch, new_results):
    servers = filled(pd.DataFrame({"name": ["alpha tool", "beta tool", "gamma tool"], "description": ["x", "y", "z"]}))
    data = toy([{"description": "unused"}] * 2, [[], []], 3, dict(enumerate(servers.to_dict("records"))))
    monkeypatch.setattr(framework.datasets, "load", lambda name: data)
    monkeypatch.setattr(framework, "load_settings", lambda kind: SETTINGS)
    written = pd.DataFrame({"server_id": data.servers["id"][2:], "request": ["gamma please"]})
    monkeypatch.setattr(other_requests, "read_csv", lambda path: written)
    (path,) = run_analyses(["usefulness/known_items"], load(["dataset=synthetic"]))
    found = pd.read_csv(path).set_index("kind")
    assert found.loc["server name", ["requests", "first", "first_10"]].tolist() == [3, 1.0, 1.0]
    assert found.loc["request", "first"] == 1.0
    assert "tool name" not in found.index  # this catalogue lists none
