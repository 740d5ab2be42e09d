"""Syncing small sources: what is merged, what changed, what is lost, and that a failure changes nothing."""

import io
import json
import socket
import subprocess
import sys
from urllib.parse import urlsplit

import pandas as pd
import pytest
import requests

from study.advisor.catalog import store
from study.advisor.catalog.merge import clusters, servers
from study.advisor.catalog.start import start
from study.advisor.catalog.sync import add, remove, sync
from study.base.errors import StudyError
from tests.advisor.catalog.sources import COMMIT, ORDER, killed_at, pin, record, take, toolsdk_entry, toolsdk_files

# Nine levels of nine aliases: 387 million values, if they were written out.
LEVELS = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10))
BOMB = f"a0: &a0 [x]\n{LEVELS}run: {{command: *a9}}\n"
HOSTILE_YAML = [BOMB, "{: [", "[" * 100_000, "a: " + "{a: " * 50_000, "- " * 50_000, "? " * 50_000, "\0"]
HOSTILE_YAML += ["".join(f"\n{' ' * n}a:" for n in range(1500)), "!!python/object/apply:os.system [id]"]
REPO = "github.com/o/n"
# This machine and its network, as addresses name them; x.y is elsewhere, and a.y a stranger's name for this network.
NEAR = "localhost localhost. 127.0.0.1 127.0.0.2 [::1] [::ffff:127.0.0.1] 0.0.0.0 [::] 10.1.2.3 192.168.0.1 172.16.0.1"
NEAR += (
    " 169.254.169.254 100.64.0.1 [fe80::1] [fe80::1%25lo] [fd00::1] 2130706433 0x7f.1 127.0.0.1\\@x.y u:p@127.0.0.1 a.y"
)
NAMED = {"x.y": "8.8.8.8", "a.y": "192.168.0.1"}
OWN = '{"mcpServers": {"a": {"command": "npx", "args": ["x"]}}}'
A, B = record("toolsdk", "a", REPO, "x"), record("toolsdk", "b", REPO, "y")


@pytest.mark.parametrize(
    ("records", "groups"),
    [
        # One repository or one trusted package make one server.
        ([A, record("docker", "b", REPO)], ["ab"]),
        ([A, record("official", "b", "", "x")], ["ab"]),
        ([A, record("docker", "b", "github.com/o/other")], ["a", "b"]),
        ([A, record("docker", "b", REPO, subfolder="src")], ["a", "b"]),
        # A repository of several servers does not join them; by its package each still finds its own.
        ([A, B, record("docker", "c", REPO)], ["a", "b", "c"]),
        ([A, B, record("docker", "c", REPO), record("official", "d", "", "y")], ["a", "bd", "c"]),
        # A claim that nobody checked joins nothing, but the same one twice in a repository is one entry.
        ([A, record("toolsdk", "b", "github.com/evil/n", "x", vouched=False)], ["a", "b"]),
        ([A, record("official", "b", REPO, "evil", owns=False)], ["a", "b"]),
        ([A, record("mine", "b", REPO, "x", vouched=False)], ["a", "b"]),
        ([A, record("toolsdk", "b", REPO, "x", vouched=False)], ["ab"]),
    ],
)
def test_entries_are_one_server_by_repository_or_trusted_package(records, groups):
    assert [{records[row].key for row in rows} for rows in clusters(records)] == [set(group) for group in groups]


def test_fields_come_from_the_first_source_and_say_so():
    long = record("toolsdk", "a", REPO, "x", description="long", licence="MIT", vouched=False)
    row = servers([long, record("docker", "b", REPO, "", description="short", stars=3)], ORDER, {}).iloc[0]
    assert (row["id"], row["name"], row["description"], row["licence"], row["stars"]) == ("o/n", "b", "short", "MIT", 3)
    assert json.loads(row["provenance"])["licence"] == "toolsdk"
    assert json.loads(row["packages"])[0]["vouched"] == []
    assert row["sha256_description"] == "f9b0078b5df596d2ea19010c001bbd009e651de2c57e8fb7e355f31eb9d3f739"  # sha256sum
    # Of a server that one source calls deprecated, the others decide.
    pair = [record("toolhive", "a", REPO, status="deprecated"), record("docker", "b", REPO)]
    row = servers(pair, ORDER, {}).iloc[0]
    assert (row["status"], json.loads(row["notes"])) == ("active", ["toolhive: deprecated"])
    row = servers(pair[:1], ORDER, {}).iloc[0]
    assert (row["status"], row["notes"], json.loads(row["provenance"])["status"]) == ("deprecated", "[]", "toolhive")
    # Ids are unique and stay within their letters.
    records = [record("toolsdk", f"k{i}", REPO, f"p{i}", vouched=i > 1) for i in range(4)]
    assert list(servers(records, ORDER, {})["id"]) == ["npm:p2", "npm:p3", "toolsdk:k0", "toolsdk:k1"]


def test_what_left_its_source_is_a_tombstone_and_a_rename_says_where_it_went(conf_root):
    a, b = record("toolsdk", "a", "github.com/o/a"), record("toolsdk", "b", "github.com/o/b")
    first, _ = take([a, b])
    assert (first["servers"], first["version"]) == (2, "v000001")
    counts, rows = take([record("toolsdk", "a", "github.com/o/c")])
    assert counts["sources"]["toolsdk"].items() >= {"read": 1, "new": 0, "changed": 1, "gone": 1}.items()
    assert list(rows["status"]) == ["gone", "gone", "active"]
    assert (rows.loc["o/a", "moved_to"], rows.loc["o/b", "moved_to"]) == ("o/c", "")
    # Back again: no chain of names is followed, so nothing runs in a circle.
    _, rows = take([a])
    assert (rows.loc["o/c", "moved_to"], rows.loc["o/a", "status"]) == ("o/a", "active")
    with pytest.raises(StudyError, match="no server"):
        store.find("nothing", rows.reset_index())
    assert store.find("o/c", rows.reset_index())["moved_to"] == "o/a"
    # Two entries that swap their names end well.
    take([a, b])
    _, rows = take([record("toolsdk", "a", "github.com/o/b"), record("toolsdk", "b", "github.com/o/a")])
    assert [json.loads(rows.loc[name, "members"])[0][1] for name in ("o/a", "o/b")] == ["b", "a"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("github.com/good/n 1", "github.com/evil/n 1"),
        ("github.com/good/n", "gitlab.com/good/n"),
        ("github.com/good/n 1", ""),
        ("github.com/good/n 1", "github.com/good/n 2"),
        ("github.com/good/n 1", "github.com/good/n"),
    ],
)
def test_a_change_of_owner_is_noted_and_nobody_vouches_any_more(conf_root, before, after):
    def one(at, **more):
        repository, _, number = at.partition(" ")
        _, rows = take([record("official", "a", repository, "x", repository_id=number, **more)], "official")
        (row,) = rows[rows["status"] == "active"].reset_index().to_dict("records")
        return row

    assert one(before)["notes"] == "[]"
    row = one(after)
    assert " changed from " in row["notes"]
    assert json.loads(row["packages"])[0]["vouched"] == []
    with pytest.raises(StudyError, match="changed from"):
        start(row)
    # The note stays, though the owner does not change again.
    assert " changed from " in one(after, description="new")["notes"]


def test_an_entry_that_changed_its_owner_takes_no_place_of_another(conf_root):
    """It names the package of a server that others vouch for, and would give it its own words."""
    take([record("official", "a", "github.com/good/n", "x")], "official")
    take([record("toolsdk", "b", "github.com/good/other", "y", description="true")])
    _, rows = take([record("official", "a", "github.com/evil/n", "y", description="false")], "official")
    assert rows.loc["good/other", "description"] == "true"
    assert json.loads(rows.loc["good/other", "members"]) == [["toolsdk", "b"]]
    assert json.loads(rows.loc["evil/n", "packages"])[0]["vouched"] == []


def test_an_incomplete_batch_removes_nothing_and_the_last_of_equals_counts(conf_root):
    take([record("official", "a", "github.com/o/a"), record("official", "b", "github.com/o/b")], "official")
    twice = [record("official", "a", "github.com/o/a", description=text) for text in ("old", "new")]
    _, rows = take(twice, "official", complete=False)
    assert list(rows["description"]) == ["new", ""]
    _, rows = take([record("official", "a", "github.com/o/a", status="deleted")], "official", complete=False)
    assert list(rows["status"]) == ["gone", "active"]


def test_nothing_new_makes_no_version_and_old_versions_go(conf_root):
    for text in ("a", "a", *"bcdefgh"):
        counts, _ = take([record("toolsdk", "k", REPO, description=text)])
    assert counts["version"] == "v000008"
    assert [path.name for path in store.versions()] == [f"v{number:06d}" for number in range(4, 9)]
    changes = store.differences(*(store.read(path, "servers") for path in store.versions()[-2:]))
    assert changes.to_dict("records") == [{"id": "o/n", "change": "changed", "fields": "description"}]


@pytest.fixture
def mirror(conf_root, tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("mirror")
    monkeypatch.setenv("T2M_MIRROR", str(folder))
    entries = {"a": toolsdk_entry("a", "https://github.com/o/a"), "b": toolsdk_entry("b", "https://github.com/o/b")}
    pin(conf_root, folder, "toolsdk", toolsdk_files(entries, valid=("a",)))
    fine = "name: a\ntype: server\nimage: mcp/a:1\nabout: {title: A}\nsource: {project: 'https://github.com/O/A.git'}"
    hostile = {f"servers/d{row}/server.yaml": text for row, text in enumerate(HOSTILE_YAML)}
    pin(conf_root, folder, "docker", hostile | {"servers/a/server.yaml": fine})
    return folder


def test_sources_are_merged_and_a_failing_one_changes_nothing(mirror, conf_root, call):
    def state():
        return {path: path.read_bytes() for path in (conf_root / "data" / "catalog").rglob("*") if path.is_file()}

    code, out, _ = call("catalog", "sync", "--source", "toolsdk", "--source", "docker")
    assert code == 0
    assert f"docker: 1 read, 1 new, 0 changed, 0 gone; refused: {len(HOSTILE_YAML)} entry" in out
    assert "2 servers from 3 entries" in out
    row = store.find("o/a", store.read(store.required(), "servers"))
    assert json.loads(row["members"]) == [["docker", "a"], ["toolsdk", "c/a.json"]]
    vouched = {way["identifier"]: way["vouched"] for way in json.loads(row["packages"])}
    assert vouched == {"mcp/a": ["docker"], "a": ["toolsdk"]}
    about = json.loads((store.required() / "about.json").read_text())["sources"]["docker"]
    assert (about["commit"], about["read"]) == (COMMIT, 1)
    before = state()
    pin(conf_root, mirror, "toolsdk", toolsdk_files({"z": toolsdk_entry("z")}))
    next((mirror / "docker").rglob("*.tar.gz")).write_bytes(b"damaged")
    code, _, err = call("catalog", "sync", "--source", "toolsdk", "--source", "docker")
    assert (code, "cannot be read" in err) == (2, True)
    assert state() == before


def test_a_kill_at_any_step_of_writing_leaves_the_old_catalogue(mirror, conf_root):
    sync(["toolsdk"])
    before = store.read(store.required(), "servers")
    pin(conf_root, mirror, "toolsdk", toolsdk_files({"z": toolsdk_entry("z")}))
    for name in ("write_csv", "write_json"):
        with killed_at(store.files, name):
            sync(["toolsdk"])
        assert store.read(store.required(), "servers").equals(before)
    (store.folder() / ".new-left").mkdir()
    with store.locked(), pytest.raises(StudyError, match="another command"):
        sync(["toolsdk"])
    sync(["toolsdk"])
    assert store.read(store.required(), "servers").query("status == 'active'")["name"].tolist() == ["z"]
    assert not list(store.folder().glob(".new-*"))


# Entries of a client's file; what is fine in them, what is not, and no secret of either is kept or said.
NPM_X = {"registryType": "npm", "identifier": "x"}
ENTRIES = {
    "mine": {"command": "npx", "args": ["-y", "@a/b@1.2.3", "--key", "hunter2"], "env": {"TOKEN": "hunter2"}},
    "local": {"command": "python", "args": ["/home/me/x.py"]},
    "away": {"url": "https://x.y/mcp?key=hunter2", "headers": {"Authorization": "Bearer hunter2"}},
    "../x": {"command": "npx", "args": ["-y", "x"]},
    "odd": {"command": "npx", "args": "-y other"},
    "a": {"command": "docker", "args": ["run", "-e", "KEY=hunter2", "--new", "hunter2", "mcp/x"]},
    "b": {"command": "uvx", "args": ["--index-url", "https://u:hunter2@x.y", "p"], "env": {"A=hunter2": "1"}},
    "c": {"url": "https://u:hunter2@x.y/mcp", "headers": {"X: hunter2": "hunter2"}},
    "d": {"url": "https://x.y/mcp#hunter2", "type": "hunter2"},
    "e": {"command": "hunter2", "env": {"HTTPS_PROXY": "hunter2"}},
    "f/g": {"name": "f/g", "packages": [NPM_X | {"identifier": "hunter2;", "version": "hunter2"}]},
    "h/i": {
        "name": "h/i",
        "packages": [
            NPM_X | {"runtimeArguments": [{"name": "--key", "value": "hunter2"}]},
            NPM_X | {"packageArguments": [{"value": "hunter2;"}]},
        ],
        "remotes": [{"type": "sse", "url": "https://hunter2@x.y"}],
    },
    "fine": {"command": "npx", "args": ["-y", "x"], "env": {"HTTPS_PROXY": "hunter2", "TOKEN": "hunter2"}},
}


def test_own_servers_come_and_go_and_no_secret_is_kept(conf_root, tmp_path, call):
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": ENTRIES}))
    code, out, err = call("catalog", "add", str(path))
    taken = {"mine:mine", "mine:local", "mine:away", "mine:fine"}
    assert (code, taken <= set(out.split()), "mine:odd" in out) == (0, True, False)
    for refused in ("../x", "only packages", "args of odd"):
        assert refused in err
    version = store.required()
    rows = store.read(version, "servers")
    written = b"".join(file.read_bytes() for file in version.iterdir() if file.suffix != ".gz").decode()
    assert "hunter2" not in out + err + written + rows.to_json() + store.read(version, "records").to_json()
    assert len(pd.read_csv(version / "refused.csv")) >= 10
    (way,) = json.loads(store.find("mine:mine", rows)["packages"])
    assert (way["identifier"], way["version"], way["vouched"]) == ("@a/b", "1.2.3", [])
    (way,) = json.loads(store.find("mine:fine", rows)["packages"])
    assert [item["name"] for item in way["variables"]] == ["TOKEN"]
    assert remove("mine:away") == "mine:away"
    active = "status == 'active'"
    assert "mine:away" not in set(store.read(store.required(), "servers").query(active)["id"])
    add(str(path))
    assert taken <= set(store.read(store.required(), "servers").query(active)["id"])


AWAY = "https://u:hunter2@x.y/a?key=hunter2"


@pytest.mark.parametrize(
    ("source", "places", "said"),
    [
        (AWAY, ["http://x.y/b"], "https"),
        (AWAY, ["https://x.y/b", "http://x.y/c"], "https"),
        *((AWAY, [f"https://{host}/b"], "this machine") for host in NEAR.split()),
        (AWAY, ["https://x.y/b", "//127.0.0.2/c"], "this machine"),
        (AWAY, ["https://x.y/b"] * 9, "redirects"),
        (AWAY, ["https://x.y/b"], ""),
        # A user may name a place of this network, and it may redirect within.
        *((f"{place}/a", ["https://127.0.0.1/b"], "") for place in ("http://localhost:1", "http://127.0.0.1")),
        ("https://192.168.0.1/a", ["https://127.0.0.1/b"], ""),
    ],
)
def test_a_redirect_stays_on_https_and_away_from_this_machine(conf_root, monkeypatch, source, places, said):
    requested, find = [], socket.getaddrinfo

    def get(address, **how):
        assert not how["allow_redirects"]
        requested.append(address)
        answer = requests.Response()
        answer.status_code, answer.raw = 200, io.BytesIO(OWN.encode())
        if len(requested) <= len(places):
            answer.status_code, answer.headers["Location"] = 302, places[len(requested) - 1]
        return answer

    monkeypatch.setattr(requests, "get", get)
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *how, **more: find(NAMED.get(host, host), *how, **more))
    if not said:
        assert add(source)["added"] == ["a"]
        assert "hunter2" not in (store.required() / "about.json").read_text()
        return
    with pytest.raises(StudyError, match=said) as error:
        add(source)
    assert "hunter2" not in str(error.value)
    assert not any(address.startswith("http:") or "localhost" in address for address in requested)
    assert {urlsplit(address).hostname for address in requested} == {"x.y"}


def test_the_catalogue_works_without_the_modules_of_unix(conf_root, tmp_path):
    (tmp_path / "mcp.json").write_text(OWN)
    program = (
        "import sys; sys.modules |= dict.fromkeys(('fcntl', 'resource', 'pwd', 'grp'));"
        "from study.advisor.catalog.sync import add; print(add(sys.argv[1])['added'])"
    )
    words = [sys.executable, "-c", program, str(tmp_path / "mcp.json")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "['a']\n"), done.stderr


BAD = {
    "cannot be read": ["{", "[" * 100_000, '{"name": "a/b", "packages": []', "\udcff\udcfe"],
    "a key is given twice: 'a'": [f'{OWN[:-2]}, "a": {{}}}}}}'],
    "describes no server": ['{"other": 1}', "[]"],
    "no server is taken": ['{"mcpServers": {"a;b": {}}}'],
    "more than": ['{"x": "' + "x" * 5_000_000 + '"}'],
}


@pytest.mark.parametrize(("text", "said"), [(text, said) for said in BAD for text in BAD[said]], ids=range(9))
def test_a_bad_file_of_own_servers_is_refused(conf_root, tmp_path, text, said):
    path = tmp_path / "x.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(StudyError, match=said):
        add(str(path))
    with pytest.raises(StudyError, match="https"):
        add("http://example.com/x.json")
    assert store.current() is None


def test_the_commands_say_what_is_there(mirror, call):
    code, _, err = call("catalog", "list")
    assert (code, "study catalog sync" in err) == (2, True)
    sync(["toolsdk", "docker"])
    assert call("catalog", "list", "does")[1].split("\n")[0].startswith("o/a  does things")
    assert [row["id"] for row in json.loads(call("catalog", "list", "--source", "docker", "--json")[1])] == ["o/a"]
    server = json.loads(call("catalog", "show", "O/A", "--json")[1])
    assert (server["licence"], server["provenance"]["licence"]) == ("mit", "toolsdk")
    assert "licence: mit  [toolsdk]" in call("catalog", "show", "o/a")[1]
    assert [row["change"] for row in json.loads(call("catalog", "diff", "--json")[1])] == ["added", "added"]
    refused = {("remove", "o/a"): ["only your own"], ("diff", "--since", "v9"): ["v000001"]}
    refused |= {("sync", "--source", "else"): [""], ("sync",): ["option --source", "toolsdk", "docker", "official"]}
    for words, said in refused.items():
        code, _, err = call("catalog", *words)
        assert (code, all(word in err for word in said)) == (2, True), words
