"""The endpoint client against a local server that misbehaves in every way that real ones do, and its cassette."""

import json
import time

import pytest

from study.advisor.llm import client as llm
from study.advisor.llm import settings
from study.base.errors import StudyError
from study.reranking.replies import holds_replies
from tests.advisor.llm.scripted_endpoint import ask, limited

ENDS = [("html", ""), ("torn", ""), ("full", "; the last: HTTP 503: no room today")]
REFUSALS = [("Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.", 400, "max_tokens")]
REFUSALS += [("Unsupported parameter: 'temperature' is not supported with this model.", 422, "temperature")]
REFUSALS += [("this model doesn't support temperature", 400, "temperature")]
REFUSALS += [("Unsupported value: 'temperature'", 401, None), ("temperature must be below 2", 400, None)]
REFUSALS += [("max_completion_tokens and the messages are longer than the model's context", 400, None)]
REFUSALS += [("'response_format' of type 'json_schema' is not supported", 400, None), ("", 400, None)]


def test_a_plain_answer(server, client, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert ask(client) == "hello"
    path, body, authorization = server.seen[0]
    assert path == "/v1/chat/completions"
    assert body == {"model": "m", "messages": [{"role": "user", "content": "hi"}], "temperature": 0}
    assert authorization == "Bearer secret"


def test_an_endpoint_needs_a_models_name_which_a_local_address_holds(monkeypatch, tmp_path):
    address = "http://127.0.0.1:9/v1"
    for variable in ("T2M_LLM_MODEL", "T2M_LLM_URL", "T2M_LLM_MODE"):
        monkeypatch.delenv(variable, raising=False)
    kept = tmp_path / "kept.jsonl"
    made, name = settings.connect("local:smollm", cassette=kept)
    assert (made.base_url, made.mode, made.cassette, name) == ("local:smollm", "record", kept, "smollm")
    assert made.timeout == settings.endpoint_settings("local").timeout
    with pytest.raises(StudyError, match="no name"):
        settings.connect(address)
    monkeypatch.setenv("T2M_LLM_MODEL", "large")
    assert [settings.connect(address, stated)[1] for stated in ("", "own")] == ["large", "own"]
    monkeypatch.setenv("T2M_LLM_URL", address)
    made, name = settings.connect()
    assert (made.base_url, made.mode, name) == (address, "off", "large")


@pytest.mark.parametrize("fault", ["broken", "busy", "html", "torn"])
def test_passing_faults_are_tried_again(server, client, fault):
    server.script = [fault, fault]
    assert ask(client) == "hello"
    assert client.slept == ([7, 7] if fault == "busy" else [1, 2])


@pytest.mark.parametrize(("fault", "reason"), ENDS)
def test_tries_are_bounded_and_the_last_says_why(server, client, fault, reason):
    server.script = [fault] * 9
    with pytest.raises(StudyError, match="3 attempts" + reason):
        ask(client)
    assert len(server.seen) == 3
    nobody = llm.Client("http://127.0.0.1:9", mode="off", retries=0, timeout=2)
    with pytest.raises(StudyError, match="1 attempts"):
        ask(nobody)


def test_refused_parameters_are_sent_otherwise_once_and_remembered(server, client):
    server.script = ["stubborn"] * 9
    with pytest.raises(StudyError, match="Unsupported parameter"):
        limited(llm.Client(client.base_url, mode="off", timeout=5))
    assert len(server.seen) == 2
    server.seen.clear()
    server.script = ["terse"] * 4
    assert limited(client) == limited(client) == "hello"
    always = {"model", "messages"}
    sent = [{name: value for name, value in body.items() if name not in always} for _, body, _ in server.seen]
    wanted = {"max_completion_tokens": 9}
    assert sent == [{"temperature": 0, "max_tokens": 9}, {"temperature": 0, **wanted}, wanted, wanted]
    assert client.adapted == {"max_tokens": "max_completion_tokens", "temperature": None}
    assert client.usage.attempts == 4


@pytest.mark.parametrize(("said", "status", "name"), REFUSALS)
def test_what_a_refusal_speaks_of(said, status, name):
    refusal = llm.EndpointError("refused", said, status=status, message=said)
    assert llm.refused_parameter({"model": "m", "max_tokens": 9, "temperature": 0}, refusal) == name
    assert llm.refused_parameter({"model": "m"}, refusal) is None


def test_the_message_of_a_refusal_is_cleaned_and_cut_and_does_not_give_the_key_away(server, client, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    server.script = ["vulgar", "tactless"]
    with pytest.raises(llm.EndpointError, match=r"HTTP 400: \[31mno model of that name") as error:
        ask(client)
    assert error.value.message.isprintable()
    assert len(error.value.message) == llm.LONGEST_MESSAGE
    assert (error.value.kind, error.value.status) == ("refused", 400)
    with pytest.raises(llm.EndpointError, match=r"wrong key: \[key\]") as error:
        ask(client)
    assert "secret" not in str(error.value)


LASTING = {"deep": "the request: HTTP 400", "listed": "the request: HTTP 400", "refuse": "", "redirect": ""}


@pytest.mark.parametrize(("fault", "reason"), LASTING.items())
def test_lasting_faults_are_not_tried_again(server, client, fault, reason):
    server.script = [fault]
    with pytest.raises(llm.EndpointError, match=f"refused {reason}") as error:
        ask(client)
    assert len(error.value.message) <= llm.LONGEST_MESSAGE
    assert [path for path, *_ in server.seen] == ["/v1/chat/completions"]


def test_a_slow_drip_ends(server, client):
    server.script = ["drip"]
    client.timeout, client.retries = 0.3, 0
    started = time.monotonic()
    with pytest.raises(StudyError, match="too slowly"):
        ask(client)
    assert time.monotonic() - started < 2


def test_odd_replies(server, client):
    server.script = ["odd", "silent"]
    with pytest.raises(StudyError, match="not a chat completion"):
        ask(client)
    assert ask(client) == ""
    client.max_bytes = 10
    with pytest.raises(StudyError, match="longer than 10 bytes"):
        ask(client)


def test_settings_are_checked(tmp_path):
    for address, cassette, reason in (("http://x", None, "a cassette"), ("file:///", tmp_path / "c", "HTTP")):
        with pytest.raises(StudyError, match=reason):
            llm.Client(address, cassette=cassette)


@pytest.fixture
def cassette(client, tmp_path):
    """The file to which the client records."""
    client.mode, client.cassette = "record", tmp_path / "c.jsonl"
    return client.cassette


def replayed(cassette):
    return ask(llm.Client("http://x", cassette=cassette))


def test_record_then_replay(server, client, cassette):
    server.script = ["refuse"]
    with pytest.raises(StudyError, match="refused"):
        ask(llm.Client(client.base_url, mode="off", cassette=cassette))  # keeps no fault
    assert not cassette.exists()
    assert not holds_replies(cassette)
    server.seen.clear()
    assert ask(client) == ask(client) == "hello"
    assert len(server.seen) == 1
    assert replayed(cassette) == "hello"
    with pytest.raises(StudyError, match="no recorded reply"):
        llm.Client("http://x", cassette=cassette).chat("m", [{"role": "user", "content": "something else"}])


def test_a_recorded_fault_is_replayed_and_asked_again(server, client, cassette):
    server.script = ["broken"] * 6
    for _ in range(2):
        with pytest.raises(llm.EndpointError, match="3 attempts"):
            ask(client)
    (line,) = cassette.read_text().splitlines()  # the same fault says nothing new
    entry = json.loads(line)
    assert (set(entry), entry["fault"]) == ({"key", "fault"}, "server_error")
    assert not holds_replies(cassette)
    with pytest.raises(llm.EndpointError, match="failed when this was recorded") as error:
        replayed(cassette)
    assert error.value.kind == "server_error"
    assert ask(client) == "hello"
    # In whatever order a merge puts them: the reply goes before the fault.
    lines = cassette.read_text().splitlines()
    assert holds_replies(cassette)
    for order in (lines, lines[::-1]):
        cassette.write_text("\n".join(order) + "\n")
        assert replayed(cassette) == "hello"


def test_what_was_sent_instead_is_recorded(server, client, cassette):
    server.script = ["terse"] * 3
    limited(client)
    entry = json.loads(cassette.read_text())
    adapted = {"max_tokens": "max_completion_tokens", "temperature": None}
    assert entry["sent"] == adapted
    # The key is that of the request as it was asked, so the replay need not know what an endpoint refuses.
    replay = llm.Client("http://x", cassette=cassette)
    assert limited(replay) == "hello"
    assert replay.adapted == adapted


@pytest.mark.parametrize("said", [{"fault": "laziness"}, {"fault": None}, {}, {"response": 1, "sent": 3}])
def test_unknown_entries_damage_a_cassette(client, cassette, said):
    ask(client)
    cassette.write_text(json.dumps({"key": "0"} | said) + "\n" + cassette.read_text())
    with pytest.raises(StudyError, match="damaged cassette"):
        replayed(cassette)


def test_damaged_cassettes(server, client, cassette):
    ask(client)
    whole = cassette.read_text()
    # A recording that was stopped in the middle of a line goes on; the torn line is an error once lines follow it.
    cassette.write_text(whole + whole[:40])
    assert replayed(cassette) == "hello"
    assert limited(llm.Client(client.base_url, mode="record", cassette=cassette)) == "hello"
    assert cassette.read_text().count("\n") == 3
    cassette.write_text(whole[:40] + "\n" + whole)
    with pytest.raises(StudyError, match="damaged cassette") as error:
        replayed(cassette)
    assert error.value.row == "line 1"
    path, body, _ = server.seen[0]
    request = {"path": path.removeprefix("/v1/"), "body": body}
    assert llm.key(request) == llm.key(dict(reversed(request.items()))) == json.loads(whole)["key"]
