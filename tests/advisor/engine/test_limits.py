"""Limits: what clauses state them, which servers they leave, and what no field answers."""

import pytest

from study.advisor.engine.facts import Facts
from study.advisor.engine.limits import Limits, read_limits


@pytest.mark.parametrize(
    ("request_", "text", "limits"),
    [
        (
            "query a database, in Python, MIT or Apache licence",
            "query a database",
            {"languages": ["Python"], "licences": ["MIT", "Apache"]},
        ),
        ("draw charts, at least 20 stars, not AGPL", "draw charts", {"stars": 20, "unwanted_licences": ["AGPL"]}),
        ("move tickets, no Java", "move tickets", {"unwanted_languages": ["Java"]}),
        ("play music; official only; offline", "play music", {"official": True, "place": "local"}),
        ("scan files, Linux only, low latency", "scan files", {"platforms": ["Linux"], "preferences": ["latency"]}),
        ("detect objects, C++ or Python", "detect objects", {"languages": ["C++", "Python"]}),
        ("plan a trip, any language", "plan a trip", {}),
        ("in Go, MIT", "", {"languages": ["Go"], "licences": ["MIT"]}),
        # A task speaks of a language; only a clause of its own is a limit.
        ("explain code in Rust", "explain code in Rust", {}),
        ("Go to the archive and scan C batteries", "Go to the archive and scan C batteries", {}),
        ("read mail, calendar and notes", "read mail, calendar and notes", {}),
        ("pay with MIT, in Python and with care", "pay with MIT, in Python and with care", {}),
    ],
)
def test_clauses_state_limits(request_, text, limits):
    read = read_limits(request_)
    assert (read.text, read.limits.stated()) == (text, limits)


def facts(**known):
    return Facts("", "", "", **known)


@pytest.mark.parametrize(
    ("limits", "known", "allowed"),
    [
        ({"languages": ["golang"]}, {"language": "Go"}, True),
        ({"languages": ["Go"]}, {"language": "Rust"}, False),
        ({"languages": ["Go"]}, {}, False),
        ({"unwanted_languages": ["Go"]}, {}, True),
        ({"unwanted_languages": ["go"]}, {"language": "Go"}, False),
        ({"licences": ["Apache"]}, {"licence": "apache-2.0"}, True),
        ({"licences": ["Apache 2.0"]}, {"licence": "Apache-2.0"}, True),
        ({"licences": ["GPL"]}, {"licence": "agpl-3.0"}, False),
        ({"licences": ["MIT"]}, {}, False),
        ({"unwanted_licences": ["gpl"]}, {"licence": "GPL-3.0"}, False),
        ({"official": True}, {"official": None}, False),
        ({"official": True}, {"official": True}, True),
        ({"stars": 5}, {"stars": 5}, True),
        ({"stars": 5}, {"stars": 4}, False),
        ({"stars": 5}, {}, False),
        ({"place": "remote"}, {"start": "https://x.example/mcp"}, True),
        ({"place": "remote"}, {"start": "npx -y x"}, False),
        ({"place": "local"}, {}, True),
        ({"platforms": ["Linux"], "domain": "x", "preferences": ["privacy"]}, {}, True),
    ],
)
def test_a_server_is_within_limits(limits, known, allowed):
    assert Limits(**limits).allow(facts(**known)) is allowed


def test_what_no_field_answers_is_said():
    limits = Limits(languages=["Go"], platforms=["Linux"], preferences=["privacy"])
    assert limits.notes()[0] == "limits: language: Go"
    assert [note.endswith("the catalogue does not tell") for note in limits.notes()] == [False, True, True]
    assert not Limits(platforms=["Linux"]).filters()
