"""What a request is read as, with the words of a small catalogue, and the limits that its clauses state."""

import pytest

from study.advisor.engine import request
from study.advisor.engine.facts import Facts
from study.advisor.engine.limits import Limits, read_limits
from study.advisor.engine.request import conversions, reversed_only, understand, vocabulary
from study.advisor.saved.settings import Answering

SETTINGS = Answering.read()
TWO = ("JavaScript", "TypeScript")  # the languages of a package of npm
STARS = {"at least 1,000": 1000, "more than 2,500": 2500, "with 2 500": 2500, "2_500+": 2500, "2\u202f500": 2500}
STARS |= {"2'500": 2500, "9,999,999": 9_999_999, "1.5k": 1500, "at least 10 K": 10_000, "2500": 2500, "250000": 250_000}
NO_STARS = ("2,50", "1,5k", "2.500", "1.5", "10,000,000", "99999999", "1,2,3", "2,5000", "1.5.2k", "-5")
# Ten servers hold each of these words.
KNOWN = vocabulary(
    ["query a PostgreSQL database slack slow screenshots of web pages to the event put an pdf text"] * 10
)


@pytest.mark.parametrize(
    ("request_", "known", "read"),
    [
        ("qery a postgers databse", KNOWN, "query a PostgreSQL database"),
        ("query a slow database", KNOWN, "query a slow database"),
        ("put an event to gcal", KNOWN, "put an event to Google Calendar (gcal)"),
        ("screenshots of web pages from Claude", KNOWN, "screenshots of web pages"),
        ("query Claude's database", KNOWN, "query Claude's database"),
        ("eine PostgreSQL-Datenbank abfragen", KNOWN, "PostgreSQL"),
        ("asdfghjkl qwerty", KNOWN, ""),
        ("query a database at night", KNOWN, "query a database at night"),  # no typos
        # A small catalogue says nothing of words.
        ("md2pdf", {}, "markdown to pdf"),
        ("PDF2Text now", {}, "pdf to text now"),
        ("h2o", {}, "h2o"),
        ("qery a databse", {}, "qery a databse"),
    ],
)
def test_a_request_is_read_as_what_servers_know(request_, known, read):
    understood = understand(request_, known, SETTINGS)
    assert understood.text == read
    changed = read not in (request_, "", "PostgreSQL")
    assert bool(understood.notes) == changed  # what was replaced is said
    assert "at night" not in request_ or understood.unknown == ("at", "night")  # English words that no server holds


@pytest.mark.parametrize(
    "words",
    [[f"databs{number:x}e" for number in range(1_800)], ["query"] * 400 + ["databse"] * 9],
    ids=["all mistyped", "mistyped at the end"],
)
def test_a_long_request_is_looked_up_within_bounds(monkeypatch, words):
    looked_up = []
    monkeypatch.setattr(request, "get_close_matches", lambda word, *_, **__: looked_up.append(word) or [])
    understood = understand(" ".join(words)[:19_000], KNOWN, SETTINGS)
    lost = len(words) > 1_000
    assert (len(looked_up), understood.partly) == (20 if lost else 0, lost)


WISHES = {"a popular slack server": ("popular",), "official, well-maintained slack server": ("official", "maintained")}


@pytest.mark.parametrize("request_", [*WISHES, "unofficial slack server", "not official slack"])
def test_wishes_are_told_from_the_task(request_):
    understood = understand(request_, {}, SETTINGS)
    assert understood.wishes == WISHES.get(request_, ())
    assert "popular" not in understood.text


CONVERSIONS = {
    "Markdown to PDF": [("markdown", "pdf")],
    "convert docx files into a PDF": [("word", "pdf")],
    "pdf2md": [("pdf", "markdown")],
    "read a PDF": [],
    "a text-to-speech interface, PNG -> SVG": [("text", "speech"), ("image", "svg")],
    "text to speech and speech to text": [("text", "speech"), ("speech", "text")],
}
MAKERS = ["Markdown to PDF: print-ready PDFs", "Create professional PDF invoices", "Word files, converting them to PDF"]
READERS = ["Extract text from PDF files", "PDF to Markdown and Markdown to PDF", "Send mail"]


def test_conversions_have_a_direction():
    assert {text: conversions(text, SETTINGS.formats) for text in CONVERSIONS} == CONVERSIONS
    # A server that only makes PDF answers no request to read one.
    assert [reversed_only(text, ("pdf", "text"), SETTINGS.formats) for text in MAKERS] == [True] * 3
    assert [reversed_only(text, ("pdf", "text"), SETTINGS.formats) for text in READERS] == [False] * 3


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
        # The last clause holds.
        ("plan a trip, in Go, any language", "plan a trip", {}),
        ("plan a trip, no Go, MIT, any language", "plan a trip", {"licences": ["MIT"]}),
        ("plan a trip, any language, in Go", "plan a trip", {"languages": ["Go"]}),
        ("plan a trip, in Go or Lua, no golang", "plan a trip", {"languages": ["Lua"], "unwanted_languages": ["Go"]}),
        ("plan a trip, mit, not MIT", "plan a trip", {"unwanted_licences": ["MIT"]}),
        # Licences are compared as those of servers: a name without a version is every version.
        ("plan, Apache-2.0 or MIT, not Apache", "plan", {"licences": ["MIT"], "unwanted_licences": ["Apache"]}),
        ("plan, Apache 2.0, no Apache-2.0", "plan", {"unwanted_licences": ["Apache-2.0"]}),
        ("plan, Apache, not Apache-2.0", "plan", {"licences": ["Apache"], "unwanted_licences": ["Apache-2.0"]}),
        ("plan, GPL, not AGPL", "plan", {"licences": ["GPL"], "unwanted_licences": ["AGPL"]}),
        ("plan a trip, anything but Go", "plan a trip", {"unwanted_languages": ["Go"]}),
        ("plan a trip, never in Go", "plan a trip", {"unwanted_languages": ["Go"]}),
        ("plan a trip, runs on Node.js 20.1", "plan a trip", {"runtime": "Node.js 20.1"}),
        ("plan a trip, under Deno, Java 17", "plan a trip", {"runtime": "Java 17"}),
        ("plan a trip, deno", "plan a trip, deno", {}),
        ("in Go, MIT", "", {"languages": ["Go"], "licences": ["MIT"]}),
        ("Call an API, JavaScript or TypeScript", "Call an API", {"languages": [*TWO]}),
        # A number is read whole, or not at all, and no comma within one parts clauses.
        *((f"play, {said} stars", "play", {"stars": number}) for said, number in STARS.items()),
        *((f"play, {said} stars", f"play, {said} stars", {}) for said in NO_STARS),
        ("Read 1,000 files,in Go,2,500 stars", "Read 1,000 files", {"languages": ["Go"], "stars": 2500}),
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


@pytest.mark.parametrize(
    ("limits", "known", "allowed"),
    [
        ({"languages": ["golang"]}, {"languages": ("Go",)}, True),
        ({"languages": ["Go"]}, {"languages": ("Rust",)}, False),
        ({"languages": ["Go"]}, {}, False),
        ({"unwanted_languages": ["Go"]}, {}, True),
        ({"unwanted_languages": ["go"]}, {"languages": ("Go",)}, False),
        *(
            ({"languages": [name]}, {"languages": TWO}, True)
            for name in (*TWO, "ts", "Go or TypeScript", " or ".join(TWO))
        ),
        ({"languages": ["Go"]}, {"languages": TWO}, False),
        # It may be written in the other one, as a server of unknown language may.
        ({"unwanted_languages": [TWO[0]]}, {"languages": TWO}, True),
        ({"unwanted_languages": [*TWO]}, {"languages": TWO}, False),
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
    assert Limits(**limits).allow(Facts("", "", "", **known)) is allowed


@pytest.mark.parametrize(
    ("earlier", "later", "stated"),
    [
        ({"unwanted_licences": ["Apache", "GPL"]}, {"licences": ["Apache 2.0"]}, {"unwanted_licences": ["GPL"]}),
        ({"licences": ["gpl 3.0", "MIT"]}, {"unwanted_licences": ["GPL"]}, {"licences": ["MIT"]}),
        ({"licences": ["Apache"]}, {"unwanted_licences": ["Apache-2.0"]}, {"licences": ["Apache"]}),
        ({"unwanted_languages": ["golang", "R"]}, {"languages": ["Go"]}, {"unwanted_languages": ["R"]}),
    ],
)
def test_later_limits_take_back_those_that_they_contradict(earlier, later, stated):
    assert Limits(**earlier).with_(Limits(**later)).stated() == stated | later


@pytest.mark.parametrize(("wanted", "unwanted"), [("Apache-2.0", "apache"), ("Apache 2.0", "Apache-2.0")])
def test_a_licence_is_not_wanted_and_unwanted_at_once(wanted, unwanted):
    with pytest.raises(ValueError, match=wanted):
        Limits(licences=[wanted], unwanted_licences=[unwanted])


def test_what_no_field_answers_is_said():
    limits = Limits(languages=["Go"], platforms=["Linux"], runtime="Node 20", preferences=["privacy"])
    assert limits.notes()[0] == "limits: language: Go"
    assert [note.endswith("the catalogue does not tell") for note in limits.notes()] == [False, True, True, True]
    assert not Limits(platforms=["Linux"]).filters()
