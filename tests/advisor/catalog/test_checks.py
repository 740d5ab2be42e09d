"""What npm and pip say of a package, what a start leaves behind, and what an answer then shows."""

import io
import json
import os
import zipfile
from dataclasses import replace

import pytest

from study.advisor.catalog import archived, checks
from study.advisor.catalog.checks import Check
from study.advisor.catalog.merge import servers
from study.advisor.catalog.records import Package, Reader, Remote
from study.advisor.catalog.start import known_start, start
from study.advisor.catalog.trust import in_words, trust
from study.advisor.engine.facts import Shelf
from study.advisor.gateway import live
from study.advisor.gateway.client_config import Endpoint
from study.advisor.gateway.connection import Listing
from study.advisor.gateway.live import lacks, starts
from study.base.errors import StudyError
from tests.advisor.catalog.conftest import DAY
from tests.advisor.catalog.sources import ORDER, record, row, toolsdk_entry, toolsdk_files

pytestmark = pytest.mark.usefixtures("conf_root")
NPM = {"version": "1.2.3", "repository.url": "git+https://github.com/O/N.git", "deprecated": "use m", "bin": {"x": "x"}}
NPM |= {"time": {"1.2.2": "2024-05-06T01:02:03.004Z", "1.2.3": "2025-06-07T01:02:03.004Z"}}
THERE, MISSING = json.dumps(NPM), json.dumps({"error": {"code": "E404", "summary": "Not Found"}})
ONE = '{"version": "1.0.0"'
LINKS = ("Home, https://n.example", "Bugs, https://github.com/O/no", "Source Code, https://github.com/O/N/tree/main/x")
NOWHERE = "ERROR: No matching distribution found for n\n"
A, B = Package("npm", "a", "1.0.0", vouched=True), Package("npm", "b", vouched=True)
C = Package("pypi", "c", "1.0", vouched=True)
WORKS = Listing("a", tools=({"name": "t"},), seconds=1.0)


def wheel(*scripts, links=LINKS, size=1, name="n-1.5.dist-info", needs=()):
    """A wheel with these programs."""
    packed = io.BytesIO()
    about = ["Name: n\nVersion: 1.5\n", *(f"Project-URL: {link}\n" for link in links)]
    about = "".join([*about, *(f"Requires-Dist: {need}\n" for need in needs), "\nVersion: 6\n" * size])
    programs = "".join(f"{script} = n:main\n" for script in scripts)
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{name}/METADATA", about)
        archive.writestr(f"{name}/entry_points.txt", f"[console_scripts]\n{programs}[x]\n")
        archive.writestr("../../entry_points.txt", "[")
    return packed.getvalue()


@pytest.mark.parametrize(
    ("kind", "answer", "expected"),
    [
        ("npm", (THERE, ""), Check(DAY, True, "1.2.3", "2025-06-07", "github.com/o/n", "use m")),
        ("npm", ('"0.1.4"', ""), Check(DAY, True, "0.1.4")),
        ("npm", (f'{ONE}, "time": {{"1.0.0": "$(id)"}}}}', ""), Check(DAY, True, "1.0.0", library=True)),
        ("npm", (f'{ONE}, "time": [1], "bin": "x"}}', ""), Check(DAY, True, "1.0.0", library=True)),
        (
            "npm",
            (f'{ONE}, "bin": {{"; id": 1, "a": 1, "my-mcp": 1}}}}', ""),
            Check(DAY, True, "1.0.0", binary="my-mcp"),
        ),
        ("npm", (f'{ONE}, "bin": {{"a": "x", "n": "x"}}}}', ""), Check(DAY, True, "1.0.0")),
        ("npm", (MISSING, "npm error code E404"), Check(DAY, found=False)),
        ("npm", ('{"error": {"code": "ECONNREFUSED"}}', "npm error code ECONNREFUSED"), None),
        ("npm", ("", "npm error"), None),
        ("pypi", ("n (1.5)\nAvailable versions: 1.5, 1.4\n", ""), Check(DAY, True, "1.5")),
        ("pypi", ("", NOWHERE), Check(DAY, found=False)),
        ("pypi", ("", "WARNING: Retrying (Retry(total=0)) after connection broken\n" + NOWHERE), None),
        # A wheel is read and not run.
        ("pypi", wheel("n", "other"), Check(DAY, True, "1.5", "", "github.com/o/n")),
        ("pypi", wheel("a", "N-MCP"), Check(DAY, True, "1.5", "", "github.com/o/n", binary="N-MCP")),
        ("pypi", wheel("$(id)", "-x"), Check(DAY, True, "1.5", "", "github.com/o/n", library=True)),
        ("pypi", wheel("n", links=("x", "Home, https://n.example", "")), Check(DAY, True, "1.5")),
        ("pypi", wheel("n", size=10**6), None),
        ("pypi", wheel("n", name="data/n.dist-info"), None),
        ("pypi", wheel("n")[:-40], None),
        ("pypi", b"slow", None),
    ],
    ids=range(20),
)
def test_only_an_index_that_answers_says_what_a_package_is(answers, kind, answer, expected):
    answers["n"] = answer
    if expected is not None:
        assert checks.ask(kind, "n") == expected
        return
    with pytest.raises(StudyError, match=kind):
        checks.ask(kind, "n")


def test_settings_of_the_present_folder_do_not_choose_the_registry(tmp_path, monkeypatch):
    program = tmp_path / "bin" / "npm"
    program.parent.mkdir()
    program.write_text("""#!/bin/sh\ntest -e .npmrc && echo '"6.6.6"' || echo '"1.0.0"'\n""")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    (tmp_path / ".npmrc").write_text("registry=https://stranger.example\n")
    monkeypatch.chdir(tmp_path)
    assert checks.ask("npm", "n").version == "1.0.0"


@pytest.mark.parametrize(
    ("needs", "within"),
    [
        (["httpx>=0.2", "mcp[cli]>=1.6.0,!=1.7", "fastmcp (>=2.3)"], ("mcp~=1.6", "fastmcp~=2.3")),
        (["mcp>=1.2", 'mcp>=1.2; extra == "x"'], ("mcp~=1.2",)),
        (["mcp", "mcp>=1,<2", "mcp==1.9", "mcp~=1.2", "mcp<3", "mcp @ file:///x", "; $(id)", "mcp-x>=1.0"], ()),
    ],
)
def test_a_server_keeps_to_the_library_it_was_written_for(answers, needs, within):
    answers["n"] = wheel("n", needs=needs)
    assert checks.ask("pypi", "n").within == within
    server = row(Package("pypi", "n", vouched=True))
    command = start(server)
    assert command.args == (*(word for bound in within for word in ("--with", bound)), "n@1.5")
    assert known_start(server) == command
    # The start of it is noted of this package.
    assert list(starts([Endpoint("a", "uvx", command.args)], [Listing("a", problem="died")])) == ["pypi:n"]


def test_the_program_of_a_package_is_started_and_a_library_never(answers):
    programs = {"version": "1.0.0", "bin": {"b": "x", "a-mcp": "x"}}
    answers |= {"a": (json.dumps(programs), ""), "n": wheel("n-mcp"), "l": wheel()}
    checks.ask_all([("npm", "a"), ("pypi", "n"), ("pypi", "l")])
    library, other = Package("pypi", "l", "1.0", vouched=True), Package("pypi", "n", "1.0.0", vouched=True)
    assert start(row(A)).args == ("-y", "-p", "a@1.0.0", "a-mcp")
    assert start(row(library, other)).args == ("--from", "n==1.0.0", "n-mcp")
    assert start(row(replace(library, binary="l"))).args == ("--from", "l==1.0", "l")
    assert known_start(row(library)) is None
    with pytest.raises(StudyError, match="l on pypi has no program"):
        start(row(library))


def test_checks_are_kept_by_package_and_a_start_beside_them(answers):
    answers |= {"a": (THERE, ""), "b": (MISSING, "x")}
    problems = checks.ask_all([("npm", "a"), ("npm", "b"), ("npm", "c"), ("oci", "d"), ("npm", "a")])
    assert [problem.reason.startswith("npm cannot be asked for c") for problem in problems] == [True]
    seen = {"started": "2026-01-03", "tools": 4, "seconds": 1.5}
    checks.note({"npm:a": seen})
    checks.ask_all([("npm", "a")])
    there = Check(DAY, True, "1.2.3", "2025-06-07", "github.com/o/n", "use m", **seen)
    assert checks.read_checks() == {"npm:a": there, "npm:b": Check(DAY, found=False)}
    by_package = trust(row(replace(A, version=""), Package("npm", "z")))["checks"]
    assert {key: (item["version"], item["tools"]) for key, item in by_package.items()} == {"npm:a": ("1.2.3", 4)}
    # A missing package is no way to start, and another way comes first.
    with pytest.raises(StudyError, match="npm has no package b"):
        start(row(B))
    assert (known_start(row(B)), start(row(B, C)).method) == (None, "pypi")
    facts = Shelf(servers([record("toolsdk", "k", packages=(B,))], ORDER, {}), None).of_catalogue(0)
    assert (facts.start, f"NOT ON NPM ({DAY})" in facts.checked) == ("", True)
    checks._file().write_text('{"npm:a": {"colour": 1}}')
    with pytest.raises(StudyError, match=r"checks\.json"):
        checks.read_checks()


@pytest.mark.parametrize(("place", "shown"), [("O/N", True), ("evil/n", False)])
def test_an_unverified_package_is_shown_only_where_it_names_the_same_repository(answers, place, shown):
    answers["a"] = THERE.replace("O/N", place), ""
    server = row(Package("npm", "a"))
    assert known_start(server, claimed=True) is None
    checks.ask_all(checks.packages_of([server]))
    command = known_start(server, claimed=True)
    assert (command is not None) == shown
    assert known_start(server) is None
    with pytest.raises(StudyError, match="not verified"):
        start(server)
    assert ("THE PACKAGE NAMES github.com/evil/n" in in_words(trust(server))) != shown
    if command is not None:
        assert (command.args, command.vouched) == (("-y", "a@1.2.3"), ())


def test_an_unverified_package_of_another_repository_starts_only_where_it_is_named(answers):
    answers |= {"slack": (THERE.replace("O/N", "evil/slack"), ""), "own": wheel("own")}
    foreign, own = Package("npm", "slack", "9.9.9"), Package("pypi", "own", "1.5")
    with pytest.raises(StudyError, match=r"slack on npm is of github\.com/evil/slack, not of"):
        start(row(foreign), unverified=True)
    assert start(row(foreign), method="npm", unverified=True).args == ("-y", "slack@9.9.9")
    checks._file().unlink()
    assert start(row(foreign, own), unverified=True).args == ("own@1.5",)
    # What names no repository, or cannot be asked, stays what it is: not verified.
    assert start(row(Package("npm", "unasked", "1.0.0")), unverified=True).vouched == ()
    # A source that vouches is believed, since repositories move.
    assert start(row(replace(foreign, vouched=True))).args == ("-y", "slack@9.9.9")


def test_a_start_is_noted_of_what_a_catalogue_can_name():
    endpoints = [
        Endpoint("a", "npx", ("-y", "@o/n@1.2.3", "--root", "/secret")),
        Endpoint("b", "/usr/bin/uvx", ("O_n",)),
        Endpoint("c", "docker", ("run", "-i", "--rm", "-e", "KEY", "mcp/n:1"), {"KEY": "hunter2"}),
        Endpoint("d", url="https://x.y/mcp?key=hunter2", transport="http"),
        Endpoint("e", "python", ("server.py",)),
        Endpoint("f", "npx", ("-y", "failed")),
    ]
    listings = [Listing(item.name, tools=({"name": "t"}, {"name": "u"}), seconds=1.234) for item in endpoints[:-1]]
    noted = starts(endpoints, [*listings, Listing("f", problem="died")])
    assert list(noted) == ["npm:@o/n", "pypi:o-n", "oci:mcp/n", "https://x.y/mcp", "npm:failed"]
    assert [(item["tools"], item["seconds"]) for item in list(noted.values())[:4]] == [(2, 1.23)] * 4
    assert list(noted["npm:failed"]) == ["failed", "lacks"]
    checks.note(noted)
    away = Remote("http", "https://x.y/mcp", vouched=True)
    assert list(checks.of(row(Package("npm", "@o/n", vouched=True), away))) == ["npm:@o/n", away.url]


def test_a_failed_start_is_noted_until_one_succeeds(answers, monkeypatch):
    monkeypatch.setattr(live, "today", lambda: "2026-03-04")
    endpoint = Endpoint("a", "npx", ("-y", "a"))
    for listing in (WORKS, Listing("a", problem="died")):
        checks.note(starts([endpoint], [listing]))
    # The earlier start stays beside it, each with its day.
    assert checks.of(row(A)) == {"npm:a": Check(started="2026-03-04", tools=1, seconds=1.0, failed="2026-03-04")}
    facts = Shelf(servers([record("toolsdk", "k", packages=(Package("npm", "a"),))], ORDER, {}), None)
    assert "2026-03-04" in facts.of_catalogue(0).checked
    checks.note(starts([endpoint], [WORKS]))
    assert checks.read_checks()["npm:a"].failed == ""


@pytest.mark.parametrize(
    ("problem", "names"),
    [
        ("Error: SLACK_BOT_TOKEN and SLACK_TEAM_ID are required (ERR_INVALID_ARG, MODULE_NOT_FOUND)", 2),
        ("set A_A, A_B, A_C or A_D; A_A is missing", 3),
        ("Missing required argument: --project-id Usage: x --project-id <id> [--location <l>]", 1),
        ("--for and --with-x; --secret required", 0),
        ("bad HUNTER_2: KEY_ONE does not take <KEY_TWO>", 0),
        (f"{'A_' * 40}A is missing, ENOENT, a_b, A_", 0),
    ],
)
def test_what_a_failing_program_lacks_is_named_and_never_a_value(answers, problem, names):
    endpoint = Endpoint("a", "npx", ("-y", "a", "--for", "<KEY_TWO>"), {"KEY_ONE": "x HUNTER_2"})
    checks.note(starts([endpoint], [Listing("a", problem=problem)]))
    named = lacks(endpoint, problem)
    assert len(named.split(", ") if named else []) == names
    assert named in in_words(trust(row(A)))
    assert "HUNTER_2" not in json.dumps(trust(row(A)))
    checks.note(starts([endpoint], [WORKS]))
    assert checks.read_checks()["npm:a"].lacks == ""


@pytest.mark.parametrize(
    ("validated", "failed"), [({"validated": False}, ["toolsdk"]), ({"validated": True}, []), ({}, [])]
)
def test_what_a_source_could_not_start_says_so(validated, failed):
    """Of toolsdk: false is a try in vain, nothing is no try."""
    files = toolsdk_files({"a": toolsdk_entry("a-mcp", "https://github.com/o/a")})
    files["indexes/packages-list.json"] = json.dumps({"a": {"category": "c", "path": "c/a.json"} | validated})
    records = archived.toolsdk({name: text.encode() for name, text in files.items()}, Reader("toolsdk", 99, 9), 9999)
    table = servers(records, ORDER, {})
    server = table.iloc[0].to_dict()
    assert trust(server)["failed"] == failed
    assert (Shelf(table, None).of_catalogue(0).checked != "") == bool(failed)
    assert json.loads(server["packages"])[0]["vouched"] == (["toolsdk"] if validated.get("validated") else [])
    # Another entry of the same package, which that source did start.
    again = servers([*records, record("toolsdk", "b", "github.com/o/a", "a-mcp")], ORDER, {})
    assert [trust(each)["failed"] for each in again.to_dict("records")] == [[]]
