"""LC-Rec: packed examples against single ones, labels, the six kinds of instructions, the search, a published model."""

import numpy as np
import pytest
import torch
from tokenizers import decoders
from transformers import LlamaConfig, LlamaForCausalLM

from baselines.lc_rec import KINDS, Continuer, LCRec, LlamaSize, pack, visible
from study.data.splits import make
from tests.baselines import toys
from tests.baselines.generative_toys import LLAMA, codes, steps
from tests.baselines.toys import fit, scores

EXAMPLES = [
    ([5, 6, 7], [[11, 12, 1], [13, 1], [14, 15, 16, 1]]),
    ([8], [[17, 1]]),
    ([9, 10, 5, 6, 7, 8], [[18, 19, 1]]),
]


def small(epochs: int = 1, **changes: object) -> LCRec:
    return LCRec(**{"quantiser": codes(4), "size": LLAMA, "training": steps(epochs), **changes})


@pytest.fixture(scope="module")
def untrained(cold_blocks, tmp_path_factory):
    """LC-Rec after one epoch on the cold split of the blocks."""
    return fit(small(), *cold_blocks, tmp_path_factory.mktemp("lc_rec"))


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = Continuer(50, LlamaSize(width=32, feed_forward=64, heads=2, layers=2), pad=0).eval()
    for weight in model.parameters():
        weight.data *= 10  # as they start, what is attended to changes next to nothing
    return model


def alone(model: Continuer, prompt: list[int], response: list[int]) -> list[float]:
    """Log-probabilities of the response's tokens, from the library's plain forward pass."""
    with torch.no_grad():
        likely = torch.log_softmax(model.lm(torch.tensor([prompt + response])).logits[0], dim=-1)
    return [float(likely[len(prompt) - 1 + place, token]) for place, token in enumerate(response)]


def test_responses_that_share_a_prompt_are_as_likely_as_alone(model):
    expected = [value for prompt, responses in EXAMPLES for one in responses for value in alone(model, prompt, one)]
    with torch.no_grad():
        assert float(model(pack(EXAMPLES, 0))) == pytest.approx(-np.mean(expected), rel=1e-5)


def test_only_responses_are_labels_and_no_response_sees_another():
    _, _, rows, places, labels = pack(EXAMPLES, 0)
    assert labels.tolist() == [token for _, responses in EXAMPLES for one in responses for token in one]
    # The first token of a response is told from the last one of the prompt.
    assert torch.stack([rows, places])[:, :6].tolist() == [[0] * 6, [2, 3, 4, 2, 6, 2]]
    seen = visible(torch.tensor([[0, 0, 1, 1, 2, -1]]))[0, 0].int().tolist()
    assert ["".join(map(str, row)) for row in seen] == ["100000", "110000", "111000", "111100", "110010", "110001"]


def test_scores_are_the_log_likelihoods_of_all_servers(untrained, cold_blocks):
    """Questions of one batch differ in length: with a history, and without one."""
    split = cold_blocks[1]
    tasks = np.array([split.tasks("test")[0], *split.tasks("train")[:2], split.tasks("test")[1]])
    questions = [untrained.question(int(task)) for task in tasks]
    assert len({len(question) for question in questions}) > 1
    writer, indices = untrained.network, untrained.indices.tolist()
    expected = [[sum(alone(writer, question, row)) for row in indices] for question in questions]
    np.testing.assert_allclose(untrained.score(tasks), expected, rtol=1e-4, atol=1e-4)


def test_no_text_of_a_held_out_task_is_in_any_example(tmp_path):
    """String search: each held-out task's text gets a word of its own, which must never be seen."""
    data = toys.block_dataset()
    split = make(data, "cold")
    held_out = np.setdiff1d(np.arange(data.n_tasks), split.tasks("train"))
    data.tasks.loc[held_out, "description"] = "zzsecretzz"
    system = fit(small(), data, split, tmp_path)
    seen, words = [], system.vocabulary
    words.model.decoder = decoders.ByteLevel()
    decode = words.model.decode
    for epoch in range(3):
        for prompt, responses in system.examples(np.random.default_rng(epoch)):
            parts = ([token - 2 for token in part] for part in (prompt, *responses))
            seen += [decode([token for token in part if 0 <= token < words.size - 2]) for part in parts]
    assert not any("zzsecretzz" in text for text in seen)
    assert any("database" in text for text in seen)
    # Nor was it a word from which the vocabulary was learned.
    assert len(system.vocabulary.encode("zzsecretzz")) > 2


def test_all_six_kinds_are_trained_on_and_each_can_be_left_out(untrained, monkeypatch):
    def drawn(shares):
        monkeypatch.setattr(untrained, "shares", shares)
        return len(list(untrained.examples(np.random.default_rng(0))))

    counts = {kind: drawn({kind: 1.0}) for kind in KINDS}
    # 24 training tasks, 30 servers
    assert counts == dict.fromkeys(KINDS, 24) | dict.fromkeys(("index_of_text", "text_of_index"), 30)
    assert drawn(dict.fromkeys(KINDS, 1.0)) == sum(counts.values())
    assert 4 <= drawn({"search": 0.5, "preference": 0.0}) <= 20


def test_responses_never_name_a_server_of_the_question(untrained, monkeypatch):
    monkeypatch.setattr(untrained, "shares", {"search": 1.0, "next_item": 1.0})
    for prompt, responses in untrained.examples(np.random.default_rng(0)):
        asked = [token for token in prompt if token >= untrained.vocabulary.size]
        known = {tuple(asked[start : start + 4]) for start in range(0, len(asked), 4)}
        named = [tuple(response[:-1]) for response in responses]
        assert len(known | set(named)) == len(known) + len(named)
        assert all(response[-1] == untrained.vocabulary.end for response in responses)


def test_a_published_model_is_taken_up_and_tuned(cold_blocks, tmp_path):
    """A random LLaMA and a character-level tokenizer, written as a published model is, with spare rows as Qwen's."""
    words = ["</s>", "<unk>", *"abcdefghijklmnopqrstuvwxyz .,:?"]
    toys.save_tokenizer(tmp_path / "published", words)
    torch.manual_seed(3)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(words) + 10, tie_word_embeddings=False, eos_token_id=0, **sizes)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "published")
    system = small(size=LlamaSize(pretrained=str(tmp_path / "published")), text_tokens=12)
    assert np.isfinite(scores(system, *cold_blocks, "test", tmp_path)).all()
    before = LlamaForCausalLM.from_pretrained(tmp_path / "published", local_files_only=True)
    indices = np.unique(system.indices)
    assert indices.tolist() == list(range(33, 33 + len(indices)))
    for kind in ("get_input_embeddings", "get_output_embeddings"):
        old, new = (getattr(model, kind)().weight for model in (before, system.network.lm))
        assert len(new) == 33 + max(len(indices), 10)
        assert 0 < (new[: len(old)] - old).abs().max() < 0.5
    # No text is read as the token that ends a response.
    assert system.vocabulary.end not in system.vocabulary.encode("</s> stop </s>")
