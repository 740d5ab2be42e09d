"""The cassette: replies and faults recorded, replayed, and refused where they are damaged."""

import json

import pytest

from study.errors import StudyError
from study.llm import client as llm
from study.llm.cassette import holds_replies
from tests.llm.scripted_endpoint import ask, limited


@pytest.fixture
def cassette(client, tmp_path):
    """The file to which the client records."""
    client.mode, client.cassette = "record", tmp_path / "c.jsonl"
    return client.cassette


def test_record_then_replay(server, client, cassette):
    assert ask(client) == ask(client) == "hello"
    assert len(server.seen) == 1
    replay = llm.Client("http://127.0.0.1:9/other", cassette=cassette)
    assert ask(replay) == "hello"
    with pytest.raises(StudyError, match="no recorded reply"):
        replay.chat("m", [{"role": "user", "content": "something else"}])


def test_a_recorded_fault_is_replayed_and_asked_again(server, client, cassette):
    server.script = ["broken"] * 6
    for _ in range(2):
        with pytest.raises(llm.EndpointError, match="3 attempts"):
            ask(client)
    (line,) = cassette.read_text().splitlines()  # the same fault says nothing new
    entry = json.loads(line)
    assert (set(entry), entry["fault"]) == ({"key", "fault", "request"}, "server_error")
    assert not holds_replies(cassette)
    with pytest.raises(llm.EndpointError, match="failed when this was recorded") as found:
        ask(llm.Client("http://x", cassette=cassette))
    assert found.value.kind == "server_error"
    assert ask(client) == "hello"
    # In whatever order a merge puts them: the reply goes before the fault.
    lines = cassette.read_text().splitlines()
    assert holds_replies(cassette)
    for order in (lines, lines[::-1]):
        cassette.write_text("\n".join(order) + "\n")
        assert ask(llm.Client("http://x", cassette=cassette)) == "hello"


def test_off_keeps_no_fault(server, client, cassette):
    client.mode, server.script = "off", ["refuse"]
    with pytest.raises(StudyError, match="refused"):
        ask(client)
    assert not cassette.exists()
    assert not holds_replies(cassette)


def test_what_was_sent_instead_is_recorded(server, client, cassette):
    server.script = ["terse"] * 3
    limited(client)
    entry = json.loads(cassette.read_text())
    told = {"max_tokens": "max_completion_tokens", "temperature": None}
    assert entry["sent"] == told
    # The key is that of the request as it was asked, so the replay need not know what an endpoint refuses.
    assert entry["request"]["body"]["max_tokens"] == 9
    replay = llm.Client("http://x", cassette=cassette)
    assert limited(replay) == "hello"
    assert replay.adapted == told


@pytest.mark.parametrize("said", [{"fault": "laziness"}, {"fault": None}, {}, {"response": 1, "sent": 3}])
def test_unknown_entries_damage_a_cassette(client, cassette, said):
    ask(client)
    cassette.write_text(json.dumps({"key": "0"} | said) + "\n" + cassette.read_text())
    with pytest.raises(StudyError, match="damaged cassette"):
        ask(llm.Client("http://x", cassette=cassette))


def test_damaged_cassettes(client, cassette):
    ask(client)
    whole = cassette.read_text()
    # A recording that was stopped in the middle of a line goes on; the torn line is an error once lines follow it.
    cassette.write_text(whole + whole[:40])
    assert ask(llm.Client("http://x", cassette=cassette)) == "hello"
    assert limited(llm.Client(client.base_url, mode="record", cassette=cassette)) == "hello"
    assert cassette.read_text().count("\n") == 3
    cassette.write_text(whole[:40] + "\n" + whole)
    with pytest.raises(StudyError, match="damaged cassette") as found:
        ask(llm.Client("http://x", cassette=cassette))
    assert found.value.row == "line 1"
    entry = json.loads(whole)
    entry["request"]["body"]["model"] = "other"
    cassette.write_text(json.dumps(entry) + "\n" + whole)
    with pytest.raises(StudyError, match="does not belong"):
        ask(llm.Client("http://x", cassette=cassette))


def test_the_key_depends_on_the_request_alone():
    assert llm.key({"a": 1, "b": [2]}) == llm.key({"b": [2], "a": 1})
    assert llm.key({"a": 1}) != llm.key({"a": 2})
