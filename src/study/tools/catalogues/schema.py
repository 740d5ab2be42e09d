"""Input schemas of tools as far as retrieval needs them: the parameters, read defensively.

A schema is a stranger's JSON Schema: it may refer to itself, nest without end, or be no schema at all. Only the top
level is read, references are followed inside the document at most `MAX_STEPS` times, and whatever does not fit is left
out and counted by the caller.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Characters of a schema's JSON: the largest of 12,777 public tools has 36,000. A larger one is not a tool's interface.
MAX_CHARACTERS = 200_000
MAX_PARAMETERS = 500
MAX_STEPS = 50

Schema = Mapping[str, Any]


@dataclass(frozen=True)
class Parameter:
    """One argument of a tool."""

    name: str
    type: str
    description: str
    required: bool


def parameters(schema: Schema) -> tuple[Parameter, ...]:
    """The top-level parameters of an input schema, in its order, each name once.

    ``$ref`` inside the document and ``allOf``, ``anyOf``, ``oneOf`` at the top are followed; a reference that leads
    back to itself ends there. Anything that is not a JSON Schema object gives no parameters.
    """
    found: dict[str, Parameter] = {}
    seen: set[int] = set()
    waiting: list[Any] = [schema]
    steps = 0
    while waiting and steps < MAX_STEPS and len(found) < MAX_PARAMETERS:
        steps += 1
        part = resolve(waiting.pop(0), schema)
        if not isinstance(part, Mapping) or id(part) in seen:
            continue
        seen.add(id(part))
        required = part.get("required")
        needed = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
        properties = part.get("properties")
        for name, value in properties.items() if isinstance(properties, Mapping) else ():
            if name not in found and len(found) < MAX_PARAMETERS:
                found[str(name)] = _parameter(str(name), resolve(value, schema), name in needed)
        for key in ("allOf", "anyOf", "oneOf"):
            branches = part.get(key)
            waiting += branches if isinstance(branches, list) else []
    return tuple(found.values())


def _parameter(name: str, value: Any, required: bool) -> Parameter:
    entry = value if isinstance(value, Mapping) else {}
    kind, text = entry.get("type"), entry.get("description")
    if isinstance(kind, list):
        kind = " or ".join(item for item in kind if isinstance(item, str))
    return Parameter(name, kind if isinstance(kind, str) else "", text if isinstance(text, str) else "", required)


def resolve(part: Any, document: Schema) -> Any:
    """Follow ``$ref`` pointers into `document` (RFC 6901); None where one leads nowhere or round in a circle."""
    seen: set[str] = set()
    while isinstance(part, Mapping) and isinstance(part.get("$ref"), str):
        pointer = part["$ref"]
        if pointer in seen or not pointer.startswith("#"):
            return None
        seen.add(pointer)
        part = _at(document, pointer[1:])
    return part


def _at(document: Any, pointer: str) -> Any:
    for step in pointer.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(document, Mapping):
            document = document.get(key)
        elif isinstance(document, list) and key.isdecimal() and int(key) < len(document):
            document = document[int(key)]
        else:
            return None
    return document


def fault(schema: Any) -> str | None:
    """What makes a schema unusable, in words that name a cleaning rule; None where it can be kept."""
    if not isinstance(schema, Mapping):
        return "input schema is not an object, left out"
    try:
        size = len(json.dumps(schema, ensure_ascii=False))
    except (RecursionError, ValueError, TypeError):
        return "input schema nests too deeply, left out"
    return "input schema is too large, left out" if size > MAX_CHARACTERS else None
