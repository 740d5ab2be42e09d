"""Gate "answers": what the commands answer, against what they answered at commit 225550bc, or after the last wanted
change.

Asked are the requests of ``conf/recommend/requests.yaml`` over Task2MCP and over the open catalogue (`study recommend
--json`), over LiveMCPBench's tools (`study tools find --json`, every mode) and of the agent; the lists of
tools of both MCP servers; and installations of twelve servers into nine clients, with what they leave in the files.

    T2M_MIRROR=... .venv/bin/python tests/gates/answers.py prepare [--embeddings DIR]   once; needs no network
    .venv/bin/python tests/gates/answers.py check [GROUP ...]     exit code 1 and the names of the answers that differ
    .venv/bin/python tests/gates/answers.py renew GROUP ...       after a wanted change, named in CHANGELOG.md: stores
                                                                  today's answers and names those that differed

Every answer is kept as text in ``.cache/gates/answers/said``, so that two trees can be compared by `diff -r`. The tree
is the one whose environment runs this file. In git stand a digest of each answer's words and its numbers, which are
compared within 0.002: an encoder's last digits depend on the processor.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import logging
import lzma
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import yaml

import study

TREE = Path(study.__file__).parents[2]
WORK = TREE / ".cache" / "gates" / "answers"  # a project folder of its own, so that nothing of the tree changes
STORED = Path(__file__).with_suffix(".json.xz")
SETUP = (
    "catalog sync --source toolsdk --source docker --source toolhive",
    "export dataset=task2mcp system=field_dense",
    "fetch dataset=livemcpbench",
    "tools index --catalogue livemcpbench --document template",
    "recommend weather --catalog open",  # whose first call says that it encodes the catalogue
)
MODES = ("dense", "bm25", "tfidf", "hybrid", "routed")
SERVERS = {  # id -> options; of each kind of start, two of them refused
    "0xbeedao/mcp-taskwarrior": ["--version", "1.0.0"],
    "54yyyu/kaggle-mcp": ["--version", "1.0.0"],
    "21st-dev/magic-mcp": [],
    "aywengo/kafka-schema-reg-mcp": [],
    "alfonsograziano/node-code-sandbox-mcp": ["--with", "npm", "--version", "1.0.0"],
    "aliyun/alibabacloud-adb-mysql-mcp-server": ["--with", "pypi", "--version", "1.0.0", "--name", "own-name"],
    "supabase-community/supabase-mcp": ["--with", "remote"],
    "cloudflare/mcp-server-cloudflare": [],
    "docker:asana": [],
    "arize-ai/phoenix": [],
    "021-factory/laravel-debugbar-mcp": [],
    "0xkoda/wiremcp": [],
}
CLIENTS = {  # name -> the key of its file
    "claude-desktop": "mcpServers",
    "claude-code": "mcpServers",
    "vscode": "servers",
    "cursor": "mcpServers",
    "windsurf": "mcpServers",
    "zed": "context_servers",
    "cline": "mcpServers",
    "codex": "mcp_servers",
    "json": "mcpServers",
}
TOOL_LISTS = {"agent": "agent mcp", "tools": "tools serve --catalogue livemcpbench"}
# What reads a catalogue or a model; where a tree has it, it is called once for all requests.
LOADERS = (
    "study.advisor.saved.open_catalogue.load",
    "study.advisor.saved.saved.load_saved_model",
    "study.cli.tools.indexed",
    "study.cli.agent._agent",
)
NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
TOLERANCE = 0.002


def environment() -> dict[str, str]:
    """The variables of a command that works in `WORK`."""
    return {"T2M_ROOT": str(WORK), "HOME": str(WORK / "home"), "COLUMNS": "100", "OMP_NUM_THREADS": "1"}


def prepare(embeddings: Path) -> None:
    """Make `WORK`: the tree's settings and data, a catalogue of its own. `embeddings`: a store of text vectors."""
    folders = ("conf", "src", "baselines", "results", "data/prepared", "data/raw", "data/splits", "tests/reference")
    links = {name: TREE / name for name in folders}
    embeddings.mkdir(parents=True, exist_ok=True)
    for name, target in (links | {".cache/embeddings": embeddings}).items():
        (WORK / name).parent.mkdir(parents=True, exist_ok=True)
        if not (WORK / name).is_symlink():
            (WORK / name).symlink_to(target)
    for words in SETUP:
        print(f"study {words}", flush=True)
        subprocess.run([*_study(), *words.split()], env=os.environ | environment(), check=True)


def _study() -> list[str]:
    return [str(Path(sys.executable).parent / "study")]


def call(*words: str) -> str:
    """What a command says and its exit code, in this process: paths and times as words."""
    main = next(iter(entry_points(group="console_scripts", name="study"))).load()
    out, err, code, before = io.StringIO(), io.StringIO(), 0, sys.argv
    sys.argv = ["study", *words]
    logging.getLogger().handlers.clear()  # they hold the error stream of an earlier call
    try:
        with redirect_stdout(out), redirect_stderr(err):
            try:
                main()
            except SystemExit as end:
                code = int(end.code or 0)
            except Exception as error:  # a bug of the command is an answer, too
                code = 1
                err.write(f"{type(error).__name__}: {error}")
    finally:
        sys.argv = before
    return normalised(f"exit code {code}\n{out.getvalue()}{err.getvalue()}")


def normalised(text: str) -> str:
    """Paths and moments by name."""
    text = text.replace(str(WORK), "WORK").replace(str(TREE), "TREE")
    text = re.sub(r"\d{8}T\d{12}", "TIME", text)
    return re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "TIME", text)


def load_once() -> None:
    """Let each of `LOADERS` keep what it gave."""
    for name in LOADERS:
        module, _, function = name.rpartition(".")
        with suppress(ImportError):
            loaded = import_module(module)
            if hasattr(loaded, function):
                setattr(loaded, function, cache(getattr(loaded, function)))


def requests() -> list[str]:
    """The requests, those that a server serves first."""
    parts = yaml.safe_load((TREE / "conf" / "recommend" / "requests.yaml").read_text(encoding="utf-8"))
    return [*parts["served"], *parts["unserved"]]


def recommend() -> Iterator[tuple[str, str]]:
    """`study recommend --json` over both catalogues."""
    for catalogue in ("task2mcp", "open"):
        for request in requests():
            yield f"{catalogue}: {request}", call("recommend", request, "--catalog", catalogue, "--json")


def find() -> Iterator[tuple[str, str]]:
    """`study tools find --json`, every mode."""
    for mode in MODES:
        for request in requests():
            yield f"{mode}: {request}", call("tools", "find", request, "--method", mode, "--json")


def agent() -> Iterator[tuple[str, str]]:
    """`study agent ask --json`."""
    for request in requests():
        yield request, call("agent", "ask", request, "--json")


def lists() -> Iterator[tuple[str, str]]:
    """Names, descriptions and arguments of the tools of both MCP servers."""
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "gate", "version": "1"}}
    messages = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
    ]
    for name, words in TOOL_LISTS.items():
        command = [*_study(), *words.split()]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, env=os.environ | environment(), stdin=pipe, stdout=pipe, text=True) as server:
            assert server.stdin is not None
            assert server.stdout is not None
            server.stdin.write("".join(f"{json.dumps(message)}\n" for message in messages))
            server.stdin.flush()
            answers = (json.loads(line) for line in server.stdout)
            tools = next(answer["result"]["tools"] for answer in answers if answer.get("id") == 2)
            server.stdin.close()
        yield name, json.dumps(tools, indent=1, sort_keys=True)


def install() -> Iterator[tuple[str, str]]:
    """What `study install` and `study uninstall` say and leave in a client's file, which is absent before for half of
    the servers and has another entry for the others."""
    for start, (client, key) in enumerate(CLIENTS.items()):
        for place, (server, options) in enumerate(SERVERS.items(), start=start):
            file = WORK / "home" / "client.conf"
            shutil.rmtree(file.parent, ignore_errors=True)
            file.parent.mkdir(parents=True)
            if place % 2:
                toml = f'model = "o"\n\n[{key}.other]\ncommand = "x"\n'
                other = f'{{\n    "theme": "dark",\n    "{key}": {{"other": {{"command": "x"}}}}\n}}'
                file.write_text(toml if client == "codex" else other, encoding="utf-8")
            where = [server, "--client", client, "--config", str(file), "--write"]
            said = [call("install", *where, *options), _bytes(file), call("uninstall", *where), _bytes(file)]
            yield f"{client} {server}", "\n".join(said)


def _bytes(file: Path) -> str:
    return file.read_bytes().decode() if file.exists() else "(no file)"


GROUPS = {
    "recommend": recommend,
    "find": find,
    "agent": agent,
    "lists": lists,
    "install": install,
}


def digest(text: str) -> tuple[str, list[float]]:
    """SHA-256 of the words (12 digits), and the numbers with a decimal point, to three decimals."""
    numbers = [round(float(number), 3) for number in NUMBER.findall(text)]
    return hashlib.sha256(NUMBER.sub("#", text).encode()).hexdigest()[:12], numbers


def same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two digests are of the same answer."""
    return one[0] == other[0] and bool(np.allclose(one[1], other[1], rtol=0, atol=TOLERANCE + 1e-9))


def answers(group: str) -> dict[str, tuple[str, list[float]]]:
    """The digest of every answer of a group; the answers themselves are kept in `WORK`."""
    said, kept = {}, WORK / "said" / group
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    for name, text in GROUPS[group]():
        said[name] = digest(text)
        (kept / f"{re.sub(r'[^A-Za-z0-9]+', '_', name)[:80]}.{digest(name)[0]}.txt").write_text(text, encoding="utf-8")
    return said


def main() -> int:
    """Run the gate; see the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("prepare", "check", "renew"))
    parser.add_argument("groups", nargs="*", choices=[*GROUPS, []])
    parser.add_argument("--embeddings", type=Path, default=TREE / ".cache" / "embeddings")
    chosen = parser.parse_args()
    if chosen.what == "prepare":
        prepare(chosen.embeddings.absolute())
        return 0
    os.environ.update(environment())
    load_once()
    stored = json.loads(lzma.decompress(STORED.read_bytes())) if STORED.exists() else {}
    differ = 0
    for group in chosen.groups or GROUPS:
        now = answers(group)
        old = stored.get(group, {})
        others = [name for name in old | now if not (name in old and name in now and same(old[name], now[name]))]
        print(f"{group}: {len(now)} answers, {len(others)} differ", flush=True)
        for name in others:
            print(f"  {name}")
        differ += len(others)
        if chosen.what != "check":
            stored[group] = now
            STORED.write_bytes(lzma.compress(json.dumps(stored).encode(), preset=9))
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
