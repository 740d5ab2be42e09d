"""OpenP5: three ways to name servers, whole words, prompts, and a published T5 written by the test."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import T5Config, T5ForConditionalGeneration

from baselines import openp5
from baselines.generative.search import PAD
from baselines.generative.seq2seq import T5Size, collate
from baselines.generative.text import BytePairs
from baselines.openp5 import OpenP5
from study.data.dataset import relevance_from_lists
from tests.baselines.generative_toys import T5, steps
from tests.baselines.toys import fit, save_tokenizer, scores


def small(epochs: int = 1, **changes: object) -> OpenP5:
    return OpenP5(**{"size": T5, "training": steps(epochs, 20, 5e-3), "clusters": 2, "largest": 6, **changes})


def interactions(lists: list[list[int]], n_items: int) -> tuple[list[np.ndarray], sp.csr_matrix]:
    rows = [np.array(row, dtype=np.int64) for row in lists]
    return rows, relevance_from_lists(tuple(rows), n_items)


@pytest.fixture(scope="module")
def untrained(blocks, tmp_path_factory):
    """OpenP5 with random numbers and all templates after one epoch on the blocks."""
    return fit(small(indexing="random", templates=10), *blocks, tmp_path_factory.mktemp("openp5"))


def test_items_listed_together_get_numbers_in_a_row_and_random_ones_depend_on_the_seed():
    rows, _ = interactions([[4, 2], [0, 2], [5, 0]], 6)
    numbers = ["".join(name) for name in openp5.numbers(rows, 6, 0, indexing="sequential")]
    assert [numbers[item] for item in (4, 2, 0, 5)] == ["1001", "1002", "1003", "1004"]
    assert {numbers[1], numbers[3]} == {"1005", "1006"}
    first, again, other = (openp5.numbers([], 50, seed, indexing="random") for seed in (1, 1, 2))
    assert sorted("".join(name) for name in first) == [str(1001 + number) for number in range(50)]
    assert first == again != other


def test_collaborative_clusters_are_the_planted_blocks():
    """Two blocks of six items that never occur together, and two items that never occur."""
    rng = np.random.default_rng(0)
    lists = [(6 * block + rng.choice(6, 3, replace=False)).tolist() for block in (0, 1) for _ in range(20)]
    _, train = interactions(lists, 14)
    names = openp5.collaborative(train, clusters=2, largest=6, seed=0)
    first, second = names[0][0], names[6][0]
    assert first != second
    assert [name[0] for name in names] == [*[first] * 6, *[second] * 6, openp5.OTHER, openp5.OTHER]
    assert {len(name) for name in names[:12]} == {2}
    assert len(set(names)) == 14


@given(st.lists(st.lists(st.integers(0, 24), min_size=1, max_size=6, unique=True), min_size=1, max_size=12))
@settings(max_examples=15)
def test_every_indexing_names_every_item_once(lists):
    rows, train = interactions(lists, 25)
    assert len(set(openp5.numbers(rows, 25, 3, indexing="sequential"))) == 25
    assert len(set(openp5.collaborative(train, clusters=2, largest=4, seed=3))) == 25


def test_all_tokens_of_a_word_carry_its_number_and_padding_carries_none(untrained):
    tokens, numbers = untrained.prompt("sequential", 0, 7, np.array([3, 4]))
    item = untrained.items[3]
    place = next(i for i in range(len(tokens)) if tuple(tokens[i : i + len(item)]) == item)
    assert len(set(numbers[place : place + len(item)])) == 1
    assert numbers[place - 1] != numbers[place] != numbers[place + len(item)]
    assert numbers == sorted(numbers)
    assert numbers[0] == 1
    _, words, _, _ = collate([((tokens, numbers), [1]), ((tokens[:5], numbers[:5]), [2])], untrained.answers, 0)
    assert not words[1, 5:].any()
    assert not untrained.network.words.weight[0].any()


def test_no_question_has_a_history_longer_than_any_trained_on_nor_a_word_number_that_none_had(untrained, monkeypatch):
    """Ten servers a task, six of them for training: one is to be named, so five stand in the longest history."""
    system, rngs = untrained, map(np.random.default_rng, range(3))
    assert {len(row) for row in system.lists} == {6}
    drawn = [reading for rng in rngs for reading, _ in system.examples("sequential", rng)]
    trained = {number for _, numbers in drawn for number in numbers}
    for task in range(5):
        whole, same, shorter = (system.prompt(system.asks, 0, task, system.lists[task][-n:]) for n in (6, 5, 4))
        assert set(whole[1]) <= trained
        assert whole == same != shorter
    # A shorter limit of the settings holds in training and at inference.
    monkeypatch.setattr(system, "longest", 2)
    whole, cut = (system.prompt(system.asks, 0, 3, system.lists[3][start:]) for start in (0, 4))
    assert whole == cut


def test_digits_and_names_are_tokens_of_their_own_and_words_are_whole():
    names = ["item_", "user_", "toy9"]
    speller = openp5.Speller(BytePairs(["alpha"] * 2, 500), [("1", "0"), ("<3>", "<0>")], names)
    digits, cluster = speller.spell_name("item_", "1", "0"), speller.spell_name("item_", "<3>", "<0>")
    assert digits[:-2] == cluster[:-2] == speller.spell_name("item_")
    assert not {*digits[-2:]} & {*cluster[-2:]}
    assert len(speller.word("alpha")) == 1
    assert len({*speller.symbols.values()}) == 15
    # A name is one token, and a text that reads the same is not taken for it.
    assert {len(speller.spell_name(name)) for name in names} == {1}
    assert not {speller.spell_name(name)[0] for name in names} & {*speller.word("item_"), *speller.word("toy9")}


def enumerated(system: OpenP5, reading: tuple[list[int], list[int]]) -> list[float]:
    """The mean log-probability of every server's answer, by the library's own loss under teacher forcing."""
    states, mask = system.network.read(*(torch.tensor([part]) for part in reading))
    found = []
    for row in system.answers:
        answer = torch.tensor([[int(token) for token in row if token != PAD]])
        with torch.no_grad():
            out = system.network.t5(encoder_outputs=(states,), attention_mask=mask, labels=answer)
        found.append(-float(out.loss))
    return found


@pytest.mark.parametrize(("kind", "indexing"), [("sequential", "collaborative"), ("straightforward", "random")])
def test_a_beam_as_wide_as_the_catalogue_is_enumeration_of_all_servers(kind, indexing, blocks, tmp_path):
    """Collaborative answers differ in length, by which their log-probabilities are divided."""
    system = fit(small(epochs=3, indexing=indexing, asks=kind), *blocks, tmp_path)
    tasks = np.array([0, 13, 25])
    found = system.score(tasks)
    assert found.shape == (3, 30)
    assert (len(set((system.answers != PAD).sum(axis=1))) > 1) == (indexing == "collaborative")
    for row, task in zip(found, tasks, strict=True):
        expected = enumerated(system, system.prompt(kind, 0, int(task), system.lists[task]))
        np.testing.assert_allclose(row, expected, rtol=1e-4, atol=1e-4)


def test_a_published_model_is_taken_up_and_tuned(blocks, tmp_path):
    """A random T5 and a word-level tokenizer, written as a published model is, with spare rows as T5-small's."""
    words = ["<pad>", "</s>", "<unk>", "toy", *"0123456789", *"abcdefghijklmnopqrstuvwxyz", "_", ",", "{", "}"]
    save_tokenizer(tmp_path / "published", words, pad_token="<pad>")
    torch.manual_seed(3)
    sizes = {"vocab_size": len(words) + 4, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_heads": 2, "num_layers": 1}
    config = T5Config(**sizes, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1)
    T5ForConditionalGeneration(config).save_pretrained(tmp_path / "published")
    system = small(size=T5Size(pretrained=str(tmp_path / "published")), indexing="collaborative")
    assert np.isfinite(scores(system, *blocks, "test", tmp_path)).all()
    before = T5ForConditionalGeneration.from_pretrained(tmp_path / "published", local_files_only=True)
    weights = [model.encoder.block[0].layer[0].SelfAttention.q.weight for model in (before, system.network.t5)]
    assert 0 < (weights[1] - weights[0]).abs().max() < 0.5
    # Numbers start anew, N(0, 1), and no other word does.
    old, new = (model.get_input_embeddings().weight for model in (before, system.network.t5))
    rows = {word: system.speller.vocabulary.encode(word)[0] for word in ("7", "i", "t", "_")}
    moved = {word: (new[row] - old[row]).abs().max() for word, row in rows.items()}
    assert moved["7"] > 0.5 > max(moved[word] for word in "it_")
    assert (system.answers[:, -1] == 1).any()
    assert sorted(system.speller.symbols.values()) == list(range(len(words), len(words) + 6))
    assert len(new) == len(old) + 2
