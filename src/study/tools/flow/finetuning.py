"""MCP-Flow's samples and trajectories in the forms that programs for fine-tuning read, and a LoRA adapter from them.

``openai``: messages with tool calls, as OpenAI's interface and the library trl take them. ``sharegpt``: conversations
with function calls and observations, as LLaMA-Factory takes them, with which the paper trains (appendix C.1).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import Field

from study.advisor.retrieval.documents import ToolCatalog
from study.base import paths
from study.base.errors import StudyError, require_one_of
from study.base.files import read_text, sha256, write_json
from study.base.settings import read_settings
from study.tools.flow.bench import duplicates, pool_of
from study.tools.flow.samples import Sample

OTHER = re.compile(r"[^A-Za-z0-9_-]")  # what the name of a function may not hold
LONGEST = 64  # characters of such a name
FIX = "give lines as `study tools loop` keeps them: source_instruction, tools, steps, final_response"
EXPORT = "make the file with: study tools export --format openai"
FORMATS = ("openai", "sharegpt")
Line = TypeVar("Line")
Step = tuple[str, Mapping[str, Any], str | None]  # of a call: tool, arguments, and what it answered (None: not called)


def conversation(
    instruction: str, tools: Sequence[Mapping[str, Any]], steps: Sequence[Step], answer: str | None = None
) -> dict[str, Any]:
    """The openai form, keys messages and tools. `tools`: on offer, with name, description and inputSchema."""
    names = function_names([tool["name"] for tool in tools])
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
    return {"messages": messages, "tools": [{"type": "function", "function": function} for function in functions]}


def function_names(names: Sequence[str]) -> dict[str, str]:
    """A name for every tool that the forms allow: other characters become ``_``, and a number ends a name that two
    would share."""
    short_of: dict[str, str] = {}
    for name in names:
        short, number = OTHER.sub("_", name)[:LONGEST] or "_", 1
        short_of[name] = short
        while list(short_of.values()).count(short_of[name]) > 1:
            number += 1
            short_of[name] = f"{short[: LONGEST - len(f'_{number}')]}_{number}"
    return short_of


def from_samples(
    catalog: ToolCatalog, samples: Sequence[Sample], size: int, rng: np.random.Generator
) -> Iterator[dict[str, Any]]:
    """Each sample with `size` tools on offer, the right one among them, the others sampled from the catalogue."""
    every, alike = np.arange(len(catalog.tools)), duplicates(catalog)
    for sample in samples:
        offered_rows = pool_of(sample, every, size, alike[sample.tool], rng).tolist()
        # Two tools of one name cannot be told apart in a call.
        by_name = {catalog.tools[row].name: catalog.tools[row] for row in [*offered_rows, sample.tool]}
        nothing = {"type": "object", "properties": {}}
        offered = [
            {"name": name, "description": tool.description, "inputSchema": dict(tool.schema) or nothing}
            for name, tool in by_name.items()
        ]
        yield conversation(sample.text, offered, [(catalog.tools[sample.tool].name, sample.arguments, None)])


def parsed_lines(path: Path, parse: Callable[[Any], Line], what: str, fix: str) -> list[Line]:
    """The JSON lines of a file, parsed; StudyError with `fix` where it cannot be read or a line is not `what`."""
    parsed = []
    for number, line in enumerate(read_text(path, fix=fix).splitlines(), start=1):
        if line.strip():
            try:
                parsed.append(parse(json.loads(line)))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise StudyError(f"not {what} ({error!r})", file=path, row=number, fix=fix) from error
    return parsed


def read_trajectories(path: Path) -> list[dict[str, Any]]:
    """The trajectories that `study tools loop` keeps (`gateway.loop.Trajectory`), without failed calls."""

    def parse(trajectory: Any) -> dict[str, Any]:
        done = [step for step in trajectory["steps"] if "function_call" in step and not step["is_error"]]
        calls = [(step["function_call"], str(step["tool_response"])) for step in done]
        steps = [(call["name"], dict(call["arguments"]), result) for call, result in calls]
        tools = [{key: tool[key] for key in ("name", "description", "inputSchema")} for tool in trajectory["tools"]]
        # A call of a tool that is not among the tools is a KeyError.
        return conversation(str(trajectory["source_instruction"]), tools, steps, trajectory["final_response"] or None)

    return parsed_lines(path, parse, "a trajectory", FIX)


def as_sharegpt(one: Mapping[str, Any]) -> dict[str, Any]:
    """The sharegpt form of the openai form: keys conversations and tools, the tools as JSON in a text."""
    turns = []
    for message in one["messages"]:
        kind = {"user": "human", "tool": "observation", "assistant": "gpt"}[message["role"]]
        value = message.get("content")
        for call in (entry["function"] for entry in message.get("tool_calls", ())):
            kind, arguments = "function_call", json.loads(call["arguments"])
            value = json.dumps({"name": call["name"], "arguments": arguments}, ensure_ascii=False)
        turns.append({"from": kind, "value": value})
    functions = [tool["function"] for tool in one["tools"]]
    return {"conversations": turns, "tools": json.dumps(functions, ensure_ascii=False)}


def exported(samples: Iterable[dict[str, Any]], form: str) -> Iterator[str]:
    """One JSON object a line, without its end; `samples`: in the openai form."""
    require_one_of(form, "format", FORMATS)
    for one in samples:
        yield json.dumps(as_sharegpt(one) if form == "sharegpt" else one)


Count = Annotated[int, Field(ge=1)]
IGNORED = -100  # label of a token that is not learned, as the library has it


@dataclass(frozen=True)
class LoraSettings:
    """The whole file, which explains every key."""

    rank: Count
    alpha: Count
    epochs: Count
    batch: Count
    accumulate: Count
    rate: Annotated[float, Field(gt=0)]
    warmup: Annotated[float, Field(ge=0, lt=1)]
    length: Count
    seed: int


def lora_settings() -> LoraSettings:
    """Read ``conf/tools/lora.yaml``."""
    return read_settings(LoraSettings, paths.conf() / "tools" / "lora.yaml")


Talk = tuple[list[dict[str, Any]], list[dict[str, Any]]]  # messages, tools


def read_samples(path: Path) -> list[Talk]:
    """Messages and tools of every line. Templates want arguments as objects, and a text beside a call."""

    def parse(sample: Any) -> Talk:
        messages = [{"content": "", **message} for message in sample["messages"]]
        for call in (call for message in messages for call in message.get("tool_calls", ())):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        return messages, list(sample["tools"])

    return parsed_lines(path, parse, "a sample", EXPORT)


def sequences(talk: Talk, tokenizer: Any) -> Iterator[dict[str, list[int]]]:
    """One per turn of the assistant: `input_ids` and `labels` of one length; the prompt's labels are `IGNORED`."""
    messages, tools = talk
    for number in (number for number, message in enumerate(messages) if message["role"] == "assistant"):
        form = {"tools": tools, "tokenize": False}
        try:
            prompt = tokenizer.apply_chat_template(messages[:number], add_generation_prompt=True, **form)
            whole = tokenizer.apply_chat_template(messages[: number + 1], **form)
        except Exception as error:  # a template is a program of the model's makers
            raise StudyError(f"the model's chat template fails: {error}", fix="take a model with tool calls") from error
        if not whole.startswith(prompt):
            raise StudyError("the model's chat template changes what was said before", fix="take another model")
        ends = (prompt, whole[len(prompt) :])
        before, turn = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in ends)
        yield {"input_ids": [*before, *turn], "labels": [IGNORED] * len(before) + [*turn]}


def finetune(samples: Path, model: str, output: Path, how: LoraSettings) -> Mapping[str, Any]:
    """Train, and write the adapter, the tokenizer and ``training.json`` (what is returned) into the folder `output`.

    `model`: a folder, or a name on Hugging Face's hub. Raises StudyError: the extra is missing, no such model or one
    without a chat template, a folder that is in use, or no sample that fits.
    """
    if find_spec("peft") is None:
        raise StudyError("an adapter needs the library peft", fix="make setup LORA=1")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise StudyError("is in use", file=output, fix="name a new folder")
    talks = read_samples(samples)
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForSeq2Seq, Trainer, TrainingArguments

    gpu = torch.cuda.is_available()
    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
        base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16 if gpu else torch.float32)
    except (OSError, ValueError) as error:
        raise StudyError(f"the model cannot be loaded: {error}", file=model, fix="name a folder or a model") from error
    if tokenizer.chat_template is None:
        raise StudyError("has no chat template", file=model, fix="take a model that is made for conversations")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    every = [one for talk in talks for one in sequences(talk, tokenizer)]
    fitting = [one for one in every if len(one["input_ids"]) <= how.length]
    if not fitting:
        raise StudyError(f"none of {len(every)} sequences has at most {how.length} tokens", file=samples, fix=EXPORT)
    torch.manual_seed(how.seed)
    form = LoraConfig(r=how.rank, lora_alpha=how.alpha, target_modules="all-linear", task_type="CAUSAL_LM")
    tuned: Any = get_peft_model(base, form)
    arguments = TrainingArguments(
        output_dir=str(output),
        per_device_train_batch_size=how.batch,
        gradient_accumulation_steps=how.accumulate,
        num_train_epochs=how.epochs,
        learning_rate=how.rate,
        lr_scheduler_type="cosine",
        warmup_steps=how.warmup,
        bf16=gpu,
        use_cpu=not gpu,
        seed=how.seed,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
    )
    trainer = Trainer(tuned, arguments, train_dataset=fitting, data_collator=DataCollatorForSeq2Seq(tokenizer))
    trainer.train()
    tuned.save_pretrained(output)
    tokenizer.save_pretrained(output)
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    facts: dict[str, Any] = {"model": model, "samples_sha256": sha256(samples), "settings": asdict(how)}
    facts |= {"losses": losses, "sequences": len(fitting), "too_long": len(every) - len(fitting)}
    facts |= {"peft": version("peft"), "gpu": gpu}
    write_json(output / "training.json", facts)
    return facts
