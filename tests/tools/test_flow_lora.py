"""A LoRA adapter for a tiny model with random weights."""

import json

import pytest

from study.base.errors import StudyError
from study.tools.flow import lora
from study.tools.flow.export import conversation, exported

TEMPLATE = (
    "{% for tool in tools %}[{{ tool.function.name }}]{% endfor %}"
    "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}"
    "{% for call in m.tool_calls %}{{ call.function.name }}{{ call.function.arguments.x }}{% endfor %};{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}"
)
TOOL = {"name": "t", "description": "d", "inputSchema": {"type": "object", "properties": {"x": {"type": "integer"}}}}
TALKS = [
    conversation("go", [TOOL], [("t", {"x": 7}, "ok")], "yes"),
    conversation("a" * 90, [TOOL], [("t", {"x": 1}, None)]),
]
SETTINGS = lora.LoraSettings(4, 8, 2, 2, 1, 0.01, 0.0, 40, 0)


@pytest.fixture
def samples(tmp_path):
    path = tmp_path / "samples.jsonl"
    path.write_text("".join(f"{line}\n" for line in exported(iter(TALKS), "openai")))
    return path


@pytest.fixture
def model(tmp_path):
    """A folder with a model of 300 letters and two layers."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    letters = {chr(code): code for code in range(32, 127)} | {"?": 0}
    plain = Tokenizer(WordLevel(letters, unk_token="?"))
    plain.pre_tokenizer = Split("", "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="?", eos_token=";", chat_template=TEMPLATE)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    for made in (tokenizer, LlamaForCausalLM(LlamaConfig(vocab_size=128, **sizes))):
        made.save_pretrained(tmp_path / "model")
    return str(tmp_path / "model"), tokenizer


def test_what_the_assistant_says_is_learned_and_nothing_else(samples, model):
    first, _ = lora.read_samples(samples)
    made = list(lora.sequences(first, model[1]))
    told = [
        ["".join(map(chr, own["input_ids"])), "".join(chr(one) for one in own["labels"] if one != lora.IGNORED)]
        for own in made
    ]
    assert told == [["[t]<u>go;<a>t7;", "t7;"], ["[t]<u>go;<a>t7;<t>ok;<a>yes;", "yes;"]]
    assert all(len(own["labels"]) == len(own["input_ids"]) for own in made)
    model[1].chat_template = TEMPLATE + "{{ messages | length }}"
    with pytest.raises(StudyError, match="changes what was said before"):
        list(lora.sequences(first, model[1]))


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_two_steps_make_an_adapter(samples, model, tmp_path):
    peft = pytest.importorskip("peft", reason="peft is not installed")
    import torch
    from transformers import AutoModelForCausalLM

    facts = lora.finetune(samples, model[0], tmp_path / "out", SETTINGS)
    assert (facts["sequences"], facts["too_long"], len(facts["losses"])) == (2, 1, 2)
    assert facts["losses"][1] < facts["losses"][0]
    assert json.loads((tmp_path / "out" / "training.json").read_text()) == facts
    base = AutoModelForCausalLM.from_pretrained(model[0])
    asked = torch.tensor([[60, 97, 62]])
    before = base(asked).logits.detach().clone()
    assert not torch.equal(peft.PeftModel.from_pretrained(base, tmp_path / "out")(asked).logits, before)
    with pytest.raises(StudyError, match="is in use"):
        lora.finetune(samples, model[0], tmp_path / "out", SETTINGS)


@pytest.mark.parametrize("line", ["{", "[]", '{"messages": [{}]}', '{"messages": [{"tool_calls": [{}]}], "tools": []}'])
def test_faults_are_named(tmp_path, line):
    path = tmp_path / "s.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(StudyError, match=r"s.jsonl \(row 1\)"):
        list(lora.read_samples(path))
    with pytest.raises(StudyError, match="cannot be read"):
        list(lora.read_samples(tmp_path / "nothing"))
