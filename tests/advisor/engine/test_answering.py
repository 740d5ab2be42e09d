"""What stands around a ranking, with a model whose order and closeness are stated."""

import re
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pandas as pd
import pytest

from study.advisor.engine.answer import Options, better_known, fitting_alone
from study.advisor.engine.answer import ask as answer_of
from study.advisor.engine.catalogue import Catalogue
from study.advisor.engine.facts import Facts, first_sentence, prior
from study.advisor.engine.limits import Limits
from study.advisor.engine.render import lines
from study.advisor.saved.contract import Recommendation, require_request
from study.advisor.saved.settings import Answering, BetterKnown, Filtered
from study.base.errors import StudyError

SETTINGS = replace(Answering.read(), large=3)
LONG = "Sends messages to the channels of a workspace, and reads their history"


@dataclass(eq=False)
class Stated:
    """Ranks its servers in the order of the table; every request has the same closeness."""

    servers: pd.DataFrame
    near: float = 1.0
    standardised: bool = True
    title = caption = "stated"

    def recommend(self, text, *, k, **attributes):
        require_request(text, k, len(self.servers))
        rows = self.servers.head(k).to_dict("records")
        return [
            Recommendation(rank + 1, row["id"], row["name"], row["url"], row["score"], dict(row["parts"]), row["text"])
            for rank, row in enumerate(rows)
        ]

    def closeness(self, text, nearest):
        return "minilm", self.near

    def warnings(self, text, **attributes):
        return [f"{name} has no effect" for name, value in attributes.items() if value]


def ask(system, request, facts, settings, *, with_prior=True, **more):
    """What a toy answers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Answering, "read", lambda: settings)
        return answer_of(Catalogue("toy", "stated", system, facts), request, Options(prior=with_prior, **more))


def model(*rows, **more):
    """Servers of (name, score, facts); the facts come with the model."""
    table = pd.DataFrame(
        {"id": number, "name": name, "url": "", "description": f"{name} reads mail", "score": score, "parts": {}}
        for number, (name, score, _) in enumerate(rows)
    )
    facts_by_id = [replace(facts, does=name) for name, _, facts in rows]
    return Stated(table.assign(text=table["description"]), **more), lambda item: facts_by_id[item.server_id]


NONE = Facts("", "", "")
SEVERAL = (("one", 3.0, NONE), ("two", 2.9, replace(NONE, stars=9999)), ("three", 1.0, replace(NONE, stars=9999)))


def names(answered):
    return [one.server.name for one in answered.items]


def test_one_name_in_a_repository_of_several_servers_is_one_server():
    several = ("Tavily", 3.0), ("tavily-mcp", 2.0), ("Tavily MCP Server", 1.5), ("Tavily maps", 1.0), ("mcp-server", 0)
    system, _ = model(*((name, score, NONE) for name, score in several))
    descriptions = {1: "Searches", 2: "Finds"}

    def facts(item):
        return replace(NONE, id=item.name, does=descriptions.get(item.server_id, ""))

    assert len(ask(system, "reads mail", facts, SETTINGS, k=5).items) == 5  # no repository is named
    system.servers["url"] = "https://github.com/tavily-ai/tavily-mcp"
    items = ask(system, "reads mail", facts, SETTINGS, k=5).items
    assert [one.server.name for one in items] == ["Tavily", "Tavily maps", "mcp-server"]
    assert items[0].same == ("tavily-mcp", "Tavily MCP Server")
    assert items[0].facts.does == "Searches"


def test_a_repository_that_has_moved_is_shown_once():
    places = "https://github.com/old/pdf-reader-mcp", "https://github.com/new/PDF-reader-mcp/"
    for stars, count in (((162, 162), 1), ((162, 161), 2), ((9, 9), 2)):
        facts = [replace(NONE, address=address, stars=own) for address, own in zip(places, stars, strict=True)]
        system, facts_of = model(("PDF", 2.0, facts[0]), ("Reader", 1.0, facts[1]))
        assert len(ask(system, "reads mail", facts_of, SETTINGS).items) == count


def test_the_prior_decides_among_about_equal_servers_and_is_a_component():
    system, facts = model(*SEVERAL)
    assert names(ask(system, "reads mail", facts, SETTINGS, k=3, with_prior=False)) == ["one", "two", "three"]
    answered = ask(system, "reads mail", facts, SETTINGS, k=3)
    assert names(answered) == ["two", "one", "three"]
    for one in answered.items:
        before = system.servers.loc[one.server.server_id, "score"]
        assert one.server.score == pytest.approx(before + sum(one.server.parts.values()), abs=1e-5)
    assert [one.server.rank for one in answered.items] == [1, 2, 3]


def test_a_much_better_known_server_below_is_named_if_it_fits_by_itself():
    """Names and stars in order; one that may not be named is passed over, and so is a known one among those shown."""
    rule = BetterKnown(times=10, stars=100)
    for stars, sound, note in (
        ([9, 5, 95, 300, 200], [True, True, True], ["much better known, in place 4: d (300 stars)"]),
        ([9, 5, 95, 300, 200], [True, False, True], ["much better known, in place 5: e (200 stars)"]),
        ([9, 5, 95, 300, 200], [True, False, False], []),  # 95 are ten times nine, and fewer than 100
        ([9, 31, 95, 300, 200], [True, True, True], []),
        ([0, 0], [], []),
    ):
        assert better_known(list("abcde"), stars, sound, rule) == note


def test_what_is_much_better_known_is_said_unless_the_prior_is_off_or_it_does_not_fit():
    system, facts = model(("one", 9.0, NONE), ("two", 8.0, NONE), ("three", 6.0, replace(NONE, stars=900)))

    def said(**more):
        return [note for note in ask(system, "reads mail", facts, SETTINGS, k=2, **more).notes if "known" in note]

    assert len(said()) == 1
    assert said(with_prior=False) == []
    system.servers.loc[2, "score"] = 3.5  # less than 0.4 of the best
    assert said() == []


def test_the_shares_of_the_prior_add_up_to_its_weight():
    best = replace(NONE, stars=SETTINGS.prior.full, official=True, vouched=("docker",))
    assert sum(prior(best, SETTINGS.prior).values()) == pytest.approx(SETTINGS.prior.weight)
    assert prior(replace(best, marks=("archived",)), SETTINGS.prior)["aside"] < 0
    assert prior(NONE, SETTINGS.prior) == {}


def test_nothing_fits_below_the_threshold_or_without_a_known_word():
    for near, fits in ((0.0, False), (SETTINGS.fit["minilm"], True)):
        system, facts = model(*SEVERAL, near=near)
        answered = ask(system, "reads mail", facts, SETTINGS, k=2)
        assert (answered.fits, len(answered.items)) == (fits, 2 * fits)
        assert len(ask(system, "reads mail", facts, SETTINGS, k=2, unfit=True).items) == 2
    answered = ask(system, "zzgh wqpoz", facts, SETTINGS, k=2)
    assert (answered.fits, "'zzgh', 'wqpoz'" in answered.notes[0]) == (False, True)


RULE = Filtered(best=4, share=0.75, letters=3, score=0.4)
# Three of the first four hold "mail", two hold "read": the request is about mail.
TOLD = ["Reads mail", "Read e-mail", "Sends MAIL", "Calls", "mailing lists", "Reads maps", "mail"]


@pytest.mark.parametrize(
    ("request_", "scores", "fits"),
    [
        ("read a mail", [10, 9, 8, 7, 6, 5, 3.9], "yyynynn"),
        ("read a mail", [10, 9, 8, 7, 6, 5, 4], "yyynyny"),
        ("to do it", [10, 9, 8, 7, 6, 5, 3.9], "yyyyyyn"),  # no word long enough: the score alone
        ("fly", [10, 3, 3, 3, 3, 3, 3], "ynnnnnn"),
        ("mail", [], ""),
    ],
)
def test_a_server_fits_by_its_score_and_the_words_that_the_best_share(request_, scores, fits):
    assert fitting_alone(request_, scores, TOLD[: len(scores)], RULE) == [mark == "y" for mark in fits]


def test_what_is_said_of_a_wish_is_of_the_servers_that_are_shown(monkeypatch):
    """A grader that turns the order round: the last two are shown, and stars are known for one of them."""
    rows = [(name, float(5 - n), replace(NONE, stars=n or None)) for n, name in enumerate("vwxyz")]
    rows[3] = ("y", 2.0, NONE)
    system, facts = model(*rows)
    grader = SimpleNamespace(
        weight=99.0, part="stub", named="stub", grades=lambda _, some: {s.server_id: s.rank for s in some}
    )
    monkeypatch.setattr("study.advisor.saved.grading.Grader.configured", lambda: grader)
    answered = ask(system, "popular mail", facts, SETTINGS, with_prior=False, k=2, rerank="llm")
    assert {*names(answered)} == {"z", "y"}
    (note,) = answered.notes
    assert re.findall(r"\d+", note) == ["1", "2"]


def test_a_filter_leaves_servers_that_fit_and_says_how_many_it_left_out():
    """The best two read mail; what a filter leaves of them is named, and nothing else in their place."""
    system, facts = model(("one", 10.0, NONE), ("two", 9.0, NONE), ("three", 8.0, NONE), ("four", 3.0, NONE))
    system.servers.loc[2, "text"] = "three draws maps"
    settings = replace(SETTINGS, filtered=replace(RULE, best=2, share=1.0))

    def asked(*kept, **more):
        def facts_of(item):
            return replace(facts(item), licence="MIT" if item.name in kept else "ISC")

        return ask(system, "reads mail", facts_of, settings, k=3, limits=Limits(licences=["MIT"]), **more)

    answered = asked("two", "three", "four")
    assert (names(answered), answered.fits, answered.left_out) == (["two"], True, 1)
    answered = asked("three", "four")
    assert (names(answered), answered.fits, answered.left_out) == ([], False, 2)
    answered = asked("three", "four", unfit=True)
    assert (names(answered), answered.fits, answered.left_out) == (["three", "four"], False, 2)
    assert ask(system, "reads mail", facts, settings, k=3).left_out == 0
    # Too small a catalogue tells nothing: the filter alone decides.
    settings = replace(settings, large=9)
    answered = asked("three", "four")
    assert (names(answered), answered.fits, answered.left_out) == (["three", "four"], True, 2)


@pytest.mark.parametrize(
    ("request_", "option", "shown", "warned"),
    [
        ("reads mail, in Python", "", ["py"], False),
        ("reads mail, in Python", "golang", ["go"], False),
        ("reads mail, no Go", "Go", ["go"], False),
        ("reads mail, in Rust", "Python or Go", ["py", "go"], False),
        ("reads mail, at least 0 stars", "Go", ["py", "go"], True),  # the request limits no language
    ],
)
def test_a_stated_language_overrules_the_clauses_of_the_request(request_, option, shown, warned):
    system, facts = model(
        *((name, 1.0, replace(NONE, languages=(of,))) for name, of in (("py", "Python"), ("go", "Go")))
    )
    answered = ask(system, request_, facts, SETTINGS, attributes={"language": option})
    assert (names(answered), bool(answered.warnings)) == (shown, warned)


def test_without_a_number_all_servers_of_a_small_catalogue_answer():
    for size, count in ((1, 1), (3, 3), (7, 5)):
        system, facts = model(*((f"server {number}", 9.0 - number, NONE) for number in range(size)))
        assert len(ask(system, "reads mail", facts, replace(SETTINGS, large=99)).items) == count
        with pytest.raises(StudyError, match="the size of the catalogue"):
            ask(system, "reads mail", facts, SETTINGS, k=size + 1)


def test_a_server_is_shown_once():
    system, facts = model(*SEVERAL, ("four", 0.5, NONE))
    system.servers.loc[[0, 3], "text"] = LONG, f"{LONG.upper()}."
    answered = ask(system, "reads mail", facts, SETTINGS, k=4, with_prior=False)
    assert names(answered) == ["one", "two", "three"]
    assert answered.items[0].same == ("four",)
    where = replace(NONE, address="github.com/o/n")
    system, facts = model(("a", 2.0, where), ("b", 1.0, where), ("c", 0.0, NONE))
    assert names(ask(system, "reads mail", facts, SETTINGS, k=3)) == ["a", "c"]


@pytest.mark.parametrize(
    ("request_", "first", "by"),
    [
        ("FOUR!", "Four", "its name"),
        ("four servers", "one", ""),
        ("get_Mail", "three", "its tool"),
        ("getInvoice", "two", "its tool"),
        ("get mail", "one", ""),  # words, not the name of a tool
        ("mail", "one", ""),  # a tool, but one word says what is to be done
        ("One", "one", "its name"),  # a name goes before a tool
    ],
)
def test_a_server_whose_name_or_tool_is_the_whole_request_comes_first(request_, first, by):
    system, facts = model(*SEVERAL, ("Four", 0.0, NONE))
    system.servers["tools"] = ["", "getInvoice, mail, ONE", "getmail, get_mail", ""]
    settings = replace(SETTINGS, pool=2)
    answered = ask(system, request_, facts, settings, k=2, with_prior=False)
    assert names(answered)[0] == first
    parts = answered.items[0].server.parts
    assert {name: value for name, value in parts.items() if name.startswith("its ")} == ({by: 20.0} if by else {})
    # A name is an answer even where nothing else is close.
    system.near = 0.0
    assert by == "its tool" or ask(system, request_, facts, settings, k=2).fits == (by == "its name")


def test_wishes_reorder_and_say_what_the_data_cannot():
    system, facts = model(("one", 3.0, NONE), ("two", 2.0, replace(NONE, official=True)), ("three", 1.0, NONE))
    answered = ask(system, "official, well-maintained: reads mail", facts, SETTINGS, k=3)
    assert names(answered)[0] == "two"
    assert [note.partition(":")[0] for note in answered.notes] == ["official", "maintained"]


@pytest.mark.parametrize(
    ("name", "text", "mark"),
    [
        ("SSH Key Exfiltration via MCP Tool Poisoning", "This repository demonstrates a security vulnerability", True),
        ("MCP Poisoning Attack - PoC", "", True),
        ("Reader", "A deliberately vulnerable MCP server", True),
        ("MCP-Shield", "Scans your servers and detects vulnerabilities like tool poisoning attacks", False),
        ("OSV", "Access the Open Source Vulnerabilities database", False),
    ],
)
def test_attack_demonstrations_are_told_from_defences_and_named_so(name, text, mark):
    marks = SETTINGS.marks_of(name, text)
    assert ("attack demonstration" in marks) == mark
    system, facts = model((name, 1.0, replace(NONE, marks=marks)))
    printed = lines(ask(system, "x", facts, SETTINGS, k=1).items, 200)
    assert ("[ATTACK DEMONSTRATION]" in printed[0]) == mark
    assert len(printed) == 2


def test_one_sentence_says_what_a_server_does():
    first = {"A Model Context Protocol server that reads mail. It is new.": "Reads mail.", "": ""}
    first |= {
        "An MCP server to search papers": "Search papers",
        "Reads e.g. mail\nand more": "Reads e.g. mail and more",
    }
    assert [first_sentence(text) for text in first] == [*first.values()]
