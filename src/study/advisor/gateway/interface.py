"""What the study's own MCP servers share: tools made of functions, and answers to what is no message."""

from __future__ import annotations

import inspect
import json
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial, wraps
from typing import Any

import anyio
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.message import SessionMessage
from mcp.types import ToolAnnotations
from mcp_types import INVALID_REQUEST, PARSE_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter
from pydantic import ValidationError, create_model
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from study.advisor.strict import Strict
from study.base.errors import StudyError

LONG = 1_000  # digits of an integer
SESSIONS = 1_000  # over HTTP, at once; the SDK ends one after half an hour without a request


class Server(MCPServer[Any]):
    """The SDK's server, which over standard input and output answers what is no message, too: the SDK drops it, and who
    sent it waits for ever."""

    async def run_stdio_async(self) -> None:
        """Serve until standard input ends. What else is printed goes to standard error."""
        lines = anyio.wrap_file(open(os.dup(0), encoding="utf-8", errors="replace"))  # noqa: SIM115
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

        async def messages() -> AsyncIterator[str]:
            async for line in lines:
                if (answer := refusal(line)) is None:
                    yield line
                elif line.strip():
                    await writing.send(SessionMessage(answer))

        async with stdio_server(messages()) as (reading, writing):  # type: ignore[arg-type]
            low = self._lowlevel_server
            await low.run(reading, writing, low.create_initialization_options())

    def serve(self, bound: socket.socket, names: TransportSecuritySettings) -> None:
        """Serve over streamable HTTP at a listening socket until the program is ended. `names`: who may ask."""
        from study.advisor.serving import serve

        serve(self.streamable_http_app(transport_security=names, max_sessions=SESSIONS), bound)


def refusal(line: str) -> JSONRPCError | None:
    """The error for a line that is no message of JSON-RPC, with the id that it names; None for a message, and for what
    would have been an answer."""
    try:
        jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValidationError:
        code, message, name = PARSE_ERROR, "Parse error", None
        with suppress(ValueError, RecursionError):  # too deep, or no JSON
            # An integer of thousands of digits is JSON, but Python would refuse to read it.
            value = json.loads(line, parse_int=lambda digits: int(digits) if len(digits) < LONG else None)
            code, message = INVALID_REQUEST, "Invalid Request"
            if isinstance(value, dict):
                name = value.get("id")
                if "method" not in value and value.keys() & {"result", "error"}:
                    return None
        named = name if isinstance(name, (int, str)) and not isinstance(name, bool) else None
        return JSONRPCError(jsonrpc="2.0", id=named, error=ErrorData(code=code, message=message))
    return None


def as_json(value: Any) -> str:
    """Compact JSON, as every letter is read by a model."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


class Plain(GenerateJsonSchema):
    """Schemas in which what may be left out has its type alone: pydantic offers null beside it, as the default, and
    some clients cannot read a choice of types."""

    def nullable_schema(self, schema: Any) -> JsonSchemaValue:
        """The schema without null."""
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: Any) -> JsonSchemaValue:
        """The schema without null as its default."""
        if schema.get("default") is None:
            return self.generate_inner(schema["schema"])
        return super().default_schema(schema)


class Short(Plain):
    """Schemas without titles, which repeat the names at the cost of tokens."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """No."""
        return False


def make_tool(
    function: Callable[..., Any], annotations: ToolAnnotations, schemas: type[GenerateJsonSchema] = Plain
) -> Tool:
    """A tool that refuses arguments which it does not know (the SDK would swallow them), and takes nulls, whole numbers
    and texts as `Strict` does. An error that the caller can mend becomes the tool's error."""

    @wraps(function)
    async def call(*args: Any, **arguments: Any) -> Any:
        try:
            if inspect.iscoroutinefunction(function):
                return await function(*args, **arguments)
            return await anyio.to_thread.run_sync(partial(function, *args, **arguments))
        except StudyError as error:
            raise ToolError(str(error)) from error

    how: Any = {"description": inspect.cleandoc(str(function.__doc__)), "annotations": annotations}
    tool = Tool.from_function(call, structured_output=False, **how)
    model = tool.fn_metadata.arg_model
    closed: Any = create_model(model.__name__, __base__=(Strict, model), __module__=__name__)
    tool.fn_metadata.arg_model = closed
    tool.parameters = closed.model_json_schema(by_alias=True, schema_generator=schemas)
    del tool.parameters["title"]  # it repeats the name, at the cost of tokens
    return tool
