"""The lexical probe: its requests in every form, how they are counted, its settings, and the committed table."""

import re
from pathlib import Path

import pandas as pd
import pytest

from study.advisor.retrieval.names import key
from study.analysis import framework
from study.analysis.framework import load_settings
from study.analysis.usefulness import other_requests as nav
from study.base import paths
from study.base.errors import UnavailableError
from study.base.settings import build_settings
from study.config.compose import load
from study.evaluation.records import read_record
from tests.analysis import toys

FOLDER = paths.results("task2mcp") / "usefulness"
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
    return build_settings(nav.Navigational, VALUES | changes, Path("navigational.yaml"))


SETTINGS = settings()


def test_what_the_catalogue_can_answer_is_asked_in_every_form():
    asked = nav.all_forms(SETTINGS, SERVERS)
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
    asked_twice = nav.all_forms(settings(requests=2), SERVERS)
    assert (asked_twice["form"] == nav.WRITTEN).sum() == 2
    texts = asked["request"].tolist()
    assert nav.unlabelled("asked", SERVERS, texts).tasks["description"].tolist() == texts


def test_the_first_server_is_looked_at_and_counted_by_form_and_kind(new_results, monkeypatch):
    first = [[row] for row in (2, 1, 3, 0, 5, 4, 5, 1)]
    monkeypatch.setattr(nav, "first_rows", lambda *given: first)
    table = asked(new_results, monkeypatch, toy(), systems=["tfidf"]).set_index("form").drop(columns="system")
    shown = {form: table.loc[form].to_numpy().tolist() for form in table.index.unique()}
    assert shown == {
        "as written": [["all", 3, pytest.approx(2 / 3)], ["chat", 2, 0.5], ["maps", 1, 1.0]],
        "lower case": [["all", 3, pytest.approx(1 / 3)], ["chat", 2, 0.5], ["maps", 1, 0.0]],
        "word is not the tool": [["all", 2, 0.5], ["place", 1, 1.0], ["company", 1, 0.0]],
    }
    assert list(shown) == sorted(shown)


def toy():
    return toys.toy([{"description": "unused"}] * 2, [[], []], 6, dict(enumerate(SERVERS.to_dict("records"))))


def asked(new_results, monkeypatch, data, **changes):
    monkeypatch.setattr(framework, "load_settings", lambda kind: settings(**changes))
    monkeypatch.setattr(framework.datasets, "load", lambda name: data)
    (path,) = framework.run_analyses(["usefulness/navigational"], load(["dataset=synthetic"]))
    assert path == new_results / "usefulness" / "navigational_queries.csv"
    return pd.read_csv(path)


def test_a_system_that_reads_words_is_led_by_them_in_every_form(new_results, monkeypatch):
    table = asked(new_results, monkeypatch, toy())
    settings = read_record(new_results / "usefulness" / "navigational.json")["settings"]
    assert settings["navigational"]["requests"] == 3
    table = table.set_index(["system", "form", "kind"])["first_bears_word"]
    # Every word stands in its servers' texts and in no other, so a cosine of words puts one of them first each time.
    for form in (nav.WRITTEN, nav.LOWER, nav.NOT_THE_TOOL):
        assert table["tfidf", form, "all"] == 1.0
    assert len(table) == 2 * 9


def test_a_catalogue_without_these_names_keeps_its_table(new_results, monkeypatch):
    nameless = {"kinds": {}, "not_the_tool": {}}
    with pytest.raises(UnavailableError, match="no server bears a name"):
        asked(new_results, monkeypatch, toy(), **nameless)


def test_no_committed_request_asks_something_else_than_it_seems_to():
    chosen = load_settings(nav.Navigational)
    assert all(nav.SLOT in sentence for kind in chosen.kinds.values() for sentence in kind["sentences"])
    others = [entry for entries in chosen.not_the_tool.values() for entry in entries]
    assert all(key(own["word"]) and re.search(rf"(?<!\w){re.escape(own['word'])}(?!\w)", own["text"]) for own in others)
    assert len({own["text"] for own in others}) == len(others)


def test_the_committed_table_meets_the_goal_and_holds_every_request():
    chosen = load_settings(nav.Navigational)
    table = pd.read_csv(FOLDER / "navigational_queries.csv")
    found = table[table["kind"] == "all"].set_index(["system", "form"])
    assert found.loc[("field_dense", nav.WRITTEN), "first_bears_word"] >= 0.95
    others = sum(map(len, chosen.not_the_tool.values()))
    wanted = {nav.WRITTEN: chosen.requests, nav.LOWER: chosen.requests, nav.NOT_THE_TOOL: others}
    assert found["requests"].to_dict() == {(name, form): wanted[form] for name in chosen.systems for form in wanted}


@pytest.mark.mirror
def test_the_real_catalogue_bears_the_words_that_are_asked_for(task2mcp):
    chosen, servers = load_settings(nav.Navigational), task2mcp.data.servers
    forms = nav.all_forms(chosen, servers)["form"].tolist()
    assert forms.count(nav.WRITTEN) == forms.count(nav.LOWER) == chosen.requests
    assert forms.count(nav.NOT_THE_TOOL) == sum(map(len, chosen.not_the_tool.values()))
    calendar = pd.date_range("2026-01-01", "2026-12-31")
    dated = {"time": [{"word": word, "text": word} for word in {*calendar.month_name(), *calendar.day_name()}]}
    assert nav.NOT_THE_TOOL not in set(nav.all_forms(settings(not_the_tool=dated), servers)["form"])
