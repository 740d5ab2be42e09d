"""TIGER: the writer against examples taken apart, and the search with and without the tree."""

import numpy as np
import torch

from baselines.generative.seq2seq import IGNORED, ItemWriter
from baselines.tiger import Tiger
from tests.baselines.generative_toys import T5, codes, steps
from tests.baselines.toys import scores


def small(epochs: int = 2, **changes: object) -> Tiger:
    return Tiger(**{"quantiser": codes(3), "size": T5, "training": steps(epochs), **changes})


def test_the_loss_of_shared_readings_is_that_of_examples_taken_apart():
    torch.manual_seed(0)
    writer = ItemWriter(40, T5, pad=0, whole_words=9).eval()
    inputs, words = torch.tensor([[3, 4, 5], [7, 8, 0]]), torch.tensor([[1, 1, 2], [1, 2, 0]])
    targets = torch.tensor([[11, 12, 13], [21, 22, IGNORED], [31, 32, 33]])
    together = writer((inputs, words, targets, torch.tensor([0, 0, 1])))
    first, second = (inputs[:1], words[:1]), (inputs[1:, :2], words[1:, :2])
    parts = (*first, targets[:1]), (*first, targets[1:2, :2]), (*second, targets[2:])
    apart = [writer((*part, torch.zeros(1, dtype=torch.int64))) for part in parts]
    torch.testing.assert_close(together, torch.stack(apart).mean(), rtol=1e-5, atol=1e-5)


def test_a_search_without_the_tree_writes_identifiers_of_no_server_and_the_beam_is_what_is_ranked(blocks, tmp_path):
    loose, strict = small(epochs=1, constrained=False), small(epochs=1)
    found = scores(loose, *blocks, "test", tmp_path)
    assert loose.invalid > 0
    # The answers of the evaluations on validation are not counted.
    assert np.isfinite(found).sum() + loose.invalid == len(found) * 30 == loose.report()["answers"]
    whole = scores(strict, *blocks, "test", tmp_path / "strict")
    assert strict.invalid == 0
    assert len(np.unique(strict.identifiers, axis=0)) == 30
    strict.beam = 12
    found = strict.score(blocks[1].tasks("test"))
    assert (np.isfinite(found).sum(axis=1) == 12).all()
    np.testing.assert_allclose(found[np.isfinite(found)], whole[np.isfinite(found)], rtol=1e-4, atol=1e-4)
