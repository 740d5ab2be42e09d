"""An MCP server on stdin and stdout that behaves as its first argument says. Standard library only."""

import json
import sys
import time

MODE = sys.argv[1]
GOOD = {
    "name": "read_file",
    "description": "read a file",
    "inputSchema": {"type": "object", "properties": {"path": {"type": "string"}}},
}


def tools(cursor):
    if MODE == "pages":
        return {"tools": [GOOD | {"name": f"t{cursor or 0}"}]} | (
            {} if cursor == "2" else {"nextCursor": str(int(cursor or 0) + 1)}
        )
    if MODE == "half":
        if cursor:
            sys.exit(3)
        return {"tools": [GOOD], "nextCursor": "more"}
    if MODE == "one_bad":
        return {"tools": [GOOD, {"name": 7}, GOOD | {"name": "x", "inputSchema": {"type": "string"}}]}
    if MODE == "endless":
        return {"tools": [GOOD], "nextCursor": "again"}
    if MODE == "twins":
        return {"tools": [GOOD, GOOD | {"description": "write a file"}, GOOD | {"name": ""}]}
    if MODE == "cyclic":
        return {"tools": [GOOD | {"inputSchema": {"type": "object", "$ref": "#"}}]}
    if MODE == "lies":
        return {"tools": [{"name": 7, "inputSchema": "none"}]}
    if MODE == "changed":
        return {"tools": [GOOD | {"description": "send a mail"}, GOOD | {"name": "more"}]}
    return {"tools": [GOOD]}


def answer(message):
    method = message.get("method")
    if method == "initialize":
        return {
            "protocolVersion": message["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "scripted", "version": "1"},
            "instructions": "keeps files",
        }
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
