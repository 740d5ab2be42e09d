"""Known-item requests: what counts as one name, which server must be found, and where it is found."""

import numpy as np
import pandas as pd
import pytest

from study.analysis.usefulness import known_items
from study.analysis.usefulness.other_requests import filled
from study.errors import StudyError


def test_one_name_in_two_spellings_is_one_request_and_either_server_is_right():
    asked = known_items.by_name("server name", [("PDF-Reader", 0), ("pdf reader", 3), ("Mail", 1), ("!?", 2)])
    assert asked.requests == ["PDF-Reader", "Mail"]
    assert asked.wanted == [frozenset({0, 3}), frozenset({1})]


def test_places_of_the_first_wanted_server():
    ranked = np.array([[4, 2, 0], [1, 3, 5], [9, 8, 7]])
    found = known_items.places(ranked, [frozenset({0, 2}), frozenset({1}), frozenset({0})])
    assert found.tolist() == [2, 1, np.inf]


def test_a_request_for_a_server_that_is_not_there_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(known_items.paths, "conf", lambda: tmp_path)
    (tmp_path / "usefulness").mkdir()
    (tmp_path / "usefulness" / "asked.csv").write_text("server_id,request\n7,read my mail\n8,plot it\n")
    settings = known_items.KnownItems(["bm25"], [], 2, 0, "asked.csv", 2)
    servers = pd.DataFrame({"id": [7], "name": ["Mail"], "tools": ["send_mail, read_mail"]})
    with pytest.raises(StudyError, match="no server of the catalogue") as caught:
        known_items.written(settings, servers)
    assert caught.value.row == 1
    kinds = known_items.all_kinds(settings, servers)
    assert next(kinds).requests == ["Mail"]
    assert next(kinds).requests == ["send_mail", "read_mail"]


def test_exact_names_are_found_by_a_system_that_reads_names(monkeypatch, tmp_path):
    servers = filled(pd.DataFrame({"name": ["alpha tool", "beta tool", "gamma tool"], "description": ["x", "y", "z"]}))
    (tmp_path / "asked.csv").write_text("server_id,request\n2,gamma please\n")
    monkeypatch.setattr(
        known_items, "written", lambda settings, table: known_items.Asked("request", ["gamma"], [frozenset({2})])
    )
    data = known_items.unlabelled("toy", servers, ["x"])
    found = known_items.known_items_table(known_items.KnownItems(["bm25"], [], 2, 0, "asked.csv", 2), data).set_index(
        "kind"
    )
    assert found.loc["server name", ["requests", "first", "first_10"]].tolist() == [3, 1.0, 1.0]
    assert found.loc["request", "first"] == 1.0
    assert "tool name" not in found.index  # this catalogue lists none


def test_a_draw_keeps_requests_and_wanted_servers_together():
    asked = known_items.Asked("server name", [str(row) for row in range(9)], [frozenset({row}) for row in range(9)])
    few = known_items.drawn(asked, known_items.KnownItems([], [], 4, 1, "", 2))
    assert len(set(few.requests)) == 4
    assert [frozenset({int(request)}) for request in few.requests] == few.wanted
    assert known_items.drawn(asked, known_items.KnownItems([], [], 20, 1, "", 2)).requests == asked.requests
