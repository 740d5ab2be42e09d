"""The encoder in numpy, held against the library sentence-transformers, which made every kept vector."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from study.encoders.sentence import WITHOUT_TORCH, encode, without_torch

TEXTS = ["read a PDF and extract all tables", "", "  ", "!!!", "[CLS] <unk> [MASK] [PAD]", "1" * 300, "x\ud800"]
TEXTS += ["word " * 2000, "Ünïcödé ß İ a\u0301b 漢字 🎉 \u200b\x00"]


def both(texts):
    """The vectors of both forms of every network that has two."""
    ((torch, numpy),) = WITHOUT_TORCH.items()
    return encode(texts, model=torch, store=False), encode(texts, model=numpy, store=False)


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text[:12].encode("ascii", "replace").decode())
def test_vectors_are_those_of_sentence_transformers(text):
    theirs, ours = both([text])
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


@given(st.lists(st.text(max_size=80), min_size=1, max_size=3))
@settings(max_examples=25)
def test_vectors_of_any_texts_are_those_of_sentence_transformers(texts):
    theirs, ours = both(texts)
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_what_is_cut_is_not_read():
    model = without_torch("minilm_numpy")
    # Two of the tokens are those around every text.
    fits = " ".join(["word"] * (model.longest - 2))
    assert not model.cut(fits)
    assert model.cut(fits + " word")
    np.testing.assert_array_equal(model.embed([fits]), model.embed([fits + " and more"]))
    assert np.abs(model.embed([fits]) - model.embed([fits.replace("word word", "other word", 1)])).max() > 1e-3
