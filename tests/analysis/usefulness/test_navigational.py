"""The lexical probe: its requests in every form, how they are counted, its settings, and the committed table."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from study import paths
from study.analysis.usefulness import other_requests as nav
from study.analysis.usefulness import parts
from study.analysis.usefulness.parts import conf, run_part
from study.config.reader import build_settings, read_settings
from study.data import dataset as datasets
from study.errors import StudyError
from study.evaluation.records import read_record
from tests.analysis import toys

FOLDER = paths.results("task2mcp") / "usefulness"
NAMES = ["Slack MCP Server", "Memory Server", "Slack Search", "Google Maps", "Google", "Paris Weather"]
SERVERS = pd.DataFrame({"name": NAMES, "description": [f"It serves {name}." for name in NAMES], "id": range(6)})
VALUES = {
    "seed": 0,
    "requests": 3,
    "top1": 0.95,
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
    assert [(query.form, query.kind, query.text, query.bearers) for query in asked] == [
        ("as written", "chat", "Post to Slack", (0, 2)),
        ("as written", "chat", "Slackers read Slack daily", (0, 2)),
        ("as written", "maps", "Route with Google Maps", (3,)),
        ("lower case", "chat", "Post to slack", (0, 2)),
        ("lower case", "chat", "Slackers read slack daily", (0, 2)),
        ("lower case", "maps", "Route with google maps", (3,)),
        ("word is not the tool", "place", "A Story about Paris", (5,)),
        ("word is not the tool", "company", "What Google paid in fines", (3, 4)),
    ]
    asked_twice = nav.all_forms(settings(requests=2), SERVERS)
    assert [query.form for query in asked_twice].count(nav.WRITTEN) == 2
    texts = [query.text for query in asked]
    assert nav.unlabelled("asked", SERVERS, texts).tasks["description"].tolist() == texts


def test_the_first_server_is_looked_at_and_ties_follow_the_order():
    asked = nav.all_forms(SETTINGS, SERVERS)
    scores = np.zeros((8, 6), dtype=np.float32)
    scores[np.arange(8), [2, 1, 3, 0, 5, 4, 5, 1]] = 1
    found = nav.first_bears_word(scores, asked, np.arange(6))
    assert found.tolist() == [True, False, True, True, False, False, True, False]
    tied = np.zeros((8, 6), dtype=np.float32)
    assert nav.first_bears_word(tied, asked, np.array([4, 0, 1, 2, 3, 5])).tolist() == [False] * 7 + [True]
    table = nav.shares(found, asked).set_index("form")
    shown = {form: table.loc[form].to_numpy().tolist() for form in table.index.unique()}
    assert shown == {
        "as written": [["all", 3, pytest.approx(2 / 3)], ["chat", 2, 0.5], ["maps", 1, 1.0]],
        "lower case": [["all", 3, pytest.approx(1 / 3)], ["chat", 2, 0.5], ["maps", 1, 0.0]],
        "word is not the tool": [["all", 2, 0.5], ["place", 1, 1.0], ["company", 1, 0.0]],
    }
    assert table.index.tolist() == sorted(table.index)


def toy():
    return toys.toy([{"description": "unused"}] * 2, [[], []], 6, dict(enumerate(SERVERS.to_dict("records"))))


def test_a_system_that_reads_words_is_led_by_them_in_every_form():
    table = nav.navigational_table(SETTINGS, toy()).set_index(["system", "form", "kind"])["first_bears_word"]
    # Every word stands in its servers' texts and in no other, so a cosine of words puts one of them first each time.
    for form in (nav.WRITTEN, nav.LOWER, nav.NOT_THE_TOOL):
        assert table["tfidf", form, "all"] == 1.0
    assert len(table) == 2 * 9


def test_the_part_writes_the_table_and_its_record(new_results, monkeypatch):
    monkeypatch.setattr(parts, "read_settings", lambda kind, path: settings(systems=["tfidf"]))
    monkeypatch.setattr(datasets, "load", lambda name: toy())
    (table,) = run_part("navigational")
    assert list(table.columns) == ["system", "form", "kind", "requests", "first_bears_word"]
    assert len(pd.read_csv(new_results / "usefulness" / "navigational_queries.csv")) == len(table)
    facts = read_record(new_results / "usefulness" / "navigational_queries.json")
    assert facts["target"] == 0.95
    assert facts["requests"] == {"as written": 3, "lower case": 3, "word is not the tool": 2}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kinds": {"chat": {"products": ["Slack"]}}}, "missing key 'sentences'"),
        ({"kinds": {"chat": {"products": ["Slack"], "sentences": ["Post it"]}}}, "no product is asked for: Post it"),
        ({"not_the_tool": {"place": [{"word": "Paris"}]}}, "missing key 'text'"),
        ({"not_the_tool": {"place": ["Paris"]}}, r"column not_the_tool.place.0\): 'Paris'"),
        ({"not_the_tool": {"place": [{"word": "Paris", "text": "In Paris", "kind": "city"}]}}, "unknown key 'kind'"),
        ({"not_the_tool": {"place": [{"word": "Paris", "text": "In paris"}]}}, "'Paris' is no name in: In paris"),
        ({"not_the_tool": {"place": [{"word": "Paris", "text": "The Parisians"}]}}, "'Paris' is no name in"),
        # Such a word is left out of every server's name.
        ({"not_the_tool": {"animal": [{"word": "Python", "text": "Feed the Python"}]}}, "'Python' is no name in"),
        ({"not_the_tool": {"place": [{"word": "Paris", "text": "In Paris"}] * 2}}, r"place.1\): asked twice: In Paris"),
    ],
)
def test_settings_that_ask_something_else_are_refused(changes, message):
    with pytest.raises(StudyError, match=message):
        settings(**changes)


def test_the_committed_table_meets_the_goal_and_holds_every_request():
    chosen = read_settings(nav.Navigational, conf("navigational"))
    table = pd.read_csv(FOLDER / "navigational_queries.csv")
    found = table[table["kind"] == "all"].set_index(["system", "form"])
    assert found.loc[("field_dense", nav.WRITTEN), "first_bears_word"] >= chosen.top1
    others = sum(map(len, chosen.not_the_tool.values()))
    wanted = {nav.WRITTEN: chosen.requests, nav.LOWER: chosen.requests, nav.NOT_THE_TOOL: others}
    assert found["requests"].to_dict() == {(name, form): wanted[form] for name in chosen.systems for form in wanted}
    assert read_record(FOLDER / "navigational_queries.json")["target"] == chosen.top1


@pytest.mark.mirror
def test_the_real_catalogue_bears_the_words_that_are_asked_for(task2mcp):
    chosen, servers = read_settings(nav.Navigational, conf("navigational")), task2mcp.data.servers
    forms = [query.form for query in nav.all_forms(chosen, servers)]
    assert forms.count(nav.WRITTEN) == forms.count(nav.LOWER) == chosen.requests
    assert forms.count(nav.NOT_THE_TOOL) == sum(map(len, chosen.not_the_tool.values()))
    calendar = pd.date_range("2026-01-01", "2026-12-31")
    dated = {"time": [{"word": word, "text": word} for word in {*calendar.month_name(), *calendar.day_name()}]}
    forms = [query.form for query in nav.all_forms(settings(not_the_tool=dated), servers)]
    assert nav.NOT_THE_TOOL not in forms
