"""Samples and trajectories in the forms of programs for fine-tuning."""

import json

import numpy as np
import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from pydantic import TypeAdapter

from study.advisor.retrieval.documents import Server, Tool, ToolCatalog
from study.errors import StudyError
from study.tools.flow import export
from study.tools.flow.export import Step, Trajectory
from study.tools.flow.samples import Sample

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = [{"name": name, "description": "d", "inputSchema": SCHEMA} for name in ("get weather", "get/weather", "mail")]
WHOLE = Trajectory(
    "Mail the weather of Köln",
    TOOLS,
    [Step("get/weather", {"city": "Köln"}, "12 °C"), Step("mail", {}, "sent")],
    "It is sent.",
)


def calls_of(made):
    """Names, arguments and results of either form."""
    if "messages" in made:
        told = [call["function"] for one in made["messages"] for call in one.get("tool_calls", [])]
        results = [one["content"] for one in made["messages"] if one["role"] == "tool"]
        return [(call["name"], json.loads(call["arguments"])) for call in told], results
    calls = [json.loads(one["value"]) for one in made["conversations"] if one["from"] == "function_call"]
    results = [one["value"] for one in made["conversations"] if one["from"] == "observation"]
    return [(call["name"], call["arguments"]) for call in calls], results


@pytest.mark.parametrize("form", export.FORMATS)
def test_a_trajectory_comes_back(form):
    (line,) = export.exported(iter([WHOLE]), form)
    calls, results = calls_of(json.loads(line))
    # Two names become one where blanks and strokes are not allowed, so that the second gets a number.
    assert calls == [("get_weather_2", {"city": "Köln"}), ("mail", {})]
    assert results == ["12 °C", "sent"]


def test_openai_form_is_openais():
    made = export.as_openai(WHOLE)
    checked = TypeAdapter(CompletionCreateParamsNonStreaming).validate_python({"model": "m", **made}, strict=True)
    assert [one["role"] for one in made["messages"]] == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    ids = [one["tool_call_id"] for one in made["messages"] if one["role"] == "tool"]
    assert ids == ["call_0", "call_1"]
    assert len(list(checked["tools"])) == 3


def test_sharegpt_takes_turns():
    made = export.as_sharegpt(WHOLE)
    said = [one["from"] for one in made["conversations"]]
    assert set(said[::2]) == {"human", "observation"}
    assert set(said[1::2]) == {"function_call", "gpt"}
    assert [tool["parameters"] for tool in json.loads(made["tools"])] == [SCHEMA] * 3


def test_samples_offer_the_right_tool_and_no_name_twice():
    tools = tuple(Tool(0, f"t{number % 4}", f"d{number}", {}) for number in range(8))
    catalog = ToolCatalog("c", (Server("s", "S", ""),), tools)
    samples = [Sample(f"s{row}", "x", row, 0, {"a": row}, str(row)) for row in range(8)]
    found = list(export.from_samples(catalog, samples, 6, np.random.default_rng(0)))
    for sample, one in zip(samples, found, strict=True):
        names = [tool["name"] for tool in one.tools]
        assert len(names) == len(set(names)) > 1
        right = next(tool for tool in one.tools if tool["name"] == one.steps[0].name)
        assert right["description"] == tools[sample.tool].description
        assert one.steps[0].arguments == sample.arguments


def test_long_names_that_agree_are_told_apart():
    names = export.function_names(
        [{"name": "天" * 3}, {"name": "a" * 80 + "1"}, {"name": "a" * 80 + "2"}, {"name": ""}]
    )
    assert len(set(names.values())) == 4
    assert all(0 < len(name) <= 64 and not export.OTHER.search(name) for name in names.values())


def test_trajectories_are_read_and_faults_are_named(tmp_path):
    call = {"function_call": {"name": "mail", "arguments": {"to": "x"}}, "tool_response": "ok", "is_error": False}
    failed = {"function_call": {"name": "gone", "arguments": {}}, "tool_response": "no such tool", "is_error": True}
    steps = [{"request": {"server": "s", "tool": "t"}, "found": [], "fits": 0}, failed, call]
    good = {"source_instruction": "i", "tools": TOOLS, "steps": steps, "final_response": "a"}
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(good) + "\n\n", encoding="utf-8")
    assert list(export.read_trajectories(path)) == [Trajectory("i", TOOLS, [Step("mail", {"to": "x"}, "ok")], "a")]
    bad = [{**good, "steps": [{**failed, "is_error": False}]}, {**good, "steps": None}, {}, [], "x"]
    for one in bad:
        path.write_text(json.dumps(good) + "\n" + json.dumps(one), encoding="utf-8")
        with pytest.raises(StudyError, match=r"t.jsonl \(row 2\)"):
            list(export.read_trajectories(path))
