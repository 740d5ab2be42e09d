"""What is known of a server: from the catalogue, from Task2MCP, and across both by repository."""

import pandas as pd
import pytest

from study.advisor.catalog import checks
from study.advisor.catalog.merge import servers
from study.advisor.catalog.start import start
from study.advisor.engine.answer import Item
from study.advisor.engine.facts import Shelf
from study.advisor.engine.limits import read_limits
from study.advisor.engine.render import in_short, install_hint
from study.advisor.saved.contract import Recommendation
from study.base.errors import StudyError
from tests.advisor.catalog.sources import ORDER, record


def catalogue():
    records = [
        record(
            "toolsdk", "pdf", "github.com/o/pdf", "pdf-mcp", description="An MCP server that reads PDF files. More."
        ),
        record("toolsdk", "mail", "github.com/o/mail", "mail-mcp", vouched=False, description="Sends mail"),
        record("toolsdk", "old", "github.com/o/servers-archived", description="Reads files"),
        *(record("docker", f"m{n}", "github.com/o/many", f"@o/m{n}", description=f"Does {n}") for n in range(4)),
    ]
    return servers(records, ORDER, {})


def dataset():
    columns = ["id", "name", "url", "description", "stars_count", "license_clean", "language_tokens", "is_official"]
    rows = [
        (7, "PDF", "https://github.com/O/pdf/", "PDF of the release", 90, "mit", "Python, Shell", True),
        (8, "PDF again", "https://github.com/o/pdf", "The same", 80, "mit", "Python", False),
        (9, "Many", "https://github.com/o/many/tree/main/src/m1", "One of many", 5, "other", "", False),
    ]
    return pd.DataFrame(rows, columns=columns)


def row(table, identifier):
    return table.index[table["id"] == identifier][0]


@pytest.fixture
def shelf():
    return Shelf(catalogue(), dataset())


def test_a_server_of_the_catalogue_has_the_stars_of_its_repository(shelf):
    facts = shelf.of_catalogue(row(shelf.catalogue, "o/pdf"))
    assert (facts.does, facts.stars, facts.official, facts.language) == ("Reads PDF files.", 90, True, "Python")
    assert (facts.start, facts.vouched) == ("npx -y pdf-mcp@1.0.0", ("toolsdk",))
    assert facts.sources["stars"] == "task2mcp"
    assert facts.sources["start"].startswith("toolsdk 20")  # with the date of its archive


def test_a_server_of_the_data_set_has_the_start_of_its_repository(shelf):
    facts = shelf.of_task2mcp(7)
    assert (facts.id, facts.does, facts.start) == ("o/pdf", "PDF of the release", "npx -y pdf-mcp@1.0.0")
    assert facts.address == shelf.of_task2mcp(8).address  # one server, listed twice
    # A folder of a repository is not the repository.
    assert shelf.of_task2mcp(9).id == ""
    # What nobody vouches for has no start, and archives are marked.
    facts = shelf.of_catalogue(row(shelf.catalogue, "o/mail"))
    assert (facts.start, facts.stars, facts.official) == ("", None, None)
    assert shelf.of_catalogue(row(shelf.catalogue, "o/servers-archived")).marks == ("archived",)
    # Servers that share a repository are not one.
    many = shelf.catalogue.index[shelf.catalogue["repository"] == "github.com/o/many"]
    assert [shelf.of_catalogue(label).address for label in many] == [""] * 4
    # Without data the name alone speaks.
    facts = Shelf(None, None).of_task2mcp(3, "Vulnerable MCP Server", "Breaks.")
    assert (facts.does, facts.marks, facts.stars) == ("Breaks.", ("attack demonstration",), None)


def test_a_package_of_npm_is_within_either_language_and_printed_with_both():
    table = catalogue()
    facts = Shelf(table, None).of_catalogue(row(table, "o/pdf"))
    assert facts.languages == ("JavaScript", "TypeScript")
    both = "JavaScript or TypeScript"
    assert (facts.language, facts.data()["language"], both in in_short(facts)) == (both, both, True)
    assert "languages" not in facts.data()
    for named in ("TypeScript", "javascript", both, f"in {both}"):
        read = read_limits(f"send mail, {named}")
        assert (read.text, read.limits.allow(facts)) == ("send mail", True)
    assert not read_limits("send mail, in Go").limits.allow(facts)


def test_status_and_last_update_name_their_source_with_its_date():
    old = {"status": "deprecated", "updated": "2026-01-02T03:04:05Z"}
    entries = [record(source, "k", f"github.com/{source}/k", **old) for source in ("official", "toolhive")]
    shelf = Shelf(servers(entries, ORDER, {}), None)
    facts = shelf.of_catalogue(row(shelf.catalogue, "official/k"))
    assert (facts.status, facts.updated) == ("deprecated", "2026-01-02")
    assert (facts.sources["status"], facts.sources["updated"]) == ("official", "official")
    assert {"deprecated (official)", "updated 2026-01-02 (official)"} < set(in_short(facts))
    assert shelf.of_catalogue(row(shelf.catalogue, "toolhive/k")).sources["status"].startswith("toolhive 20")


@pytest.mark.parametrize(("name", "asks"), [("o/pdf", False), ("o/mail", True)])
def test_the_install_command_of_an_answer_is_one_that_install_takes(conf_root, monkeypatch, name, asks):
    check = {"asked": "2026-01-02", "version": "1.0.0", "repository": "github.com/o/mail"}
    checks.note({"npm:mail-mcp": check})
    monkeypatch.setattr(checks, "ask_all", lambda packages: [])
    table = catalogue()
    server = {"id": 0, "name": name, "url": "", "description": "", "language": ""}
    item = Item(Recommendation.of(1, server, 1.0, {}), Shelf(table, None).of_catalogue(row(table, name)))
    assert item.facts.start
    assert ("--unverified" in install_hint([item])) == asks
    whole = table.loc[row(table, name)].to_dict()
    assert start(whole, unverified=asks).command == "npx"
    if asks:
        with pytest.raises(StudyError, match="not verified"):
            start(whole)
