"""A tool of the study's own MCP servers, made of a function: strict about names, lenient about how values stand."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from types import new_class
from typing import Any

from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.types import ToolAnnotations
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from study.advisor.engine.limits import Strict
from study.base.errors import StudyError


class Plain(GenerateJsonSchema):
    """Schemas in which what may be left out has its type alone: pydantic offers null beside it, as the default, and
    some clients cannot read a choice of types."""

    def nullable_schema(self, schema: Any) -> JsonSchemaValue:
        """The schema without null."""
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: Any) -> JsonSchemaValue:
        """The schema without null as its default."""
        return (
            super().default_schema(schema)
            if schema.get("default") is not None
            else self.generate_inner(schema["schema"])
        )


class Short(Plain):
    """Schemas without titles, which repeat the names at the cost of tokens."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """No."""
        return False


def made(function: Callable[..., Any], annotations: ToolAnnotations, schemas: type[GenerateJsonSchema] = Plain) -> Tool:
    """A tool that refuses arguments which it does not know (the SDK would swallow them), and takes nulls, whole numbers
    and texts as `Strict` does. An error that the caller can mend becomes the tool's error."""

    @wraps(function)
    def told(*args: Any, **arguments: Any) -> Any:
        try:
            return function(*args, **arguments)
        except StudyError as error:
            raise ToolError(str(error)) from error

    @wraps(function)
    async def told_later(*args: Any, **arguments: Any) -> Any:
        try:
            return await function(*args, **arguments)
        except StudyError as error:
            raise ToolError(str(error)) from error

    how: Any = {"description": inspect.cleandoc(str(function.__doc__)), "annotations": annotations}
    waits = inspect.iscoroutinefunction(function)
    tool = Tool.from_function(told_later if waits else told, structured_output=False, **how)
    model = tool.fn_metadata.arg_model
    closed: type[Any] = new_class(
        model.__name__, (Strict, model), exec_body=lambda body: body.update(__module__=__name__)
    )
    tool.fn_metadata.arg_model = closed
    tool.parameters = closed.model_json_schema(by_alias=True, schema_generator=schemas)
    return tool
