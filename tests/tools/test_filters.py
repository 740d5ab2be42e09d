"""Which tools may be found, and which vectors of their texts are kept."""

import json
from dataclasses import replace

import numpy as np
import pytest

from study.advisor.encoders import sentence
from study.advisor.encoders.choose import FEW, QuickMiniLm
from study.advisor.retrieval.documents import ToolCatalog
from study.advisor.retrieval.index import matching
from study.base import paths
from study.base.errors import StudyError


def test_few_new_texts_need_no_torch_and_a_question_is_not_kept(project, monkeypatch):
    asked = []

    def embed(texts, model, device):
        asked.append((model, len(texts)))
        return np.full((len(texts), sentence.DIMENSION), len(asked), dtype=np.float32)

    monkeypatch.setattr(sentence, "_embed", embed)
    many = [f"text {number}" for number in range(FEW + 1)]
    first = QuickMiniLm().encode(many)
    again = QuickMiniLm().encode([*many, "new"])
    QuickMiniLm().encode(["a question"], store=False)
    assert asked == [("minilm", FEW + 1), ("minilm_numpy", 1), ("minilm_numpy", 1)]
    np.testing.assert_array_equal(again[:-1], first)
    QuickMiniLm().encode(["a question"])
    assert asked[3:] == [("minilm_numpy", 1)]
    assert (paths.cache() / "embeddings" / "tools").is_dir()


def test_filters_by_server_and_tag(catalog):
    marked = (replace(catalog.servers[0], tags=("Office",)), replace(catalog.servers[1], sources=("hub",)))
    own = ToolCatalog("toy", (*marked, catalog.servers[2]), catalog.tools)
    assert matching(own, [], []) is None
    rows = {
        ("MAIL*", ""): [2, 3],  # an alias, a name, or an id
        ("geo", ""): [4],
        ("", "office"): [0, 1],
        ("*", "HUB"): [2, 3],
    }
    for (server, tag), expected in rows.items():
        found = matching(own, [server] if server else [], [tag] if tag else [])
        assert np.flatnonzero(found).tolist() == expected
    with pytest.raises(StudyError, match="geo"):
        matching(own, ["geo"], ["hub"])


def test_only_the_chosen_servers_are_searched(toy, run):
    words = ["find", "write a file", "--catalogue", "toy", "--json", "--server", "mail"]
    for mode in ("dense", "bm25", "routed"):
        assert {one["server"]["id"] for one in json.loads(run(*words, "--method", mode).output)} == {"mail"}
