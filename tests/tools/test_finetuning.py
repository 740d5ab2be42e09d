"""Samples and trajectories in the forms of programs for fine-tuning, and a LoRA adapter for a tiny model."""

import json

import numpy as np
import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from pydantic import TypeAdapter

from study.advisor.retrieval.documents import Server, Tool, ToolCatalog
from study.base.errors import StudyError
from study.tools.flow import finetuning
from study.tools.flow.samples import Sample

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = [{"name": name, "description": "d", "inputSchema": SCHEMA} for name in ("get weather", "get/weather", "mail")]
CALLS = [("get/weather", {"city": "Köln"}, "12 °C"), ("mail", {}, "sent")]
WHOLE = finetuning.conversation("Mail the weather of Köln", TOOLS, CALLS, "It is sent.")


def calls_of(form):
    """Names, arguments and results of either form."""
    if "messages" in form:
        functions = [call["function"] for one in form["messages"] for call in one.get("tool_calls", [])]
        results = [one["content"] for one in form["messages"] if one["role"] == "tool"]
        return [(call["name"], json.loads(call["arguments"])) for call in functions], results
    calls = [json.loads(one["value"]) for one in form["conversations"] if one["from"] == "function_call"]
    results = [one["value"] for one in form["conversations"] if one["from"] == "observation"]
    return [(call["name"], call["arguments"]) for call in calls], results


@pytest.mark.parametrize("form", finetuning.FORMATS)
def test_a_trajectory_comes_back(form):
    (line,) = finetuning.exported(iter([WHOLE]), form)
    # Two names become one where blanks and strokes are not allowed, so that the second gets a number.
    calls = [("get_weather_2", {"city": "Köln"}), ("mail", {})]
    assert calls_of(json.loads(line)) == (calls, ["12 °C", "sent"])


def test_the_forms_are_openais_and_sharegpts():
    TypeAdapter(CompletionCreateParamsNonStreaming).validate_python({"model": "m", **WHOLE}, strict=True)
    assert [one["role"] for one in WHOLE["messages"]] == ["user", *["assistant", "tool"] * 2, "assistant"]
    assert [one["tool_call_id"] for one in WHOLE["messages"] if one["role"] == "tool"] == ["call_0", "call_1"]
    sharegpt = finetuning.as_sharegpt(WHOLE)
    speakers = [one["from"] for one in sharegpt["conversations"]]  # they take turns
    assert (set(speakers[::2]), set(speakers[1::2])) == ({"human", "observation"}, {"function_call", "gpt"})
    assert [tool["parameters"] for tool in json.loads(sharegpt["tools"])] == [SCHEMA] * 3
    names = finetuning.function_names(["天" * 3, "a" * 80 + "1", "a" * 80 + "2", ""])
    assert len(set(names.values())) == 4
    assert all(0 < len(name) <= 64 and not finetuning.OTHER.search(name) for name in names.values())


def test_samples_offer_the_right_tool_and_no_name_twice():
    tools = tuple(Tool(0, f"t{number % 4}", f"d{number}", {}) for number in range(8))
    catalog = ToolCatalog("c", (Server("s", "S", ""),), tools)
    samples = [Sample(f"s{row}", "x", row, 0, {"a": row}, str(row)) for row in range(8)]
    lines = list(finetuning.from_samples(catalog, samples, 6, np.random.default_rng(0)))
    for sample, one in zip(samples, lines, strict=True):
        offered = {tool["function"]["name"]: tool["function"]["description"] for tool in one["tools"]}
        assert len(one["tools"]) == len(offered) > 1
        (call,), _ = calls_of(one)
        assert (offered[call[0]], call[1]) == (tools[sample.tool].description, sample.arguments)


def test_trajectories_are_read_and_faults_are_named(tmp_path):
    call = {"function_call": {"name": "mail", "arguments": {"to": "x"}}, "tool_response": "ok", "is_error": False}
    failed = {"function_call": {"name": "gone", "arguments": {}}, "tool_response": "no such tool", "is_error": True}
    steps = [{"request": {"server": "s", "tool": "t"}, "found": [], "fits": 0}, failed, call]
    good = {"source_instruction": "i", "tools": TOOLS, "steps": steps, "final_response": "a"}
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(good) + "\n\n", encoding="utf-8")
    expected = finetuning.conversation("i", TOOLS, [("mail", {"to": "x"}, "ok")], "a")
    assert finetuning.read_trajectories(path) == [expected]
    for bad in ({**good, "steps": [{**failed, "is_error": False}]}, {**good, "steps": None}, {}, [], "x"):
        path.write_text(json.dumps(good) + "\n" + json.dumps(bad), encoding="utf-8")
        with pytest.raises(StudyError, match=r"t.jsonl \(row 2\)"):
            list(finetuning.read_trajectories(path))


TEMPLATE = (
    "{% for tool in tools %}[{{ tool.function.name }}]{% endfor %}"
    "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}"
    "{% for call in m.tool_calls %}{{ call.function.name }}{{ call.function.arguments.x }}{% endfor %};{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}"
)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_what_the_assistant_says_is_learned_and_nothing_else(tmp_path):
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    plain = Tokenizer(WordLevel({chr(code): code for code in range(32, 127)} | {"?": 0}, unk_token="?"))
    plain.pre_tokenizer = Split("", "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="?", eos_token=";", chat_template=TEMPLATE)
    integer = {"type": "object", "properties": {"x": {"type": "integer"}}}
    tool = {"name": "t", "description": "d", "inputSchema": integer}
    talks = [finetuning.conversation("go", [tool], [("t", {"x": 7}, "ok")], "yes")]
    talks += [finetuning.conversation("a" * 90, [tool], [("t", {"x": 1}, None)])]
    path, folder = tmp_path / "samples.jsonl", str(tmp_path / "model")
    path.write_text("".join(f"{line}\n" for line in finetuning.exported(iter(talks), "openai")))
    first, _ = finetuning.read_samples(path)
    sequences = list(finetuning.sequences(first, tokenizer))
    read = ["".join(map(chr, sequence["input_ids"])) for sequence in sequences]
    learned = ["".join(chr(one) for one in own["labels"] if one != finetuning.IGNORED) for own in sequences]
    assert read == ["[t]<u>go;<a>t7;", "[t]<u>go;<a>t7;<t>ok;<a>yes;"]
    assert learned == ["t7;", "yes;"]
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    for part in (tokenizer, LlamaForCausalLM(LlamaConfig(vocab_size=128, **sizes))):
        part.save_pretrained(folder)
    tokenizer.chat_template = TEMPLATE + "{{ messages | length }}"
    with pytest.raises(StudyError, match="changes what was said before"):
        list(finetuning.sequences(first, tokenizer))
    peft = pytest.importorskip("peft", reason="peft is not installed")
    settings = finetuning.LoraSettings(4, 8, 2, 2, 1, 0.01, 0.0, 40, 0)
    facts = finetuning.finetune(path, folder, tmp_path / "out", settings)
    assert (facts["sequences"], facts["too_long"], len(facts["losses"])) == (2, 1, 2)
    assert facts["losses"][1] < facts["losses"][0]
    assert json.loads((tmp_path / "out" / "training.json").read_text()) == facts
    base, prompt = AutoModelForCausalLM.from_pretrained(folder), torch.tensor([[60, 97, 62]])
    before = base(prompt).logits.detach().clone()
    assert not torch.equal(peft.PeftModel.from_pretrained(base, tmp_path / "out")(prompt).logits, before)
    with pytest.raises(StudyError, match="is in use"):
        finetuning.finetune(path, folder, tmp_path / "out", settings)


@pytest.mark.parametrize("line", ["{", "[]", '{"messages": [{}]}', '{"messages": [{"tool_calls": [{}]}], "tools": []}'])
def test_faults_of_samples_are_named(tmp_path, line):
    path = tmp_path / "s.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(StudyError, match=r"s.jsonl \(row 1\)"):
        list(finetuning.read_samples(path))
    with pytest.raises(StudyError, match="nothing"):
        finetuning.read_samples(tmp_path / "nothing")
