"""MCP-Flow's samples and trajectories in the forms that programs for fine-tuning read.

``openai``: messages with tool calls, as OpenAI's interface and the library trl take them. ``sharegpt``: conversations
with function calls and observations, as LLaMA-Factory takes them, with which the paper trains (appendix C.1).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from study.advisor.retrieval.documents import ToolCatalog
from study.base.errors import StudyError, require_one_of
from study.tools.flow.samples import Sample
from study.tools.flow.selector import duplicates, pool_of

OTHER = re.compile(r"[^A-Za-z0-9_-]")  # what the name of a function may not hold
LONGEST = 64  # characters of such a name
FIX = "give lines as `study tools loop` keeps them: source_instruction, tools, steps, final_response"
FORMATS = ("openai", "sharegpt")
Step = tuple[str, Mapping[str, Any], str | None]  # of a call: tool, arguments, and what it answered (None: not called)
Line = TypeVar("Line")


def conversation(
    instruction: str, tools: Sequence[Mapping[str, Any]], steps: Sequence[Step], answer: str | None = None
) -> dict[str, Any]:
    """The openai form, keys messages and tools. `tools`: on offer, with name, description and inputSchema."""
    names = function_names(tools)
    messages: list[dict[str, Any]] = [{"role": "user", "content": instruction}]
    for number, (name, arguments, result) in enumerate(steps):
        call = {"name": names[name], "arguments": json.dumps(dict(arguments), ensure_ascii=False)}
        key = f"call_{number}"
        messages.append({"role": "assistant", "tool_calls": [{"id": key, "type": "function", "function": call}]})
        if result is not None:
            messages.append({"role": "tool", "tool_call_id": key, "content": result})
    if answer is not None:
        messages.append({"role": "assistant", "content": answer})
    functions = [
        {"name": names[tool["name"]], "description": tool["description"], "parameters": tool["inputSchema"]}
        for tool in tools
    ]
    return {"messages": messages, "tools": [{"type": "function", "function": own} for own in functions]}


def function_names(tools: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """A name for every tool that the forms allow: other characters become ``_``, and a number ends a name that two
    would share."""
    found: dict[str, str] = {}
    for tool in tools:
        name = short = OTHER.sub("_", tool["name"])[:LONGEST] or "_"
        number = 1
        while name in found.values():
            number += 1
            name = f"{short[: LONGEST - len(f'_{number}')]}_{number}"
        found[tool["name"]] = name
    return found


def from_samples(
    catalog: ToolCatalog, samples: Sequence[Sample], size: int, rng: np.random.Generator
) -> Iterator[dict[str, Any]]:
    """Each sample with `size` tools on offer, the right one among them, the others drawn from the catalogue."""
    every, alike = np.arange(len(catalog.tools)), duplicates(catalog)
    for sample in samples:
        shown = pool_of(sample, every, size, alike[sample.tool], rng).tolist()
        # Two tools of one name cannot be told apart in a call.
        own = {catalog.tools[row].name: catalog.tools[row] for row in [*shown, sample.tool]}
        offered = []
        for name, tool in own.items():
            schema = dict(tool.schema) or {"type": "object", "properties": {}}
            offered.append({"name": name, "description": tool.description, "inputSchema": schema})
        yield conversation(sample.text, offered, [(catalog.tools[sample.tool].name, sample.arguments, None)])


def read_lines(path: Path, what: str, fix: str, parse: Callable[[Any], Line]) -> Iterator[Line]:
    """The JSON lines of a file, parsed; StudyError with `fix` where it cannot be read or a line is not `what`."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise StudyError(f"cannot be read ({error})", file=path, fix=fix) from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield parse(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise StudyError(f"not {what} ({error!r})", file=path, row=number, fix=fix) from error


def read_trajectories(path: Path) -> Iterator[dict[str, Any]]:
    """The trajectories that `study tools loop` keeps (`gateway.loop.Trajectory`), without failed calls."""
    return read_lines(path, "a trajectory", FIX, _trajectory)


def _trajectory(told: Any) -> dict[str, Any]:
    done = [own for own in told["steps"] if "function_call" in own and not own["is_error"]]
    called = [(own["function_call"], str(own["tool_response"])) for own in done]
    steps = [(call["name"], dict(call["arguments"]), result) for call, result in called]
    tools = [{key: own[key] for key in ("name", "description", "inputSchema")} for own in told["tools"]]
    if missing := {name for name, _, _ in steps} - {own["name"] for own in tools}:
        raise ValueError(f"a call of {missing.pop()!r}, which is not among the tools")
    return conversation(str(told["source_instruction"]), tools, steps, told["final_response"] or None)


def as_sharegpt(one: Mapping[str, Any]) -> dict[str, Any]:
    """The sharegpt form of the openai form: keys conversations and tools, the tools as JSON in a text."""
    turns = []
    for message in one["messages"]:
        kind = {"user": "human", "tool": "observation", "assistant": "gpt"}[message["role"]]
        value = message.get("content")
        for call in (own["function"] for own in message.get("tool_calls", ())):
            kind, arguments = "function_call", json.loads(call["arguments"])
            value = json.dumps({"name": call["name"], "arguments": arguments}, ensure_ascii=False)
        turns.append({"from": kind, "value": value})
    functions = [tool["function"] for tool in one["tools"]]
    return {"conversations": turns, "tools": json.dumps(functions, ensure_ascii=False)}


def exported(found: Iterator[dict[str, Any]], form: str) -> Iterator[str]:
    """One JSON object a line, without its end; `found`: in the openai form."""
    require_one_of(form, "format", FORMATS)
    for one in found:
        yield json.dumps(as_sharegpt(one) if form == "sharegpt" else one)
