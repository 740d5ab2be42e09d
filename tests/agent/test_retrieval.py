"""The ranking by `field_dense` answers as the system of that name does."""

import numpy as np
import pandas as pd
import pytest

from study.agent.agent import Agent
from study.agent.retrieval import RETRIEVERS, build_retriever, require_retriever
from study.agent.specification import Specification
from study.config.compose import build_system, load
from study.data.dataset import TASK_FIELDS
from study.errors import StudyError
from study.usefulness import field_dense


@pytest.fixture
def retriever(data, private_cache):
    return build_retriever("field_dense", data)


def test_best_scores_a_request_like_the_description_of_a_task(retriever, data):
    found = retriever.score(Specification("put captions under videos for Marketing", domain="Marketing"))
    system = build_system(load(["system=field_dense"]).system)
    system.index(data.servers)
    words = {"description": "put captions under videos for Marketing", "theme": "Marketing"}
    request = pd.DataFrame([dict.fromkeys(TASK_FIELDS, "") | words])
    assert np.array_equal(found.total, system.score_requests(request)[0])
    other = retriever.score(Specification("read a database"))
    assert not np.array_equal(found.total, other.total)


def test_the_parts_of_best_add_up_and_need_one_call_of_the_encoder(retriever, data, monkeypatch):
    calls = []
    encode = field_dense.encode
    monkeypatch.setattr(field_dense, "encode", lambda texts, **more: calls.append(len(texts)) or encode(texts, **more))
    found = retriever.score(Specification("summarise the transcripts of long videos", domain="Marketing"))
    assert len(calls) == 1
    assert list(found.parts) == ["semantic (all)", "semantic (description)", "template", "product"]
    assert np.allclose(sum(found.parts.values()), found.total, atol=1e-5)
    assert all(values.shape == (data.n_servers,) for values in found.parts.values())
    assert found.parts["semantic (all)"].std() > 0.1
    # The answer shows the same parts, and they add up there too.
    best = Agent(data, retriever=retriever).recommend(Specification("summarise videos", preferences=("privacy",)))
    for item in best.recommendations:
        scores = {name: value for name, value in item.evidence.scores.items() if name not in ("rank", "total")}
        assert set(scores) == {*found.parts, "preferences"}
        assert sum(scores.values()) == pytest.approx(item.evidence.scores["total"], abs=5e-4)


def test_a_template_and_a_product_are_parts_of_the_score_and_the_product_comes_first(data, private_cache):
    rows = data.servers.copy()
    rows.loc[0, "description"] = "A template for servers"
    rows.loc[6, "name"] = "Zotero MCP"
    changed = type(data)(data.name, rows, data.tasks, data.relevance, data.lists)
    found = build_retriever("field_dense", changed).score(Specification("keep my papers in Zotero"))
    assert list(found.parts["template"]) == [-1, 0, 0, 0, 0, 0, 0]
    assert list(found.parts["product"]) == [0, 0, 0, 0, 0, 0, 6]
    assert int(found.total.argmax()) == 6


def test_an_unknown_retriever_is_refused(data):
    with pytest.raises(StudyError, match="unknown retriever 'google'"):
        build_retriever("google", data)
    assert set(RETRIEVERS) == {"field_dense", "minilm", "tfidf", "t2mrec"}
    assert require_retriever("best") == "field_dense"  # its name in the release before
