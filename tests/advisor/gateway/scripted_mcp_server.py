"""An MCP server on stdin and stdout that behaves as its first argument says. Standard library only."""

import json
import os
import signal
import subprocess
import sys
import time

MODE = os.environ.get("SCRIPTED_MODE", sys.argv[1])
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
GOOD = {"name": "read_file", "description": "read a file", "inputSchema": SCHEMA}
TOOLS = {
    "one_bad": [GOOD, {"name": 7}, GOOD | {"name": "x", "inputSchema": {"type": "string"}}],
    "twins": [GOOD, GOOD | {"description": "write a file"}, GOOD | {"name": ""}],
    "cyclic": [GOOD | {"inputSchema": {"type": "object", "$ref": "#"}}],
    "lies": [{"name": 7, "inputSchema": "none"}],
    "surrogate": [GOOD, GOOD | {"name": "x", "description": "half of a pair: \ud800"}],
    "changed": [GOOD | {"description": "send a mail"}, GOOD | {"name": "more"}],
}
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
PATTERN = {"type": "object", "properties": {"text": {"pattern": "^(a+)+$"}}}
CALLS = dict.fromkeys(("echo", "die", "hang", "flood", "big", "huge", "fail", "grow"), TEXT)
CALLS |= {"endless": {"type": "object", "$ref": "#"}, "slow": PATTERN}
LETTERS = {"type": "object", "properties": {"text": {"pattern": "^\\p{L}+$", "type": "string"}}}
ODD = {
    "hologram": {"content": [{"type": "text", "text": "read"}, {"type": "hologram", "rays": 5}, 7]},
    "wrong": {"content": [{"type": "text", "text": "read"}], "structuredContent": ["x"], "isError": "no"},
    "nothing": {"contents": "read"},
    "texts": {"content": "read"},
}
SLOW = dict.fromkeys(("work", "tarry", *ODD), LETTERS)
TOOLS["odd"] = [{"name": name, "inputSchema": own} for name, own in SLOW.items()]
TOOLS["calls"] = [{"name": name, "description": f"{name} a file", "inputSchema": own} for name, own in CALLS.items()]
LARGE = {"name": "x", "inputSchema": SCHEMA | {"description": "x" * 10_000_000 * (MODE == "large")}}
TOOLS |= {"many": [GOOD] * 20_000, "large": [GOOD, LARGE]}
NEXT = {"stuck": "again", "half": "more"}


def tools(cursor):
    """A page of the list."""
    if MODE == "half" and cursor:
        sys.exit(3)
    more = NEXT.get(MODE)
    if MODE == "pages" and cursor != "2":
        more = str(int(cursor or 0) + 1)
    if MODE == "endless":
        more = f"{cursor}x"
    listed = [GOOD | {"name": f"t{cursor or 0}"}] if MODE == "pages" else TOOLS.get(MODE, [GOOD])
    return {"tools": listed} | ({"nextCursor": more} if more else {})


def answer(message):
    """The result of a request; None is an unknown method."""
    method, params = message.get("method"), message.get("params") or {}
    if MODE == "modern":
        about = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
        known = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
        return {"server/discover": known | about, "tools/list": {"tools": [GOOD]} | about}.get(method)
    if method == "initialize":
        offers = {"prompts" if MODE == "prompts" else "tools": {}}
        known = {"capabilities": offers, "serverInfo": {"name": "scripted", "version": "1"}}
        return known | {"protocolVersion": params["protocolVersion"], "instructions": "keeps files"}
    if method == "tools/list" and MODE != "prompts":
        if MODE == "speaks":
            sys.exit(" ".join([*sys.argv[2:], *os.environ.values()]))
        if MODE == "hangs":
            time.sleep(60)
        if MODE == "dies":
            sys.exit(3)
        return tools(params.get("cursor"))
    if method == "tools/call":
        return called(params.get("_meta") or {}, params["name"], params["arguments"])
    return {} if method == "ping" else None


def write(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0"} | message) + "\n")
    sys.stdout.flush()


def called(about, name, arguments):
    """The result of a call."""
    if name in ODD:
        return ODD[name]
    if name in ("work", "tarry"):
        for step in range(60 if name == "tarry" else 14):
            time.sleep(0.1)
            report = {"progressToken": about["progressToken"], "progress": step}
            write({"method": "notifications/progress", "params": report})
    if name == "die":
        print("out of paper", end="", file=sys.stderr, flush=True)
        os._exit(9)
    if name == "hang":
        time.sleep(60)
    if name == "flood":
        for _ in range(400):
            sys.stderr.write("x" * 100_000)
    if name == "grow":
        TOOLS["calls"].append(GOOD | {"name": "grown"})
        write({"method": "notifications/tools/list_changed"})
    text = "x" * {"big": 300_000, "huge": 500_000}.get(name, 0) or json.dumps(arguments)
    return {"content": [{"type": "text", "text": text}], "isError": name == "fail"}


def deaf():
    """A program that ends for no wish, with a child of its own; the file named second takes their numbers."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(sys.argv[2], "w") as file:
        file.write(f"{os.getpid()} {child.pid} {os.getppid()}")
    time.sleep(600)


def daemon():
    """A server with a process that has left its group and its parent; the file named second takes its number."""
    if os.fork():
        return os.wait()
    os.setsid()
    if os.fork():
        os._exit(0)
    with open(sys.argv[2], "w") as file:
        file.write(str(os.getpid()))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for stream in range(3):
        os.close(stream)
    time.sleep(600)


{"mute": lambda: time.sleep(60), "deaf": deaf, "daemon": daemon}.get(MODE, int)()
greeted = False
for line in sys.stdin:
    message = json.loads(line)
    if MODE in ("picky", "quiet") and not greeted and message["method"] != "initialize":
        if MODE == "picky":
            sys.exit(1)
        continue
    greeted = True
    if MODE == "garbage":
        sys.stdout.write("not json at all\n")
    if MODE == "latin":
        sys.stdout.flush()
        os.write(1, b"\xe9t\xe9\n")
    if "id" in message:
        if MODE == "million" and message["method"] == "tools/list":  # as text, which takes no time
            entries = ",".join([json.dumps(GOOD)] * 200_000)
            sys.stdout.write(f'{{"jsonrpc": "2.0", "id": {message["id"]}, "result": {{"tools": [{entries}]}}}}\n')
            continue
        result = answer(message)
        unknown = {"error": {"code": -32601, "message": "Method not found"}}
        write({"id": message["id"]} | ({"result": result} if result is not None else unknown))
    sys.stdout.flush()
