"""Prefix trees and beam search against enumeration; vocabularies, and a task's text in few tokens."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.generative.search import INVALID, PAD, UNFINISHED, PrefixTree, batch_by_length, beam_search, prefixes
from baselines.generative.text import BytePairs, task_tokens
from tests.baselines.toys import make_dataset

VOCABULARY = 7


class Table:
    """A decoder whose probabilities are a fixed random function of the input and the prefix."""

    def __init__(self, n_inputs: int, seed: int = 0):
        self.prefixes, self.first = [()] * n_inputs, torch.arange(n_inputs)[:, None]
        self.seed, self.widths = seed, []

    def likely(self, prefix: tuple[int, ...]) -> torch.Tensor:
        rng = np.random.default_rng([self.seed, *prefix])
        return torch.log_softmax(torch.from_numpy(rng.normal(0, 2, VOCABULARY).astype(np.float32)), dim=0)

    def step(self, beams, tokens):
        self.widths.append(len(beams))
        self.prefixes = [(*self.prefixes[beam], *row.tolist()) for beam, row in zip(beams, tokens, strict=True)]
        return torch.stack([self.likely(prefix) for prefix in self.prefixes])

    def of(self, number: int, identifier: list[int]) -> float:
        """The log-probability of an identifier, token by token."""
        prefixes = [(number, *identifier[:place]) for place in range(len(identifier))]
        return sum(float(self.likely(prefix)[token]) for prefix, token in zip(prefixes, identifier, strict=True))


def unique_rows(seed: int, n: int, length: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    every = np.array(np.meshgrid(*[range(VOCABULARY)] * length)).reshape(length, -1).T
    return every[rng.permutation(len(every))[:n]].astype(np.int64)


@given(st.integers(0, 10_000), st.integers(1, 30), st.integers(2, 4))
@settings(max_examples=40)
def test_every_leaf_is_its_item_and_nothing_else_is(seed, n, length):
    identifiers = unique_rows(seed, n, length)
    tree = PrefixTree(identifiers)
    assert sum(item >= 0 for ends in tree.following.values() for item in ends.values()) == n
    for item, row in enumerate(identifiers.tolist()):
        for level in range(length):
            tokens, items = (part[0].tolist() for part in tree.children([tuple(row[:level])]))
            assert tokens == sorted({other[level] for other in identifiers.tolist() if other[:level] == row[:level]})
        assert items[tokens.index(row[-1])] == item


@given(st.integers(0, 10_000), st.integers(1, 50))
@settings(max_examples=25)
def test_a_wide_beam_is_exhaustive_enumeration(seed, n):
    identifiers = unique_rows(seed, n, 3)
    table = Table(4, seed)
    items, values = beam_search(table, PrefixTree(identifiers), n)
    for number in range(4):
        expected = np.array([table.of(number, row) for row in identifiers.tolist()])
        assert sorted(items[number].tolist()) == list(range(n))
        np.testing.assert_allclose(values[number], np.sort(expected)[::-1], rtol=1e-5)
        np.testing.assert_allclose(expected[items[number]], values[number], rtol=1e-5)


@pytest.mark.parametrize("power", [0.0, 1.0])
def test_identifiers_of_different_lengths_are_compared_by_their_mean(power):
    rows = [[1, 0], [2, 3, 0], [2, 4, 5, 0], [3, 0], [2, 3, 6, 0]]
    identifiers, table = np.array([row + [PAD] * (4 - len(row)) for row in rows]), Table(3)
    items, values = beam_search(table, PrefixTree(identifiers), 5, length_power=power)
    for number in range(3):
        expected = np.array([table.of(number, row) / len(row) ** power for row in rows])
        np.testing.assert_allclose(values[number], np.sort(expected)[::-1], rtol=1e-5)
        assert items[number].tolist() == np.argsort(-expected).tolist()


def test_a_narrow_beam_keeps_the_best_beginnings():
    identifiers = unique_rows(3, 40, 3)
    table = Table(1)
    items, values = beam_search(table, PrefixTree(identifiers), 2)
    # By hand: the two best first tokens that begin some item, then the two best of their continuations, and again.
    kept: list[list[int]] = [[]]
    for level in range(3):
        longer = {tuple(row[: level + 1]) for row in identifiers.tolist() if list(row[:level]) in kept}
        kept = [list(row) for row in sorted(longer, key=lambda row: -table.of(0, list(row)))[:2]]
    assert [identifiers[item].tolist() for item in items[0]] == kept
    np.testing.assert_allclose(values[0], [table.of(0, row) for row in kept], rtol=1e-5)


def test_the_tree_lets_no_identifier_of_no_item_pass_and_the_levels_do():
    identifiers = unique_rows(5, 6, 3)
    tree = PrefixTree(identifiers)
    every = [(0, VOCABULARY)] * 3
    strict, _ = beam_search(Table(5), tree, 6)
    assert (strict >= 0).all()
    items, values = beam_search(Table(5), PrefixTree(identifiers, every), 20)
    assert (items == INVALID).any()
    assert not (items == UNFINISHED).any()
    # What the looser search finds, it finds at the same log-probability.
    for number in range(5):
        for item, value in zip(items[number], values[number], strict=True):
            if item >= 0:
                assert value == pytest.approx(Table(5).of(number, identifiers[item].tolist()), rel=1e-5)


def test_places_beyond_the_items_are_unfilled_and_forced_tokens_are_read_once_per_input():
    items, values = beam_search(Table(1), PrefixTree(np.array([[3, 2, 1]])), 4)
    assert items[0].tolist() == [0, UNFINISHED, UNFINISHED, UNFINISHED]
    assert values[0, 0] < -0.1  # not renormalised: the only item is not certain
    assert np.isneginf(values[0, 1:]).all()
    table = Table(2)
    beam_search(table, PrefixTree(np.array([[1, 2, 0], [1, 2, 3], [1, 2, 4]])), 30)
    assert table.widths == [2, 2, 2]


TEXTS = ["Query a PostgreSQL database", "Render an image of a database", "naïve café \N{SNOWMAN}"]


@given(st.text(max_size=60))
@settings(max_examples=60)
def test_no_text_spells_a_special_token(text):
    words = BytePairs(TEXTS * 3, 300)
    for spelled in (text, "<pad>", "</s>", "<a_1><b_2>", "[PAD]", "\x00\x01", "<0>"):
        assert all(2 <= token < words.size for token in words.encode(spelled))
    assert words.encode("database " * 50, 7) == words.encode("database " * 50)[:7]
    frequent = BytePairs(["recommend server"] * 5, 2000)
    assert len(frequent.encode("recommend")) == len(frequent.encode("server")) == 1


def test_name_and_description_are_cut_at_their_end():
    """A task with a long description and one with a name alone."""
    about = "Write a query, look at its plan and add the index that is missing"
    attributes = {"language": "SQL", "category": "Databases", "theme": "Finance"}
    tasks = [{"name": "Query tables", "description": about, **attributes}, {"name": "Render", "theme": "Finance"}]
    data = make_dataset(tasks, [{"name": "alone"}], [[0], [0]])
    texts, words = data.task_texts(), BytePairs(data.task_texts() * 3, 300)
    ends = words.encode(" \n SQL \n Databases \n Finance")
    assert task_tokens(data, words, 200) == [words.encode(text) for text in texts]  # all fits
    cut = task_tokens(data, words, len(ends) + 9)
    assert cut[0] == [*words.encode(texts[0])[:9], *ends]
    assert len(cut[1]) <= len(ends) + 9
    assert task_tokens(data, words, 3)[0] == ends[:3]


@given(st.lists(st.integers(0, 6), min_size=1, max_size=8), st.integers(0, 99))
def test_prefixes_split_a_list_in_two(counts, seed):
    lists = [np.arange(count) + 10 * row for row, count in enumerate(counts)]
    drawn = list(prefixes(lists, "random", np.random.default_rng(seed)))
    assert [row for row, _, _ in drawn] == [row for row, count in enumerate(counts) if count >= 2]
    for row, seen, targets in drawn:
        assert min(len(seen), len(targets)) > 0
        assert sorted([*seen, *targets]) == lists[row].tolist()
    for row, seen, targets in prefixes(lists, "list", np.random.default_rng(seed)):
        assert [*seen, *targets] == lists[row][: len(seen) + 1].tolist()


def test_batches_hold_every_example_once_and_similar_lengths_together():
    examples = ["x" * n for n in range(1, 30)]
    parts = batch_by_length(examples, len, 4, np.random.default_rng(0))
    assert sorted((example for part in parts for example in part), key=len) == examples
    assert all(max(map(len, part)) - min(map(len, part)) <= 3 for part in parts)
    assert [len(part[0]) for part in parts] != sorted(len(part[0]) for part in parts)
