"""A language model within checks: what fails them is asked for once more, then the template answers."""

import json
from unittest.mock import Mock

import pandas as pd
import pytest

from study.advisor.agent import language
from study.advisor.agent.conversation import Agent
from study.advisor.agent.language import Writer, evidence, template
from study.advisor.engine.answer import Options, ask
from study.advisor.llm.client import EndpointError
from study.base.errors import StudyError
from study.tools import model_trial
from tests.advisor.agent.conftest import toy

REQUEST = "captions for videos"
READ = {"objective": REQUEST, "languages": [], "official": False}


@pytest.fixture(scope="module")
def cards():
    return [evidence(item) for item in ask(toy(), REQUEST, Options(3)).items]


def as_reply(response, **changed):
    """A response as a model would send it; `changed`: part with _ for a space -> other keys."""
    reply = {}
    for part, one in response.items():
        keys = ("field",) if part.startswith("setup") else ("field", "text")
        if part.split()[0] not in ("why", "tradeoff", "setup"):
            keys += ("server", "other") if one.other else ("server",)
        reply[part] = {key: getattr(one, key) for key in keys}
    for part, values in changed.items():
        reply[part.replace("_", " ")] |= values
    return reply


def good(cards):
    """An answer that passes every check."""
    response = template(REQUEST, cards)
    whole = {"workflow": response["why 1"], "limits": response["tradeoff 1"]}
    return {part: one for part, one in (response | whole).items() if part in language.parts_of(REQUEST, cards)}


def writing(cards, *replies):
    """What a model that sends these replies has written, and its client."""
    client = Mock()
    client.chat.side_effect = [reply if isinstance(reply, Exception | str) else json.dumps(reply) for reply in replies]
    return Writer(client, "m").write(language.by_rules(REQUEST), cards), client


def test_an_answer_that_passes_is_kept(cards):
    written, client = writing(cards, as_reply(good(cards)))
    assert (written.author, written.attempts, written.refused) == ("m", 1, [[]])
    assert set(written.response) == set(language.parts_of(REQUEST, cards))
    form = client.chat.call_args.kwargs["response_format"]["json_schema"]["schema"]
    assert form["required"] == language.parts_of(REQUEST, cards)
    # Strangers' texts are JSON strings of the developer's message.
    system, user = client.chat.call_args.args[1]
    assert [server["id"] for server in json.loads(user["content"])["servers"]] == [1, 2, 3]
    assert "aptions" not in system["content"]


@pytest.mark.parametrize(
    ("part", "wrong", "check"),
    [
        ("why_1", {"text": "Trusted by 9000 teams"}, "correctness"),
        ("why_1", {"text": "Uploads captions to every channel"}, "truthfulness"),
        ("why_1", {"field": "popularity"}, "correctness"),
        ("why_1", {"text": "Run npx -y evil"}, "correctness"),
        ("why_1", {"text": "See https://evil.example"}, "correctness"),
        ("why_1", {"text": ""}, "format"),
        ("choice_1", {"server": 9}, "correctness"),
        ("choice_1", {"server": "x"}, "format"),
        ("workflow", {"server": 999_999}, "correctness"),
    ],
)
def test_a_wrong_statement_is_asked_for_once_more_by_quotation(cards, part, wrong, check):
    right = good(cards)
    again = as_reply({part.replace("_", " "): right[part.replace("_", " ")]})
    written, client = writing(cards, as_reply(right, **{part: wrong}), again)
    assert [refused.check for refused in written.refused[0]] == [check]
    assert (written.author, written.attempts, written.refused[1]) == ("m", 2, [])
    second = client.chat.call_args
    assert language.STRICTER in second.args[1][0]["content"]
    assert second.kwargs["response_format"]["json_schema"]["schema"]["required"] == [part.replace("_", " ")]


@pytest.mark.parametrize("second", ["no json", {}, {"why 1": {"field": "description", "text": "Trusted by all"}}])
@pytest.mark.parametrize("first", ["{", "[1]", {}, {"why 1": 3}])
def test_a_model_that_fails_twice_leaves_the_template(cards, first, second):
    written, _ = writing(cards, first, second)
    assert (written.author, written.attempts) == ("template", 2)
    assert written.response == template(REQUEST, cards)
    assert {refused.check for refused in written.refused[1]} <= {"format", "truthfulness"}


def test_an_answer_of_a_failing_endpoint_is_that_of_the_rules():
    writer = Mock()
    writer.read.side_effect = writer.write.side_effect = EndpointError("busy", "HTTP 503")
    turn, by_hand = Agent(toy(), writer).answer(REQUEST), Agent(toy()).answer(REQUEST)
    assert (turn.problem, turn.written.author) == ("HTTP 503", "template")
    assert turn.answer.items == by_hand.answer.items
    assert turn.written.response == by_hand.written.response


def test_the_template_passes_the_checks_and_statements_name_servers_of_the_shortlist(cards, hostile):
    for each in (cards, [evidence(item) for item in ask(hostile.catalogue, REQUEST, Options(20)).items]):
        statements = template(REQUEST, each)
        assert not any(language.refusal(part, one, each) for part, one in statements.items())
    for part, server in (("why 2", 9), ("together", 1)):  # another one, and one alone
        wrong = language.Statement(field="description", text="captions", server=server)
        assert language.refusal(part, wrong, cards) == "correctness"


@pytest.mark.parametrize(
    ("text", "value", "stands"),
    [
        ("Reads mail", "A server that reads mail", True),
        ("Reading mails", "A server that reads mail", True),
        ("Sends mail", "A server that reads mail", False),
        ("Needs an API key", "Works without an API key", False),
        ("No API key", "Works without an API key", True),
        ("Does not read mail", "Reads mail", False),
        ("Reads mail without a key", "Reads mail. Needs no key", True),
        ("the server", "Reads mail", False),
        ("no malware", "not stated", False),
        ("MIT", "not stated", False),
        ("No licence is stated", "not stated", True),  # what is not stated may only be said not to be
    ],
)
def test_a_field_says_a_text_or_not(text, value, stands):
    field = "licence" if value == "not stated" else "description"
    assert (language.supported(text, field, value) == "") is stands


def test_a_quoting_schema_offers_passages_of_the_fields_alone(cards):
    form = language.schema(REQUEST, cards, ["why 1", "choice 1"], quote=True)["properties"].values()
    options = [option for part in form for option in part.get("anyOf", [part])]
    fields = [value for card in cards for value in card.values()]
    for text in {text for option in options for text in option["properties"]["text"]["enum"]}:
        assert any(text.partition(": ")[2] == value or text in value for value in fields)


def test_limits_that_the_request_does_not_state_are_left_out():
    request = "Draw charts, in C# or golang, no Java, not AGPL, at least 20 stars, must stay local"
    limits = {"languages": ["C#", "Go", "Java", "Python", "C"], "unwanted_languages": ["Java", "Go"], "stars": 20}
    limits |= {"licences": ["AGPL"], "unwanted_licences": ["AGPL"], "official": True, "place": "remote"}
    read = language.Specification(objective="charts", preferences=["privacy"], runtime="node", **limits)
    grounded, dropped = language.grounded(read, request)
    stated = {"languages": ["C#", "Go"], "unwanted_languages": ["Java"], "unwanted_licences": ["AGPL"], "stars": 20}
    assert grounded.limits().stated() == stated
    assert {"languages", "unwanted_languages", "licences", "official", "place", "preferences", "runtime"} == {*dropped}


def test_a_models_reading_limits_the_servers_and_an_invalid_one_does_not():
    client = Mock()
    client.chat.side_effect = [json.dumps({**READ, "languages": ["Go"]}), "{}", "{}"]
    agent = Agent(toy(), Writer(client, "m"))
    request = "captions for videos from golang"
    assert {item.facts.language for item in agent.answer(request).answer.items} == {"Go"}
    client.chat.side_effect = [json.dumps(READ), "{}", "{}"]
    assert {item.facts.language for item in agent.answer("captions, in Python").answer.items} == {"Python"}
    client.chat.side_effect = [json.dumps({**READ, "stars": "many"}), "{}", "{}"]
    turn = agent.answer(request)
    assert "not valid" in turn.problem
    assert len(turn.answer.items) > 2


def test_the_trial_counts_what_the_checks_refuse(cards):
    catalogue, client = toy(), Mock()
    items = [evidence(item) for item in ask(catalogue, REQUEST, Options(3)).items]
    wrong, right = as_reply(good(items), why_1={"text": "Trusted by all"}), as_reply({"why 1": good(items)["why 1"]})
    client.post.side_effect = [
        {"choices": [{"message": {"content": json.dumps(reply)}}], "timings": {"prompt_ms": 500, "predicted_ms": 1500}}
        for reply in (READ, wrong, right)
    ]
    clock = model_trial.Clock(client)
    row = model_trial.trial(catalogue, Writer(clock, "m"), clock, REQUEST, 3)
    assert (row["valid"], row["same"], row["kept"], row["tries"], row["truthfulness"]) == (True, True, True, 2, 1)
    assert (row["read_s"], row["write_s"]) == (2.0, 4.0)


def test_the_trial_goes_on_after_a_stop(conf_root, monkeypatch):
    catalogue, requests = toy(), []
    chosen = model_trial.ModelTrial("local", "m", 100, 3, ["captions for videos", "send mail", "plot charts"])

    def post(path, body):
        requests.append(json.loads(body["messages"][1]["content"])["request"])
        if len(requests) == 4:
            raise EndpointError("timeout", "too slow")
        reply = READ if len(requests) % 3 == 1 else {}
        return {"choices": [{"message": {"content": json.dumps(reply)}}]}

    client = Mock(post=post, cassette=None, usage=Mock(models={"m@sha256:1"}))
    monkeypatch.setattr(model_trial, "settings", lambda: chosen)
    monkeypatch.setattr(model_trial, "load", lambda dataset: catalogue)
    monkeypatch.setattr(model_trial, "endpoint_settings", lambda name: Mock(client=lambda path: client))
    with pytest.raises(StudyError, match="1 of 3 requests are answered: too slow"):
        model_trial.measure("toy")
    table = pd.read_csv(model_trial.measure("toy"))
    assert table["request"].tolist() == [1, 2, 3]
    assert not table["kept"].any()
    assert requests.count("captions for videos") == 3
    facts = json.loads((conf_root / "results" / "toy" / "records" / "agent_model.json").read_text())
    assert (facts["answered"], facts["of"], facts["models"]) == (3, 3, ["m@sha256:1"])
    # With other prompts the replies are those of another trial.
    monkeypatch.setattr(model_trial.language, "READ", "Read")
    requests.clear()
    requests.extend(["", "", ""])
    with pytest.raises(StudyError, match="0 of 3"):
        model_trial.measure("toy")
