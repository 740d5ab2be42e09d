"""Syncing small sources: what is merged, what changed, what is lost, and that a failure changes nothing."""

import io
import json
import subprocess
import sys

import pandas as pd
import pytest
import requests

from study.advisor.catalog import store
from study.advisor.catalog.merge import clusters, servers
from study.advisor.catalog.records import Refusal
from study.advisor.catalog.settings import Sources
from study.advisor.catalog.start import start
from study.advisor.catalog.store import Batch
from study.advisor.catalog.sync import add, remove, sync
from study.base.errors import StudyError
from tests.advisor.catalog.sources import COMMIT, pin, record, toolsdk_entry, toolsdk_files

ORDER = ("docker", "toolhive", "official", "toolsdk", "mine")
# Nine levels of nine aliases: 387 million values, if they were written out.
BOMB = (
    "a0: &a0 [x]\n"
    + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10))
    + "run: {command: *a9}\n"
)
REPO = "github.com/o/n"
DEEP = ["[" * 100_000, "a: " + "{a: " * 50_000, "- " * 50_000, "? " * 50_000]
DEEP += ["".join(f"\n{' ' * n}a:" for n in range(1500)), "!!python/object/apply:os.system [id]", "\0"]


def groups(*records):
    return [{records[row].key for row in rows} for rows in clusters(records)]


def test_entries_of_one_repository_or_one_trusted_package_are_one_server():
    one = record("toolsdk", "a", REPO, "x")
    assert groups(one, record("docker", "b", REPO)) == [{"a", "b"}]
    assert groups(one, record("official", "b", "", "x")) == [{"a", "b"}]
    assert groups(one, record("docker", "b", "github.com/o/other")) == [{"a"}, {"b"}]
    assert groups(one, record("docker", "b", REPO, subfolder="src")) == [{"a"}, {"b"}]


def test_a_repository_of_several_servers_does_not_join_them():
    several = [record("toolsdk", "a", REPO, "x"), record("toolsdk", "b", REPO, "y"), record("docker", "c", REPO)]
    assert groups(*several) == [{"a"}, {"b"}, {"c"}]
    # By its package each still finds its own.
    assert groups(*several, record("official", "d", "", "y")) == [{"a"}, {"b", "d"}, {"c"}]


def test_a_claim_that_nobody_checked_joins_nothing():
    real = record("toolsdk", "a", REPO, "x")
    assert groups(real, record("toolsdk", "b", "github.com/evil/n", "x", vouched=False)) == [{"a"}, {"b"}]
    assert groups(real, record("official", "b", REPO, "evil", owns=False)) == [{"a"}, {"b"}]
    assert groups(real, record("mine", "b", REPO, "x", vouched=False)) == [{"a"}, {"b"}]
    # The same claim twice in one repository is one entry, given twice.
    assert groups(real, record("toolsdk", "b", REPO, "x", vouched=False)) == [{"a", "b"}]


def test_fields_come_from_the_first_source_and_say_so():
    rows = servers(
        [
            record("toolsdk", "a", REPO, "x", description="long", licence="MIT", vouched=False),
            record("docker", "b", REPO, "", description="short", stars=3),
        ],
        ORDER,
        {},
    )
    row = rows.iloc[0]
    assert (row["id"], row["name"], row["description"], row["licence"], row["stars"]) == ("o/n", "b", "short", "MIT", 3)
    assert json.loads(row["provenance"])["licence"] == "toolsdk"
    assert json.loads(row["packages"])[0]["vouched"] == []
    assert row["sha256_description"] == "f9b0078b5df596d2ea19010c001bbd009e651de2c57e8fb7e355f31eb9d3f739"  # sha256sum


def test_a_source_that_calls_a_server_deprecated_is_named_whatever_the_others_say():
    pair = [record("toolhive", "a", REPO, status="deprecated"), record("docker", "b", REPO)]
    row = servers(pair, ORDER, {}).iloc[0]
    assert (row["status"], json.loads(row["notes"])) == ("active", ["toolhive: deprecated"])
    row = servers(pair[:1], ORDER, {}).iloc[0]
    assert (row["status"], json.loads(row["notes"])) == ("deprecated", [])
    assert json.loads(row["provenance"])["status"] == "toolhive"


def test_ids_are_unique_and_stay_within_their_letters():
    records = [record("toolsdk", f"k{i}", REPO, f"p{i}", vouched=i > 1) for i in range(4)]
    assert list(servers(records, ORDER, {})["id"]) == ["npm:p2", "npm:p3", "toolsdk:k0", "toolsdk:k1"]


def take(records, source="toolsdk", complete=True):
    with store.locked():
        counts = store.commit(
            [Batch(source, records, [Refusal(source, "k", "package", "r")], complete, {})], Sources.read()
        )
    return counts, store.read(store.current(), "servers").set_index("id")


def test_what_left_its_source_is_a_tombstone_and_a_rename_says_where_it_went(conf_root):
    first, _ = take([record("toolsdk", "a", "github.com/o/a"), record("toolsdk", "b", "github.com/o/b")])
    assert (first["servers"], first["version"]) == (2, "v000001")
    counts, rows = take([record("toolsdk", "a", "github.com/o/c")])
    assert counts["sources"]["toolsdk"] | {"refused": 0} == {"read": 1, "new": 0, "changed": 1, "gone": 1, "refused": 0}
    assert list(rows["status"]) == ["gone", "gone", "active"]
    assert (rows.loc["o/a", "moved_to"], rows.loc["o/b", "moved_to"]) == ("o/c", "")
    # Back again: no chain of names is followed, so nothing runs in a circle.
    _, rows = take([record("toolsdk", "a", "github.com/o/a")])
    assert (rows.loc["o/c", "moved_to"], rows.loc["o/a", "status"]) == ("o/a", "active")
    with pytest.raises(StudyError, match="no server"):
        store.find("nothing", rows.reset_index())
    assert store.find("o/c", rows.reset_index())["moved_to"] == "o/a"


def test_two_entries_that_swap_names_end_well(conf_root):
    take([record("toolsdk", "a", "github.com/o/a"), record("toolsdk", "b", "github.com/o/b")])
    _, rows = take([record("toolsdk", "a", "github.com/o/b"), record("toolsdk", "b", "github.com/o/a")])
    assert [json.loads(text)[0][1] for text in rows["members"]] == ["b", "a"]
    assert set(rows["status"]) == {"active"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (("github.com/good/n", "1"), ("github.com/evil/n", "1")),
        (("github.com/good/n", ""), ("gitlab.com/good/n", "")),
        (("github.com/good/n", "1"), ("", "")),
        (("github.com/good/n", "1"), ("github.com/good/n", "2")),
        (("github.com/good/n", "1"), ("github.com/good/n", "")),
    ],
)
def test_a_change_of_owner_is_noted_and_nobody_vouches_any_more(conf_root, before, after):
    def one(at, **more):
        _, rows = take([record("official", "a", at[0], "x", repository_id=at[1], **more)], "official")
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
    theirs = [record("toolsdk", "b", "github.com/good/other", "y", description="true")]
    take([record("official", "a", "github.com/good/n", "x")], "official")
    take(theirs)
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
    docker = {
        "servers/a/server.yaml": "name: a\ntype: server\nimage: mcp/a:1\nabout: {title: A}\nsource: {project: 'https://github.com/O/A.git'}"
    }
    pin(conf_root, folder, "docker", docker | {"servers/bad/server.yaml": "{: [", "servers/bomb/server.yaml": BOMB})
    return folder


def state(root):
    folder = root / "data" / "catalog"
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_sources_are_merged_and_a_failing_one_changes_nothing(mirror, conf_root, call):
    code, out, _ = call("catalog", "sync", "--source", "toolsdk", "--source", "docker")
    assert code == 0
    assert "docker: 1 read, 1 new, 0 changed, 0 gone; refused: 2 entry" in out
    assert "2 servers from 3 entries" in out
    row = store.find("o/a", store.read(store.required(), "servers"))
    assert json.loads(row["members"]) == [["docker", "a"], ["toolsdk", "c/a.json"]]
    assert {way["identifier"]: way["vouched"] for way in json.loads(row["packages"])} == {
        "mcp/a": ["docker"],
        "a": ["toolsdk"],
    }
    about = json.loads((store.required() / "about.json").read_text())["sources"]["docker"]
    assert (about["commit"], about["read"]) == (COMMIT, 1)
    before = state(conf_root)
    pin(conf_root, mirror, "toolsdk", toolsdk_files({"z": toolsdk_entry("z")}))
    next((mirror / "docker").rglob("*.tar.gz")).write_bytes(b"damaged")
    code, _, err = call("catalog", "sync", "--source", "toolsdk", "--source", "docker")
    assert (code, "cannot be read" in err) == (2, True)
    assert state(conf_root) == before


def test_a_kill_at_any_step_of_writing_leaves_the_old_catalogue(mirror, conf_root, monkeypatch):
    sync(["toolsdk"])
    before = store.read(store.required(), "servers")
    pin(conf_root, mirror, "toolsdk", toolsdk_files({"z": toolsdk_entry("z")}))
    for name in ("write_csv", "write_json"):
        with monkeypatch.context() as patch:
            # BaseException: what is left is what a killed process leaves, at most.
            patch.setattr(store.files, name, lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                sync(["toolsdk"])
        assert store.read(store.required(), "servers").equals(before)
    (store.folder() / ".new-left").mkdir()
    sync(["toolsdk"])
    assert store.read(store.required(), "servers").query("status == 'active'")["name"].tolist() == ["z"]
    assert not list(store.folder().glob(".new-*"))


def test_a_second_writer_is_refused(mirror):
    with store.locked(), pytest.raises(StudyError, match="another command"):
        sync(["toolsdk"])


def test_own_servers_come_and_go(conf_root, tmp_path, call):
    path = tmp_path / "mcp.json"
    entry = {"command": "npx", "args": ["-y", "@a/b@1.2.3", "--key", "hunter2"], "env": {"TOKEN": "hunter2"}}
    other = {"command": "python", "args": ["/home/me/x.py"]}
    away = {"url": "https://x.y/mcp?key=hunter2", "headers": {"Authorization": "Bearer hunter2"}}
    odd = {"command": "npx", "args": "-y other"}
    path.write_text(
        json.dumps({"mcpServers": {"mine": entry, "local": other, "away": away, "../x": entry, "odd": odd}})
    )
    code, out, err = call("catalog", "add", str(path))
    assert (code, out.split()) == (0, ["mine:mine", "mine:local", "mine:away"])
    for refused in ("../x", "only packages", "args of odd"):
        assert refused in err
    rows = store.read(store.required(), "servers")
    assert "hunter2" not in "".join(rows.to_json() for _ in "x") + store.read(store.required(), "records").to_json()
    way = json.loads(store.find("mine:mine", rows)["packages"])[0]
    assert (way["identifier"], way["version"], way["vouched"]) == ("@a/b", "1.2.3", [])
    assert remove("mine:away") == "mine:away"
    add(str(path))
    assert set(store.read(store.required(), "servers").query("status == 'active'")["id"]) == {
        "mine:mine",
        "mine:local",
        "mine:away",
    }


def test_refusals_hold_no_secret(conf_root, tmp_path, call):
    entries = {
        "a": {"command": "docker", "args": ["run", "-e", "KEY=hunter2", "--new", "hunter2", "mcp/x"]},
        "b": {"command": "uvx", "args": ["--index-url", "https://u:hunter2@x.y", "p"], "env": {"A=hunter2": "1"}},
        "c": {"url": "https://u:hunter2@x.y/mcp", "headers": {"X: hunter2": "hunter2"}},
        "d": {"url": "https://x.y/mcp#hunter2", "type": "hunter2"},
        "e": {"command": "hunter2", "env": {"HTTPS_PROXY": "hunter2"}},
        "f/g": {"name": "f/g", "packages": [{"registryType": "npm", "identifier": "hunter2;", "version": "hunter2"}]},
        "h/i": {
            "name": "h/i",
            "packages": [
                {"registryType": "npm", "identifier": "x", "runtimeArguments": [{"name": "--key", "value": "hunter2"}]},
                {"registryType": "npm", "identifier": "x", "packageArguments": [{"value": "hunter2;"}]},
            ],
            "remotes": [{"type": "sse", "url": "https://hunter2@x.y"}],
        },
        "fine": {"command": "npx", "args": ["-y", "x"], "env": {"HTTPS_PROXY": "hunter2", "TOKEN": "hunter2"}},
    }
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": entries}))
    _, out, err = call("catalog", "add", str(path))
    version = store.required()
    kept = b"".join(file.read_bytes() for file in version.iterdir() if file.suffix != ".gz").decode()
    assert "hunter2" not in out + err + kept + store.read(version, "records").to_json()
    assert len(pd.read_csv(version / "refused.csv")) >= 10
    (way,) = json.loads(store.find("mine:fine", store.read(version, "servers"))["packages"])
    assert [item["name"] for item in way["variables"]] == ["TOKEN"]


@pytest.mark.parametrize(
    ("places", "said"),
    [
        (["http://x.y/b"], "https"),
        (["https://x.y/b", "http://x.y/c"], "https"),
        (["https://localhost/b"], "this machine"),
        (["https://x.y/b"] * 9, "redirects"),
        (["https://x.y/b"], ""),
    ],
)
def test_a_redirect_stays_on_https(conf_root, monkeypatch, places, said):
    asked = []

    def get(address, **how):
        assert not how["allow_redirects"]
        asked.append(address)
        answer = requests.Response()
        answer.status_code, answer.raw = 200, io.BytesIO(b'{"mcpServers": {"a": {"command": "npx", "args": ["x"]}}}')
        if len(asked) <= len(places):
            answer.status_code, answer.headers["Location"] = 302, places[len(asked) - 1]
        return answer

    monkeypatch.setattr(requests, "get", get)
    if not said:
        assert add("https://u:hunter2@x.y/a?key=hunter2")["added"] == ["a"]
        assert "hunter2" not in (store.required() / "about.json").read_text()
        return
    with pytest.raises(StudyError, match=said) as error:
        add("https://u:hunter2@x.y/a?key=hunter2")
    assert "hunter2" not in str(error.value)
    assert not any(address.startswith("http:") or "localhost" in address for address in asked)


def test_the_catalogue_works_without_the_modules_of_unix(conf_root, tmp_path):
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": {"a": {"command": "npx", "args": ["x"]}}}')
    program = (
        "import sys; sys.modules |= dict.fromkeys(('fcntl', 'resource', 'pwd', 'grp'));"
        "from study.advisor.catalog.sync import add; print(add(sys.argv[1])['added'])"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "['a']\n"), done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ('{"mcpServers": {"a": {"command": "npx", "args": ["x"]}, "a": {}}}', "a key is given twice: 'a'"),
        ('{"other": 1}', "describes no server"),
        ("[]", "describes no server"),
        ('{"mcpServers": {"a;b": {}}}', "no server is taken"),
        ('{"name": "a/b", "packages": []', "cannot be read"),
        ('{"x": "' + "x" * 5_000_000 + '"}', "more than"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
def test_a_bad_file_of_own_servers_is_refused(conf_root, tmp_path, text, said):
    path = tmp_path / "x.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(StudyError, match=said):
        add(str(path))
    assert store.current() is None


def test_own_servers_are_not_fetched_without_encryption(conf_root):
    with pytest.raises(StudyError, match="https"):
        add("http://example.com/x.json")


def test_the_commands_say_what_is_there(mirror, call):
    code, _, err = call("catalog", "list")
    assert (code, "study catalog sync" in err) == (2, True)
    sync(["toolsdk", "docker"])
    assert call("catalog", "list", "does")[1].split("\n")[0].startswith("o/a  does things")
    assert [row["id"] for row in json.loads(call("catalog", "list", "--source", "docker", "--json")[1])] == ["o/a"]
    shown = json.loads(call("catalog", "show", "O/A", "--json")[1])
    assert (shown["licence"], shown["provenance"]["licence"]) == ("mit", "toolsdk")
    assert "licence: mit  [toolsdk]" in call("catalog", "show", "o/a")[1]
    assert [row["change"] for row in json.loads(call("catalog", "diff", "--json")[1])] == ["added", "added"]
    code, _, err = call("catalog", "remove", "o/a")
    assert (code, "only your own" in err) == (2, True)
    code, _, err = call("catalog", "diff", "--since", "v9")
    assert (code, "v000001" in err) == (2, True)
    assert call("catalog", "sync", "--source", "else")[0] == 2
    code, _, err = call("catalog", "sync")
    assert (code, all(name in err for name in ("option --source", "toolsdk", "docker", "official"))) == (2, True)


def test_hostile_yaml_is_refused_and_the_rest_is_read(conf_root, tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("mirror")
    monkeypatch.setenv("T2M_MIRROR", str(folder))
    fine = "name: a\nimage: mcp/a:1\nabout: {title: A}\n"
    files = {f"servers/d{row}/server.yaml": text for row, text in enumerate(DEEP)}
    pin(conf_root, folder, "docker", files | {"servers/a/server.yaml": fine})
    counts = sync(["docker"])
    assert (counts["servers"], counts["sources"]["docker"]["refused"]) == (1, {"entry": len(DEEP)})
