"""MCP-Flow's samples and trajectories in the forms that programs for fine-tuning read.

``openai``: messages with tool calls, as OpenAI's interface and the library trl take them. ``sharegpt``: conversations
with function calls and observations, as LLaMA-Factory takes them, with which the paper trains (appendix C.1).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from study.advisor.retrieval.documents import Tool, ToolCatalog
from study.errors import StudyError, require_one_of
from study.tools.flow.samples import Sample
from study.tools.flow.selector import duplicates, pool_of

OTHER = re.compile(r"[^A-Za-z0-9_-]")  # what the name of a function may not hold
LONGEST = 64  # characters of such a name
FIX = "give lines as `study tools loop` keeps them: source_instruction, tools, steps, final_response"


@dataclass(frozen=True)
class Step:
    """One call; `result`: what the tool answered, None where it was not called."""

    name: str
    arguments: Mapping[str, Any]
    result: str | None = None


@dataclass(frozen=True)
class Trajectory:
    """An instruction, the tools on offer (name, description, inputSchema), the calls, and the last answer."""

    instruction: str
    tools: Sequence[Mapping[str, Any]]
    steps: Sequence[Step]
    answer: str | None = None


def from_samples(
    catalog: ToolCatalog, samples: Sequence[Sample], size: int, rng: np.random.Generator
) -> Iterator[Trajectory]:
    """Each sample with `size` tools on offer, the right one among them, the others drawn from the catalogue."""
    every, alike = np.arange(len(catalog.tools)), duplicates(catalog)
    for sample in samples:
        shown = pool_of(sample, every, size, alike[sample.tool], rng).tolist()
        # Two tools of one name cannot be told apart in a call.
        own = {catalog.tools[row].name: catalog.tools[row] for row in [*shown, sample.tool]}
        steps = [Step(catalog.tools[sample.tool].name, sample.arguments)]
        yield Trajectory(sample.text, [offered(tool) for tool in own.values()], steps)


def offered(tool: Tool) -> dict[str, Any]:
    """A tool as a server lists it."""
    schema = dict(tool.schema) or {"type": "object", "properties": {}}
    return {"name": tool.name, "description": tool.description, "inputSchema": schema}


def read_lines(path: Path, fix: str) -> list[str]:
    """The lines of a file; StudyError, with `fix`, where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise StudyError(f"cannot be read ({error})", file=path, fix=fix) from error


def read_trajectories(path: Path) -> Iterator[Trajectory]:
    """The trajectories that `study tools loop` keeps (`gateway.loop.Trajectory`), without failed calls."""
    for number, line in enumerate(read_lines(path, FIX), start=1):
        if not line.strip():
            continue
        try:
            told = json.loads(line)
            done = [own for own in told["steps"] if "function_call" in own and not own["is_error"]]
            called = [(own["function_call"], own["tool_response"]) for own in done]
            steps = [Step(call["name"], dict(call["arguments"]), str(result)) for call, result in called]
            tools = [{key: own[key] for key in ("name", "description", "inputSchema")} for own in told["tools"]]
            made = Trajectory(str(told["source_instruction"]), tools, steps, told["final_response"] or None)
            known = {own["name"] for own in tools}
            missing = [step.name for step in steps if step.name not in known]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise StudyError(f"not a trajectory ({error!r})", file=path, row=number, fix=FIX) from error
        if missing:
            raise StudyError(f"a call of {missing[0]!r}, which is not among the tools", file=path, row=number, fix=FIX)
        yield made


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


def as_openai(one: Trajectory) -> dict[str, Any]:
    """Keys messages and tools."""
    names = function_names(one.tools)
    messages: list[dict[str, Any]] = [{"role": "user", "content": one.instruction}]
    for number, step in enumerate(one.steps):
        call = {"name": names[step.name], "arguments": json.dumps(dict(step.arguments), ensure_ascii=False)}
        key = f"call_{number}"
        messages.append({"role": "assistant", "tool_calls": [{"id": key, "type": "function", "function": call}]})
        if step.result is not None:
            messages.append({"role": "tool", "tool_call_id": key, "content": step.result})
    if one.answer is not None:
        messages.append({"role": "assistant", "content": one.answer})
    return {"messages": messages, "tools": [{"type": "function", "function": own} for own in _functions(one, names)]}


def as_sharegpt(one: Trajectory) -> dict[str, Any]:
    """Keys conversations and tools; the tools are JSON in a text."""
    names = function_names(one.tools)
    said = [{"from": "human", "value": one.instruction}]
    for step in one.steps:
        call = {"name": names[step.name], "arguments": dict(step.arguments)}
        said.append({"from": "function_call", "value": json.dumps(call, ensure_ascii=False)})
        if step.result is not None:
            said.append({"from": "observation", "value": step.result})
    if one.answer is not None:
        said.append({"from": "gpt", "value": one.answer})
    return {"conversations": said, "tools": json.dumps(_functions(one, names), ensure_ascii=False)}


def _functions(one: Trajectory, names: Mapping[str, str]) -> list[dict[str, Any]]:
    return [
        {"name": names[tool["name"]], "description": tool["description"], "parameters": tool["inputSchema"]}
        for tool in one.tools
    ]


FORMATS: dict[str, Callable[[Trajectory], dict[str, Any]]] = {"openai": as_openai, "sharegpt": as_sharegpt}


def exported(found: Iterator[Trajectory], form: str) -> Iterator[str]:
    """One JSON object a line, without its end."""
    require_one_of(form, "format", FORMATS)
    for one in found:
        yield json.dumps(FORMATS[form](one))
