"""A LoRA adapter (Hu et al. 2022) for a language model, from what `study tools export --format openai` writes.

Every turn of the assistant is a sequence to learn, in the model's chat template, with everything before it as the
prompt. Settings: ``conf/tools/lora.yaml``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from study.base import paths
from study.base.errors import StudyError
from study.base.files import sha256, write_json
from study.base.settings import read_settings
from study.tools.flow.export import read_lines

Count = Annotated[int, Field(ge=1)]
INSTALL = "make setup LORA=1"
IGNORED = -100  # label of a token that is not learned, as the library has it
FIX = "make the file with: study tools export --format openai"


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


def read_samples(path: Path) -> Iterator[Talk]:
    """Messages and tools of every line. Templates want arguments as objects, and a text beside a call."""

    def parse(told: Any) -> Talk:
        messages = [{"content": "", **message} for message in told["messages"]]
        for call in (call for message in messages for call in message.get("tool_calls", ())):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        return messages, list(told["tools"])

    return read_lines(path, "a sample", FIX, parse)


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
        asked, told = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in ends)
        yield {"input_ids": [*asked, *told], "labels": [IGNORED] * len(asked) + [*told]}


def finetune(samples: Path, model: str, output: Path, how: LoraSettings) -> Mapping[str, Any]:
    """Train, and write the adapter, the tokenizer and ``training.json`` (what is returned) into the folder `output`.

    `model`: a folder, or a name on Hugging Face's hub. Raises StudyError: the extra is missing, no such model or one
    without a chat template, a folder that is in use, or no sample that fits.
    """
    if find_spec("peft") is None:
        raise StudyError("an adapter needs the library peft", fix=INSTALL)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise StudyError("is in use", file=output, fix="name a new folder")
    talks = list(read_samples(samples))
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
    kept = [one for one in every if len(one["input_ids"]) <= how.length]
    if not kept:
        raise StudyError(f"none of {len(every)} sequences has at most {how.length} tokens", file=samples, fix=FIX)
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
    trainer = Trainer(tuned, arguments, train_dataset=kept, data_collator=DataCollatorForSeq2Seq(tokenizer))
    trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    tuned.save_pretrained(output)
    tokenizer.save_pretrained(output)
    facts: dict[str, Any] = {
        "model": model,
        "samples_sha256": sha256(samples),
        "settings": asdict(how),
        "losses": losses,
    }
    facts |= {"sequences": len(kept), "too_long": len(every) - len(kept), "peft": version("peft"), "gpu": gpu}
    write_json(output / "training.json", facts)
    return facts
