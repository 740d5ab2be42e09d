"""An MCP server on stdin and stdout that behaves as its first argument says. Standard library only."""

import json
import sys
import time

MODE = sys.argv[1]
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
GOOD = {"name": "read_file", "description": "read a file", "inputSchema": SCHEMA}
TOOLS = {
    "one_bad": [GOOD, {"name": 7}, GOOD | {"name": "x", "inputSchema": {"type": "string"}}],
    "twins": [GOOD, GOOD | {"description": "write a file"}, GOOD | {"name": ""}],
    "cyclic": [GOOD | {"inputSchema": {"type": "object", "$ref": "#"}}],
    "lies": [{"name": 7, "inputSchema": "none"}],
    "changed": [GOOD | {"description": "send a mail"}, GOOD | {"name": "more"}],
}
NEXT = {"endless": "again", "half": "more"}


def tools(cursor):
    if MODE == "half" and cursor:
        sys.exit(3)
    if MODE == "pages":
        more = {} if cursor == "2" else {"nextCursor": str(int(cursor or 0) + 1)}
        return {"tools": [GOOD | {"name": f"t{cursor or 0}"}]} | more
    more = {"nextCursor": NEXT[MODE]} if MODE in NEXT else {}
    return {"tools": TOOLS.get(MODE, [GOOD])} | more


def answer(message):
    method = message.get("method")
    if method == "initialize":
        known = {"capabilities": {"tools": {}}, "serverInfo": {"name": "scripted", "version": "1"}}
        return known | {"protocolVersion": message["params"]["protocolVersion"], "instructions": "keeps files"}
    if method == "tools/list":
        if MODE == "hangs":
            time.sleep(60)
        if MODE == "dies":
            sys.exit(3)
        return tools((message.get("params") or {}).get("cursor"))
    return None


if MODE == "mute":
    time.sleep(60)
for line in sys.stdin:
    message = json.loads(line)
    if MODE == "garbage":
        sys.stdout.write("not json at all\n")
    if "id" in message:
        result = answer(message)
        unknown = {"error": {"code": -32601, "message": "Method not found"}}
        reply = {"jsonrpc": "2.0", "id": message["id"], **({"result": result} if result is not None else unknown)}
        sys.stdout.write(json.dumps(reply) + "\n")
    sys.stdout.flush()
