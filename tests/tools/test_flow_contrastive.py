"""The contrastive fine-tune: the packaged encoder's equal before, held-out servers kept away, a planted pattern."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from study.encoders import sentence
from study.tools.catalogues.catalog import Server, Tool, ToolCatalog
from study.tools.flow import encoder_tables
from study.tools.flow.contrastive import Tuned, Tuning
from study.tools.flow.samples import Sample, as_queries
from study.tools.flow.settings import flow_settings
from tests.tools.conftest import BagOfWords

# The words say nothing of the tools: only training can tell that "alpha" means the first.
WORDS = ("alpha", "beta", "gamma", "delta")
CATALOG = ToolCatalog(
    "c", (Server("a", "A", ""), Server("b", "B", "")), tuple(Tool(row // 2, f"tool {row}", "", {}) for row in range(4))
)
SAMPLES = [
    Sample(f"{row}-{number}", f"{word} {number}", row, row // 2, {}, f"{row}-{number}")
    for (row, word), number in product(enumerate(WORDS), range(4))
]
FLOW = flow_settings()
HOW = replace(FLOW.contrastive, batch=8, distractors=2, epochs=12, rate=3e-4, drawn=4)
DOCUMENTS = [tool.name for tool in CATALOG.tools]


@pytest.fixture
def tuning(new_root):
    return Tuning(CATALOG, SAMPLES, DOCUMENTS, HOW, 0)


def first(encoder, rows):
    """Share of the samples whose tool is nearest."""
    scores = encoder.encode([SAMPLES[row].text for row in rows]) @ encoder.encode(DOCUMENTS).T
    return np.mean(scores.argmax(axis=1) == [SAMPLES[row].tool for row in rows])


def test_untrained_it_is_minilm(tuning):
    texts = ["hello", "turn a word document into a PDF and email it", "", "天 " * 400]
    plain = Tuned(tuning.lower, tuning.lower.upper).encode(texts)
    np.testing.assert_allclose(plain, sentence.encode(texts, store=False), atol=1e-6)


def test_a_planted_pattern_is_learned_kept_and_mixed(tuning, monkeypatch):
    every = range(len(SAMPLES))
    tuned = tuning.encoder(None, 1.0)
    assert first(tuned, every) > first(tuning.encoder(None, 0.0), every) + 0.3
    monkeypatch.setattr(Tuning, "train", None)  # what is kept is read
    again = Tuning(CATALOG, SAMPLES, DOCUMENTS, HOW, 0).encoder(None, 1.0)
    np.testing.assert_array_equal(again.encode(["alpha"]), tuned.encode(["alpha"]))
    half, plain = tuning.encoder(None, 0.5).upper.state_dict(), tuning.lower.upper.state_dict()
    name = next(iter(plain))
    torch.testing.assert_close(half[name], (plain[name] + tuned.upper.state_dict()[name]) / 2)
    tuning.path(None).write_bytes(b"damaged")
    with pytest.raises(TypeError):
        tuning.encoder(None, 1.0)


def test_what_is_held_out_is_not_read(tuning, monkeypatch):
    read = []
    monkeypatch.setattr(tuning.lower, "read", lambda texts, real=tuning.lower.read: read.extend(texts) or real(texts))
    tuning.train(0)
    hidden = {sample.text for sample in SAMPLES if tuning.groups[sample.server] == 0}
    hidden |= {tool.name for tool in CATALOG.tools if tuning.groups[tool.server] == 0}
    assert read
    assert not hidden & set(read)
    assert tuning.path(0) != tuning.path(1)


def test_tables_compare_every_mix_with_minilm(tuning, monkeypatch):
    """With weights as before nothing differs; a search is compared over queries, unseen servers over tools."""
    monkeypatch.setattr(Tuning, "trained", lambda self, held_out: self.lower.upper.state_dict())
    table = encoder_tables.unseen_servers(tuning, {"minilm": 0.0, "tuned": 1.0}, FLOW)
    assert table["system"].tolist() == ["tuned"]
    assert (table["n"].item(), table["diff"].item(), table["unit"].item()) == (4, 0, "tool")
    queries = as_queries(SAMPLES)
    pair = {"minilm": tuning.encoder(None, 0.0), "tuned": BagOfWords()}
    found = encoder_tables.compare_searches("mcptools", "query", CATALOG, queries, pair)
    # Five places for four tools: every search finds all of them.
    assert (found["n"].item(), found["diff"].item(), found["metric"].item()) == (16, 0, "recall@5")
