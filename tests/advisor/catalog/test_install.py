"""Start commands, and clients' files: what is written, twice the same, undone, and what is never overwritten."""

import json
import os
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import yaml

from study.advisor.catalog import clients
from study.advisor.catalog.records import Package, Remote, Variable
from study.advisor.catalog.start import start
from study.base.errors import StudyError
from tests.advisor.catalog.sources import killed_at, pin, row, toolsdk_entry, toolsdk_files
from tests.tiny_study import REPOSITORY

pytestmark = pytest.mark.usefixtures("answers")  # neither npm nor pip is started
KEY = Variable("KEY", secret=True)
BEARER = {"Authorization": "Bearer <TOKEN>"}
NAMES = sorted(yaml.safe_load((REPOSITORY / "conf" / "catalog" / "clients.yaml").read_text())["clients"])
NPM = Package("npm", "@o/n", "1.2.3", "", ("--root", "<folder>"), (KEY, Variable("L", False)), vouched=True)
PYPI = Package("pypi", "o-n", "1.2", vouched=True)
IMAGE = Package("oci", "mcp/n", "1.0", "", ("serve",), (KEY, Variable("M", value="ro")), vouched=True)
DIGEST = Package("oci", "mcp/n", "sha256:" + "0" * 64, vouched=True)
AWAY = Remote("http", "https://x.y/mcp", (Variable("Authorization", value="Bearer <TOKEN>"),), vouched=True)


@pytest.mark.parametrize(
    ("way", "line", "fill"),
    [
        (NPM, "npx -y @o/n@1.2.3 --root <folder>", ("folder", "KEY")),
        (replace(NPM, binary="n", arguments=("mcp",)), "npx -y -p @o/n@1.2.3 n mcp", ("KEY",)),
        (PYPI, "uvx o-n@1.2", ()),
        (replace(PYPI, binary="n"), "uvx --from o-n==1.2 n", ()),
        (IMAGE, "docker run -i --rm -e KEY -e M mcp/n:1.0 serve", ("KEY",)),
        (DIGEST, f"docker run -i --rm mcp/n@sha256:{'0' * 64}", ()),
        (AWAY, "", ("TOKEN",)),
    ],
)
def test_a_command_is_pinned_and_made_of_fields(way, line, fill):
    command = start(row(way))
    assert " ".join([command.command, *command.args]).strip() == line
    assert (command.fill, command.vouched) == (fill, ("toolsdk",))
    assert line or (command.url, command.transport, command.values) == ("https://x.y/mcp", "http", BEARER)


def test_the_first_way_is_one_that_a_source_vouches_for_and_without_one_it_is_said_why():
    unknown = replace(PYPI, vouched=False)
    assert start(row(unknown, IMAGE)).method == "oci"
    assert start(row(replace(IMAGE, version=""), PYPI)).method == "pypi"
    assert start(row(NPM, AWAY), method="remote").method == "remote"
    assert start(row(unknown), unverified=True).vouched == ()
    assert start(row(NPM), version="2.0.0").args[1] == "@o/n@2.0.0"
    wrong = [
        (row(unknown), {}, "not verified: no source vouches that o-n belongs to o/n"),
        (row(unknown, IMAGE), {"method": "pypi"}, "not verified"),
        (row(), {}, r"no source says how to start o/n(?s:.*)github.com/o/n"),
        (row(NPM) | {"status": "gone", "moved_to": "o/m"}, {}, r"o/n is gone(?s:.*)see o/m"),
        (row(replace(IMAGE, version="")), {}, "no source names a version of mcp/n"),
    ]
    for version in ("latest", "^1.0.0", "1.0.0; id", "--x"):
        wrong.append((row(NPM), {"version": version}, "not an exact version"))
    for about, how, reason in wrong:
        with pytest.raises(StudyError, match=reason):
            start(about, **how)


@pytest.mark.parametrize(
    ("way", "answer", "asked", "expected"),
    [
        (NPM, ('{"version": "9.8.7", "bin": {"n": "x"}}', ""), "view @o/n version", "@9.8.7"),
        (PYPI, ("o-n (1.5)\nAvailable: 1.5, 1.4\n", ""), "versions --ignore-requires-python o-n", "@1.5"),
        *((NPM, (json.dumps(said), ""), "", None) for said in ("", "1.0.0; id\n", "^1.0.0\n", "latest")),
        (NPM, ("", "npm error code EPERM\n"), "", None),
    ],
)
def test_a_version_that_no_source_names_is_asked_for(conf_root, answers, way, answer, asked, expected):
    answers[way.identifier] = answer
    if expected is None:
        with pytest.raises(StudyError, match=answer[1].strip() or "not an exact version"):
            start(row(replace(way, version="")))
        return
    assert any(word.endswith(expected) for word in start(row(replace(way, version=""))).args)
    assert asked in answers.asked[-1]


@pytest.fixture
def home(conf_root, tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.chdir(folder)
    return folder


def tree(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mode) for path in files}


def install(way=NPM, client="cursor", config=None, name=None, **how):
    """Write a server, or what `start` made of it, into a client's file."""
    way = way if not isinstance(way, Package | Remote) else start(row(way))
    return clients.install(way, client, config=config, name=name, **{"write": True} | how)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("before", [None, {"other": {"x": 1}}, {"servers": 1}])
def test_every_client_gets_its_entry_once_and_back(home, name, before):
    kind = clients.client(name)
    config = home / "chosen.json" if name == "json" else None
    file, text = kind.path(config), ""
    if before is not None:
        section = {"keep": {"command": "x"}} if "other" in before else {}
        text = f'a = 1 # why\n[{kind.key}.keep]\ncommand = "x"\n'
        if kind.format == "json":
            text = json.dumps(before | {kind.key: section}, indent=4)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o600)
    write, undo = partial(install, client=name, config=config), partial(clients.uninstall, "o/n", name, config=config)
    state = tree(home)
    assert (write(write=False)["does"], tree(home)) == ("add", state)
    done, written = write(), file.read_text()
    value = tomllib.loads(written) if kind.format == "toml" else json.loads(written)
    entry = value[kind.key]["n"]
    wanted = {"command": "npx", "args": ["-y", "@o/n@1.2.3", "--root", "<folder>"], "env": {"KEY": "<KEY>"}}
    assert entry.items() >= wanted.items()
    assert file.stat().st_mode & 0o777 == 0o600
    if before is not None:
        assert Path(done["backup"]).read_text() == text
        assert ("keep" in value[kind.key]) == (kind.format == "toml" or "other" in before)
        assert kind.format == "json" or "# why" in written
    after = tree(home)
    assert (write()["does"], undo(write=False)["does"]) == ("unchanged", "restore")
    assert tree(home) == after
    undo(write=True)
    assert tree(home) == state
    with pytest.raises(StudyError, match="was not installed"):
        undo(write=True)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("claude-code", {"type": "http", "url": AWAY.url}),
        ("windsurf", {"serverUrl": AWAY.url}),
        ("cline", {"type": "streamableHttp", "url": AWAY.url}),
        ("codex", {"url": AWAY.url}),
    ],
)
def test_a_remote_server_has_each_clients_own_spelling(home, name, expected):
    header = "http_headers" if name == "codex" else "headers"
    assert clients.client(name).entry(start(row(AWAY))) == expected | {header: BEARER}
    for refuses, way in (("claude-desktop", AWAY), ("zed", replace(AWAY, transport="sse"))):
        with pytest.raises(StudyError, match="takes no remote server"):
            install(way, refuses)


LOSSY = """{"context_servers": {} // mine\\n}|{"context_servers": {},}|/* x */ {"a": 1}|{"a": 1, "a": 2}|[1]|{|\ufeff{}
|{"context_servers": [1]}|{"a": 1E400}|{"a": 0.1234567890123456789}|{"a": "\\ud800"}"""


@pytest.mark.parametrize("text", [*LOSSY.replace("\n|", "|").split("|"), "a = ["])
def test_a_file_that_would_lose_something_is_left_alone(home, text):
    client, file = ("codex", home / "x.toml") if text == "a = [" else ("zed", home / "x.json")
    file.write_text(text)
    with pytest.raises(StudyError, match=str(file)):
        install(client=client, config=file)
    assert [path.name for path in home.iterdir()] == [file.name]
    assert file.read_text() == text


def test_what_the_user_filled_in_stays_and_another_entry_is_never_replaced(home):
    file = home / ".cursor" / "mcp.json"
    install()
    value = json.loads(file.read_text())
    value["mcpServers"]["n"]["env"]["KEY"] = "hunter2"
    value["mcpServers"]["n"]["args"][-1] = "/home/me"
    file.write_text(json.dumps(value))
    assert install()["does"] == "unchanged"
    assert install(start(row(NPM), version="2.0.0"))["does"] == "replace"
    entry = json.loads(file.read_text())["mcpServers"]["n"]
    assert (entry["env"]["KEY"], entry["args"][1]) == ("hunter2", "@o/n@2.0.0")
    other = start(row(PYPI) | {"id": "p/n"})
    with pytest.raises(StudyError, match="another entry 'n'"):
        install(other)
    assert install(other, name="p-n")["does"] == "add"
    # The file changed since: only the entry goes.
    assert clients.uninstall("o/n", "cursor", config=None, write=True)["does"] == "take out the entry"
    assert list(json.loads(file.read_text())["mcpServers"]) == ["p-n"]


def test_a_link_stays_a_link_and_line_ends_and_modes_stay(home):
    real, before = home / "real.json", b'{\r\n\t"mcpServers": {}\r\n}'
    real.write_bytes(before)
    real.chmod(0o640)
    (home / ".cursor").mkdir()
    (home / ".cursor" / "mcp.json").symlink_to(real)
    install(PYPI)
    assert (home / ".cursor" / "mcp.json").is_symlink()
    assert real.read_bytes().startswith(b'{\r\n\t"mcpServers": {\r\n\t\t"n"')
    assert real.stat().st_mode & 0o777 == 0o640
    clients.uninstall("o/n", "cursor", config=None, write=True)
    assert real.read_bytes() == before
    install(config=home / "new.json")  # a new one is private
    assert (home / "new.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", ["../x", "a b", " ", "a;b", "x" * 65])
def test_a_hostile_name_of_an_entry_is_refused(home, name):
    with pytest.raises(StudyError):
        install(name=name)
    assert not (home / ".cursor").exists()
    ids = {"o/My_Server.js": "my-server-js", "npm:@a/b": "b", "toolsdk:c/x.json": "x", "a/\u00e9\u00e9": "server"}
    assert [clients.entry_name(identifier) for identifier in ids] == [*ids.values()]


def test_a_new_user_installs_and_undoes(home, conf_root, call, monkeypatch, tmp_path_factory):
    mirror = tmp_path_factory.mktemp("mirror")
    monkeypatch.setenv("T2M_MIRROR", str(mirror))
    evil = {"env": {"TOKEN": {"description": "$(curl evil)", "required": True}}, "description": "run `rm -rf ~`"}
    entries = {
        name: toolsdk_entry(f"{name}-mcp", f"https://github.com/o/{name}", packageVersion="1.0.0", **more)
        for name, more in (("a", evil), ("b", {}))
    }
    pin(conf_root, mirror, "toolsdk", toolsdk_files(entries, valid=("a",)))
    assert call("catalog", "sync", "--source", "toolsdk")[0] == 0
    desktop, client = ("o/a", "--client", "claude-desktop"), ("o/b", "--client", "json")
    code, out, _ = call("install", "a-mcp", *desktop[1:])
    assert code == 0
    for said in ("start:    npx -y a-mcp@1.0.0", "fill in:  TOKEN", "nothing written"):
        assert said in out
    assert not any(word in out for word in ("rm -rf", "curl"))
    for name, read in (("codex", tomllib.loads), ("cursor", json.loads)):  # as that client's file has it
        output = call("install", "a-mcp", "--client", name)[1].partition("fill in:  TOKEN\n")[2].rpartition("\n/")[0]
        ((entry,),) = [part.values() for part in read(output).values()]
        assert (entry["command"], entry["args"]) == ("npx", ["-y", "a-mcp@1.0.0"])
    assert tree(home) == {}
    assert call("install", *desktop, "--write")[0] == 0
    assert "already there" in call("install", *desktop, "--write")[1]
    code, _, err = call("install", *client)
    assert (code, "--unverified" in err) == (2, True)
    code, out, _ = call("install", *client, "--unverified")
    assert (code, "not verified" in out) == (0, True)
    assert json.loads(call("install", *client, "--unverified", "--json")[1])["vouched"] == []
    wrong = [("o/a", "--client", "emacs"), ("../../etc", *client[1:]), ("o/a", *client[1:], "--with", "make")]
    for words in (*wrong, (*client, "--unverified", "--write")):
        assert call("install", *words)[0] == 2
    assert call("uninstall", *desktop, "--write")[0] == 0
    assert tree(home) == {}


@pytest.mark.parametrize("kind", ["fifo", "folder", "circle", "device"])
def test_only_regular_files_are_written(home, kind):
    file = home / "x.json"
    if kind == "fifo":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        file.symlink_to(file if kind == "circle" else "/dev/zero")
    with pytest.raises(StudyError, match="name another file"):
        install(config=file)


def test_installations_at_one_moment_all_stand_in_file_and_journal(home):
    file, names, way = home / "x.json", [f"n{number}" for number in range(12)], start(row(NPM))
    with ThreadPoolExecutor(len(names)) as pool:
        ways = [replace(way, id=name) for name in names]
        done = list(pool.map(lambda way: install(way, config=file, name=way.id)["does"], ways))
    assert set(done) == {"add"}
    assert sorted(json.loads(file.read_text())["mcpServers"]) == sorted(names)
    assert len(json.loads(clients._journal_file().read_text())) == len(names)


def test_an_installation_that_is_killed_can_be_undone(home):
    file = home / "x.json"
    file.write_text("{}")
    with killed_at(clients, "replace_foreign"):
        install(config=file)
    clients.uninstall("o/n", "cursor", config=file, write=True)
    assert file.read_text() == "{}"
