"""Start commands, and clients' files: what is written, twice the same, undone, and what is never overwritten."""

import json
import os
import subprocess
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from study.advisor.catalog import checks, clients
from study.advisor.catalog.merge import servers
from study.advisor.catalog.records import Package, Record, Remote, Variable
from study.advisor.catalog.start import start
from study.base.errors import StudyError
from tests.advisor.catalog.sources import pin, toolsdk_entry, toolsdk_files
from tests.tiny_study import REPOSITORY

ORDER = ("docker", "toolhive", "official", "toolsdk", "mine")
KEY = Variable("KEY", secret=True)
NAMES = sorted(yaml.safe_load((REPOSITORY / "conf" / "catalog" / "clients.yaml").read_text())["clients"])


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """Neither npm nor pip can be started."""

    def run(words, **how):
        raise FileNotFoundError(words[0])

    monkeypatch.setattr(checks.subprocess, "run", run)


def server(*ways, **more):
    packages = tuple(way for way in ways if isinstance(way, Package))
    remotes = tuple(way for way in ways if isinstance(way, Remote))
    record = Record("toolsdk", "k", "n", repository="github.com/o/n", packages=packages, remotes=remotes)
    return servers([replace(record, **more)], ORDER, {}).iloc[0].to_dict()


NPM = Package(
    "npm", "@o/n", "1.2.3", arguments=("--root", "<folder>"), variables=(KEY, Variable("L", False)), vouched=True
)
PYPI = Package("pypi", "o-n", "1.2", vouched=True)
IMAGE = Package("oci", "mcp/n", "1.0", arguments=("serve",), variables=(KEY, Variable("M", value="ro")), vouched=True)
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
    ],
)
def test_a_command_is_pinned_and_made_of_fields(way, line, fill):
    made = start(server(way))
    assert " ".join([made.command, *made.args]) == line
    assert (made.fill, made.vouched) == (fill, ("toolsdk",))


def test_a_remote_server_is_its_address():
    made = start(server(AWAY))
    assert (made.url, made.transport, made.values) == ("https://x.y/mcp", "http", {"Authorization": "Bearer <TOKEN>"})
    assert made.fill == ("TOKEN",)


def test_the_first_way_is_one_that_a_source_vouches_for():
    unknown = replace(PYPI, vouched=False)
    assert start(server(unknown, IMAGE)).method == "oci"
    assert start(server(replace(IMAGE, version=""), PYPI)).method == "pypi"
    assert start(server(NPM, AWAY), method="remote").method == "remote"
    with pytest.raises(StudyError, match="not verified: no source vouches that o-n belongs to o/n"):
        start(server(unknown))
    assert start(server(unknown), unverified=True).vouched == ()
    with pytest.raises(StudyError, match="not verified"):
        start(server(unknown, IMAGE), method="pypi")


def test_what_cannot_be_started_says_why():
    with pytest.raises(StudyError, match=r"no source says how to start o/n(?s:.*)github.com/o/n"):
        start(server())
    with pytest.raises(StudyError, match=r"o/n is gone(?s:.*)see o/m"):
        start(server(NPM) | {"status": "gone", "moved_to": "o/m"})
    with pytest.raises(StudyError, match="no source names a version of mcp/n"):
        start(server(replace(IMAGE, version="")))
    for version in ("latest", "^1.0.0", "1.0.0; id", "--x"):
        with pytest.raises(StudyError, match="not an exact version"):
            start(server(NPM), version=version)
    assert start(server(NPM), version="2.0.0").args[1] == "@o/n@2.0.0"


@pytest.mark.parametrize(
    ("way", "said", "asked", "version"),
    [
        (NPM, '{"version": "9.8.7", "bin": {"n": "x"}}', ["view", "@o/n", "version"], "9.8.7"),
        (PYPI, "o-n (1.5)\nAvailable: 1.5, 1.4\n", ["versions", "--ignore-requires-python", "o-n"], "1.5"),
    ],
)
def test_a_version_that_no_source_names_is_asked_for(conf_root, monkeypatch, way, said, asked, version):
    calls = []

    def run(words, **how):
        calls.append(words)
        assert "shell" not in how
        return subprocess.CompletedProcess(words, 0, said, "")

    monkeypatch.setattr(checks.subprocess, "run", run)
    assert any(word.endswith(f"@{version}") for word in start(server(replace(way, version=""))).args)
    assert " ".join(asked) in " ".join(calls[-1])


@pytest.mark.parametrize("said", ["", "1.0.0; id\n", "^1.0.0\n", "latest"])
def test_a_registry_that_names_no_version_is_refused(conf_root, monkeypatch, said):
    done = subprocess.CompletedProcess([], 0, json.dumps(said), "")
    monkeypatch.setattr(checks.subprocess, "run", lambda *_, **__: done)
    with pytest.raises(StudyError, match="not an exact version"):
        start(server(replace(NPM, version="")))


def test_npm_that_fails_is_quoted(conf_root, monkeypatch):
    done = subprocess.CompletedProcess([], 1, "", "npm error code EPERM\n")
    monkeypatch.setattr(checks.subprocess, "run", lambda *_, **__: done)
    with pytest.raises(StudyError, match="npm error code EPERM"):
        start(server(replace(NPM, version="")))


@pytest.fixture
def home(conf_root, tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.chdir(folder)
    return folder


def tree(folder):
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mode)
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("before", [None, {"other": {"x": 1}}, {"servers": 1}])
def test_every_client_gets_its_entry_once_and_back(home, name, before):
    kind = clients.client(name)
    config = home / "chosen.json" if name == "json" else None
    file = kind.path(config)
    if before is not None:
        section = {"keep": {"command": "x"}} if "other" in before else {}
        content = before | {kind.key: section} if kind.format == "json" else None
        text = json.dumps(content, indent=4) if content else f'a = 1 # why\n[{kind.key}.keep]\ncommand = "x"\n'
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o600)
    way, state = start(server(NPM)), tree(home)
    dry = clients.install(way, name, config=config, name=None, write=False)
    assert (dry["does"], tree(home)) == ("add", state)
    done = clients.install(way, name, config=config, name=None, write=True)
    written = file.read_text()
    value = tomllib.loads(written) if kind.format == "toml" else json.loads(written)
    entry = value[kind.key]["n"]
    assert (entry["command"], entry["args"], entry["env"]) == (
        "npx",
        ["-y", "@o/n@1.2.3", "--root", "<folder>"],
        {"KEY": "<KEY>"},
    )
    assert file.stat().st_mode & 0o777 == 0o600
    if before is not None:
        assert Path(done["backup"]).read_text() == text
        assert ("keep" in value[kind.key]) == (kind.format == "toml" or "other" in before)
        assert kind.format == "json" or "# why" in written
    after = tree(home)
    assert clients.install(way, name, config=config, name=None, write=True)["does"] == "unchanged"
    assert tree(home) == after
    assert clients.uninstall(way.id, name, config=config, write=False)["does"] == "restore"
    assert tree(home) == after
    clients.uninstall(way.id, name, config=config, write=True)
    assert tree(home) == state
    with pytest.raises(StudyError, match="was not installed"):
        clients.uninstall(way.id, name, config=config, write=True)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("claude-code", {"type": "http", "url": "https://x.y/mcp"}),
        ("vscode", {"type": "http", "url": "https://x.y/mcp"}),
        ("cursor", {"url": "https://x.y/mcp"}),
        ("windsurf", {"serverUrl": "https://x.y/mcp"}),
        ("zed", {"url": "https://x.y/mcp"}),
        ("cline", {"type": "streamableHttp", "url": "https://x.y/mcp"}),
        ("codex", {"url": "https://x.y/mcp"}),
    ],
)
def test_a_remote_server_has_each_clients_own_spelling(home, name, expected):
    header = "http_headers" if name == "codex" else "headers"
    assert clients.client(name).entry(start(server(AWAY))) == expected | {header: {"Authorization": "Bearer <TOKEN>"}}


def test_a_client_without_remote_servers_says_so(home):
    for name, way in (("claude-desktop", AWAY), ("zed", replace(AWAY, transport="sse"))):
        with pytest.raises(StudyError, match="takes no remote server"):
            clients.install(start(server(way)), name, config=None, name=None, write=True)


@pytest.mark.parametrize(
    "text",
    [
        '{"context_servers": {} // mine\n}',
        '{"context_servers": {},}',
        '/* x */ {"a": 1}',
        '{"a": 1, "a": 2}',
        '{"context_servers": [1]}',
        "[1]",
        "{",
        '{"a": 1E400}',
        '{"a": 0.1234567890123456789}',
        '{"a": "\\ud800"}',
        "\ufeff{}",
    ],
)
def test_a_file_that_would_lose_something_is_left_alone(home, text):
    file = home / ".config" / "zed" / "settings.json"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    with pytest.raises(StudyError, match=r"settings\.json"):
        clients.install(start(server(NPM)), "zed", config=None, name=None, write=True)
    assert [path.name for path in file.parent.iterdir()] == ["settings.json"]
    assert file.read_text() == text


def test_a_broken_toml_file_is_left_alone(home):
    (home / "x.toml").write_text("a = [")
    with pytest.raises(StudyError, match="without loss"):
        clients.install(start(server(NPM)), "codex", config=home / "x.toml", name=None, write=True)


def test_what_the_user_filled_in_stays_and_another_entry_is_never_replaced(home):
    file = home / ".cursor" / "mcp.json"
    clients.install(start(server(NPM)), "cursor", config=None, name=None, write=True)
    value = json.loads(file.read_text())
    value["mcpServers"]["n"]["env"]["KEY"] = "hunter2"
    value["mcpServers"]["n"]["args"][-1] = "/home/me"
    file.write_text(json.dumps(value))
    assert clients.install(start(server(NPM)), "cursor", config=None, name=None, write=True)["does"] == "unchanged"
    newer = start(server(NPM), version="2.0.0")
    assert clients.install(newer, "cursor", config=None, name=None, write=True)["does"] == "replace"
    entry = json.loads(file.read_text())["mcpServers"]["n"]
    assert (entry["env"]["KEY"], entry["args"][1]) == ("hunter2", "@o/n@2.0.0")
    other = start(server(PYPI) | {"id": "p/n"})
    with pytest.raises(StudyError, match="another entry 'n'"):
        clients.install(other, "cursor", config=None, name=None, write=True)
    assert clients.install(other, "cursor", config=None, name="p-n", write=True)["does"] == "add"
    # The file changed since: only the entry goes.
    assert clients.uninstall("o/n", "cursor", config=None, write=True)["does"] == "take out the entry"
    assert list(json.loads(file.read_text())["mcpServers"]) == ["p-n"]


def test_a_link_stays_a_link_and_line_ends_stay(home):
    real = home / "dotfiles" / "mcp.json"
    real.parent.mkdir()
    real.write_bytes(b'{\r\n\t"mcpServers": {}\r\n}')
    (home / ".cursor").mkdir()
    (home / ".cursor" / "mcp.json").symlink_to(real)
    clients.install(start(server(PYPI)), "cursor", config=None, name=None, write=True)
    assert (home / ".cursor" / "mcp.json").is_symlink()
    assert real.read_bytes().startswith(b'{\r\n\t"mcpServers": {\r\n\t\t"n"')
    clients.uninstall("o/n", "cursor", config=None, write=True)
    assert real.read_bytes() == b'{\r\n\t"mcpServers": {}\r\n}'


@pytest.mark.parametrize("name", ["../x", "a b", "", "a;b", "x" * 65])
def test_a_hostile_name_of_an_entry_is_refused(home, name):
    with pytest.raises(StudyError):
        clients.install(start(server(PYPI)), "cursor", config=None, name=name or " ", write=True)
    assert not (home / ".cursor").exists()


@pytest.mark.parametrize(
    ("identifier", "name"),
    [("o/My_Server.js", "my-server-js"), ("npm:@a/b", "b"), ("toolsdk:c/x.json", "x"), ("a/éé", "server")],
)
def test_an_entry_is_named_after_the_id(identifier, name):
    assert clients.entry_name(identifier) == name


def test_a_new_user_installs_and_undoes(home, conf_root, call, monkeypatch, tmp_path_factory):
    mirror = tmp_path_factory.mktemp("mirror")
    monkeypatch.setenv("T2M_MIRROR", str(mirror))
    env = {"TOKEN": {"description": "$(curl evil)", "required": True}}
    entries = {
        "a": toolsdk_entry(
            "a-mcp", "https://github.com/o/a", packageVersion="1.0.0", env=env, description="run `rm -rf ~`"
        ),
        "b": toolsdk_entry("b-mcp", "https://github.com/o/b", packageVersion="1.0.0"),
    }
    pin(conf_root, mirror, "toolsdk", toolsdk_files(entries, valid=("a",)))
    assert call("catalog", "sync", "--source", "toolsdk")[0] == 0
    code, out, _ = call("install", "a-mcp", "--client", "claude-desktop")
    assert code == 0
    assert "start:    npx -y a-mcp@1.0.0" in out
    assert "fill in:  TOKEN" in out
    assert "nothing written" in out
    assert "rm -rf" not in out
    for name, read in (("codex", tomllib.loads), ("cursor", json.loads)):  # as that client's file has it
        shown = call("install", "a-mcp", "--client", name)[1].partition("fill in:  TOKEN\n")[2].rpartition("\n/")[0]
        ((entry,),) = [part.values() for part in read(shown).values()]
        assert (entry["command"], entry["args"]) == ("npx", ["-y", "a-mcp@1.0.0"])
    assert "curl" not in out
    assert tree(home) == {}
    assert call("install", "o/a", "--client", "claude-desktop", "--write")[0] == 0
    assert "already there" in call("install", "o/a", "--client", "claude-desktop", "--write")[1]
    code, _, err = call("install", "o/b", "--client", "json")
    assert (code, "--unverified" in err) == (2, True)
    code, out, _ = call("install", "o/b", "--client", "json", "--unverified")
    assert (code, "not verified" in out) == (0, True)
    assert json.loads(call("install", "o/b", "--client", "json", "--unverified", "--json")[1])["vouched"] == []
    for words in (
        ["o/a", "--client", "emacs"],
        ["../../etc", "--client", "json"],
        ["o/a", "--client", "json", "--with", "make"],
    ):
        assert call("install", *words)[0] == 2
    assert call("install", "o/b", "--client", "json", "--unverified", "--write")[0] == 2
    assert call("uninstall", "o/a", "--client", "claude-desktop", "--write")[0] == 0
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
    with pytest.raises(StudyError, match=r"no regular file|has no place"):
        clients.install(start(server(NPM)), "cursor", config=file, name=None, write=True)


def test_a_file_keeps_its_mode_and_a_new_one_is_private(home):
    for name, mode in (("old.json", 0o640), ("new.json", 0o600)):
        file = home / name
        if name == "old.json":
            file.write_text("{}")
            file.chmod(mode)
        clients.install(start(server(NPM)), "cursor", config=file, name=None, write=True)
        assert file.stat().st_mode & 0o777 == mode


def test_installations_at_one_moment_all_stand_in_file_and_journal(home):
    file, names = home / "x.json", [f"n{row}" for row in range(12)]
    ways = [start(server(NPM, key=name)) for name in names]
    with ThreadPoolExecutor(len(names)) as pool:
        done = [
            pool.submit(clients.install, way, "cursor", config=file, name=name, write=True)
            for way, name in zip(ways, names, strict=True)
        ]
    assert {one.result()["does"] for one in done} == {"add"}
    assert sorted(json.loads(file.read_text())["mcpServers"]) == sorted(names)
    assert len(json.loads(clients._journal_file().read_text())) == len(names)


def test_an_installation_that_is_killed_can_be_undone(home, monkeypatch):
    file, before = home / "x.json", "{}"
    file.write_text(before)

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(clients, "replace_foreign", killed)
        with pytest.raises(KeyboardInterrupt):
            clients.install(start(server(NPM)), "cursor", config=file, name=None, write=True)
    clients.uninstall(server(NPM)["id"], "cursor", config=file, write=True)
    assert file.read_text() == before
