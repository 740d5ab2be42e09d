"""Samples and trajectories in the forms of programs for fine-tuning."""

import json

import numpy as np
import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from pydantic import TypeAdapter

from study.advisor.retrieval.documents import Server, Tool, ToolCatalog
from study.base.errors import StudyError
from study.tools.flow import export
from study.tools.flow.samples import Sample

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = [{"name": name, "description": "d", "inputSchema": SCHEMA} for name in ("get weather", "get/weather", "mail")]
WHOLE = export.conversation(
    "Mail the weather of Köln",
    TOOLS,
    [("get/weather", {"city": "Köln"}, "12 °C"), ("mail", {}, "sent")],
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
    checked = TypeAdapter(CompletionCreateParamsNonStreaming).validate_python({"model": "m", **WHOLE}, strict=True)
    assert [one["role"] for one in WHOLE["messages"]] == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    ids = [one["tool_call_id"] for one in WHOLE["messages"] if one["role"] == "tool"]
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
        offered = {tool["function"]["name"]: tool["function"]["description"] for tool in one["tools"]}
        assert len(one["tools"]) == len(offered) > 1
        (call,), _ = calls_of(one)
        assert offered[call[0]] == tools[sample.tool].description
        assert call[1] == sample.arguments


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
    assert list(export.read_trajectories(path)) == [export.conversation("i", TOOLS, [("mail", {"to": "x"}, "ok")], "a")]
    bad = [{**good, "steps": [{**failed, "is_error": False}]}, {**good, "steps": None}, {}, [], "x"]
    for one in bad:
        path.write_text(json.dumps(good) + "\n" + json.dumps(one), encoding="utf-8")
        with pytest.raises(StudyError, match=r"t.jsonl \(row 2\)"):
            list(export.read_trajectories(path))
