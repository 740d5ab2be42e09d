"""A language model within checks: what fails them is asked for once more, then the template answers."""

import json
from unittest.mock import Mock

import pandas as pd
import pytest

from study.advisor.agent import language
from study.advisor.agent.conversation import Agent, in_words
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


def reading(**values):
    """The toy agent with a model that reads these values out of every request and writes no answer that stands."""

    def chat(name, messages, **how):
        return json.dumps(READ | values) if messages[0]["content"] == language.READ else "{}"

    return Agent(toy(), Writer(Mock(chat=chat), "m"))


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


def test_the_template_prefers_only_by_what_is_stated_and_tells_servers_of_one_name_apart():
    rows = [[1, "Mail", "Reads mail", "Go", "mit", "", 9, "", ""], [2, "Mail", "", "Go", "mit", "", 3, "", ""]]
    items = ask(toy(rows), "mail", Options(2)).items
    assert [item.server.server_id for item in items] == [1, 2]
    pair = [evidence(item) for item in items]
    assert not {"choice 1", "choice 2"} & template("mail", pair).keys()
    chosen = template("mail", [pair[0], pair[1] | {"licence": "gpl-3.0"}])
    assert [chosen[f"choice {n}"].text for n in (1, 2)] == ["9 stars", "licence: gpl-3.0"]
    assert in_words("choice 2", chosen["choice 2"], items) == "If you prefer “licence: gpl-3.0”, take Mail (number 2)"


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
        # A number or a quantifier in words is a statement, and so is a verb.
        ("Sixty tools read mail", "A server that reads mail", False),
        ("Two servers read mail", "A server that reads mail", False),
        ("Only server that reads mail", "A server that reads mail", False),
        ("Reads every mail", "A server that reads mail", False),
        ("Reads most mail", "A server that reads mail", False),
        ("Always reads mail", "A server that reads mail", False),
        ("Over 5 mails", "A server that reads 5 mails", False),
        ("Under 5 mails", "A server that reads 5 mails", False),
        ("Under 5 mails", "A server that reads under 5 mails", True),
        ("Finds mail", "A server that reads mail", False),
        ("Reads mail of the system", "A server that reads mail", False),
        ("Cant read mail", "A server that reads mail", False),
        ("Reads all mail", "A server for all mail that it reads", True),
        ("Under the MIT licence", "MIT", True),
        ("Under GPL", "MIT", False),
    ],
)
def test_a_field_says_a_text_or_not(text, value, stands):
    field = "licence" if value in ("not stated", "MIT") else "description"
    assert language.supported(text, field, value) is stands


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
    request = "captions for videos from golang"
    for agent, words, language_ in (
        (reading(languages=["Go"]), request, "Go"),
        (reading(), "mail, in Python", "Python"),
    ):
        assert {item.facts.language for item in agent.answer(words).answer.items} == {language_}
    for odd in ({"stars": "many"}, {"licences": ["permissive"]}, {"unwanted_licences": ["copyleft"]}):
        turn = reading(**odd).answer(f"{request}, permissive licence, no copyleft")
        assert "not valid" in turn.problem
        assert len(turn.answer.items) > 2
    # Of a request that is nothing but a limit, neither makes one.
    assert reading(languages=["Go"]).answer("Go").answer.limits.stated() == {}


@pytest.mark.parametrize(
    ("request_", "model", "stated"),
    [
        ("captions, in Python or Go", {"languages": ["Python"]}, {"languages": ["Python", "Go"]}),
        ("captions, self-hosted", {"place": "remote"}, {"place": "local"}),
        ("captions, no Java", {"unwanted_languages": [], "languages": ["Java"]}, {"unwanted_languages": ["Java"]}),
        ("captions, at least 5 stars", {"stars": 0, "official": True}, {"stars": 5}),
        ("captions from Go, MIT", {"languages": ["Go"], "licences": []}, {"languages": ["Go"], "licences": ["MIT"]}),
    ],
)
def test_what_the_rules_read_stands(request_, model, stated):
    turn = reading(**model).answer(request_)
    assert (turn.specification.limits().stated(), turn.problem) == (stated, "")


@pytest.mark.parametrize(
    ("words", "name", "value", "kept"),
    [
        ("from Python", "languages", ["Python"], True),
        *(
            (f"{no} Python", name, ["Python"], name == "unwanted_languages")
            for no in ("never", "anything but", "not in", "other than", "that are not written in", "which isn't")
            for name in ("languages", "unwanted_languages")
        ),
        ("not in Java or Python", "languages", ["Python"], False),
        ("of a class of Python, but never Python servers", "languages", ["Python"], False),
        ("without a key. In Python", "languages", ["Python"], True),
        ("that are non-official", "official", True, False),
        ("of a self-hosted server", "place", "remote", False),
        ("of a self-hosted server", "place", "local", True),
        ("of a self hosted server", "place", "remote", False),
        ("of a hosted server", "place", "remote", True),
        ("by Cloudflare", "place", "remote", False),
        ("of breakfast", "preferences", ["latency"], False),
        ("on Node 20", "runtime", "Node 20", True),
        ("on Node 20", "runtime", "Node 22", False),
        ("in Go", "runtime", "Go", False),  # a language alone
        ("from Windows", "domain", "Windows", True),
        # A denial of less is none of the number or of the version.
        ("with not less than 500 stars", "stars", 500, True),
        ("with no fewer than 500 stars", "stars", 500, True),
        ("no older than Node 20", "runtime", "Node 20", True),
        ("not on Node 20", "runtime", "Node 20", False),
        # A number stands as it is written, and whole.
        ("with 2,500 stars", "stars", 2500, True),
        ("with 2 500 stars", "stars", 2500, True),
        ("with 1.5k stars", "stars", 1500, True),
        ("with 10 K stars", "stars", 10_000, True),
        ("with 2,500 stars", "stars", 500, False),
        ("with 1.5k stars", "stars", 1, False),
        ("with 2500 stars", "stars", 250, False),
        # Denials cancel each other.
        *(
            (f"with {no} {value}", f"{un}{name}", [value], not un)
            for no, name, value in [
                ("no language other than", "languages", "Python"),
                ("nothing other than", "licences", "MIT"),
                ("no code except", "languages", "Go"),
                ("never anything but", "languages", "Go"),
            ]
            for un in ("", "unwanted_")
        ),
        (", not only Python but also Go", "languages", ["Python", "Go"], True),
        (", not only Python", "languages", ["Python"], False),
        (", not only official servers", "official", True, False),
        # Only what is denied by itself or in a list is unwanted.
        ("without a key in Python", "unwanted_languages", ["Python"], False),
        ("not only Python", "unwanted_languages", ["Python"], False),
        ("I do not mind Python", "unwanted_languages", ["Python"], False),
        ("not in Java or Python", "unwanted_languages", ["Python"], True),
        ("no Java/ Python", "unwanted_languages", ["Python"], True),
        ("neither C++ nor Python", "unwanted_languages", ["Python"], True),
        ("which do not use Python", "unwanted_languages", ["Python"], True),
        ("not under GPL or MIT", "unwanted_licences", ["GPL", "MIT"], True),
        ("of non-Python servers", "unwanted_languages", ["Python"], True),
        ("that come quickly", "preferences", ["latency"], True),
        ("that come faster", "preferences", ["latency"], True),
        ("with no need to be fast", "preferences", ["latency"], False),
    ],
)
def test_a_limit_is_kept_as_the_request_states_it(words, name, value, kept):
    read = language.Specification(objective="captions", **{name: value})
    grounded, dropped = language.grounded(read, f"captions {words}")
    assert (getattr(grounded, name) == value, dropped) == (kept, [] if kept else [name])


@pytest.mark.parametrize("themes", [(), ("Windows", "Marketing")])
def test_a_domain_is_a_theme_where_the_model_knows_themes_and_is_not_told_otherwise(monkeypatch, themes):
    catalogue, given = toy(), []
    recommend = catalogue.model.recommend
    monkeypatch.setattr(catalogue.model, "themes", themes, raising=False)
    monkeypatch.setattr(
        catalogue.model, "recommend", lambda text, **more: given.append(more.get("theme")) or recommend(text, **more)
    )
    monkeypatch.setattr(catalogue.model, "warnings", lambda text, **attributes: [*attributes])
    agent = Agent(catalogue)
    answer = agent.answer(REQUEST, stated=language.Limits(domain="Windows")).answer
    used = "Windows" if themes else None
    assert {*given} == {used}
    assert answer.warnings == (("theme",) if themes else ())
    assert [note.endswith("the catalogue does not tell") for note in answer.notes] == [not themes]
    assert agent.about["themes"] == [*themes]


def test_a_runtime_is_answered_whoever_reads_it():
    by_model = reading(runtime="Node 20").answer("captions with Node 20 for videos").answer
    by_hand = Agent(toy()).answer("captions for videos, on Node 20").answer
    assert by_model.notes == by_hand.notes == ("runtime: Node 20: the catalogue does not tell",)
    assert [item.server.server_id for item in by_hand.items][:2] == [11, 17]


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
