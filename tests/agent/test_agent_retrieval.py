"""The ranking by `best` answers as the system of that name does."""

import numpy as np
import pandas as pd
import pytest

from study.agent.retrieval import RETRIEVERS, build
from study.agent.specification import Specification
from study.config import build_system, load
from study.data.dataset import TASK_FIELDS
from study.errors import StudyError


@pytest.fixture
def retriever(data, private_cache):
    return build("best", data)


def test_best_scores_a_request_like_the_description_of_a_task(retriever, data):
    found = retriever.score(Specification("put captions under videos for Marketing", domain="Marketing"))
    system = build_system(load(["system=best"]).system)
    system.index(data.servers)
    words = {"description": "put captions under videos for Marketing", "theme": "Marketing"}
    request = pd.DataFrame([dict.fromkeys(TASK_FIELDS, "") | words])
    assert np.array_equal(found.total, system.score_requests(request)[0])
    other = retriever.score(Specification("read a database"))
    assert not np.array_equal(found.total, other.total)
    assert list(found.parts) == ["usefulness"]


def test_a_servers_product_comes_first(retriever, data):
    renamed = data.servers.assign(name=[*data.servers["name"].iloc[:-1], "Zotero MCP"])
    changed = type(data)(data.name, renamed, data.tasks, data.relevance, data.lists)
    scores = build("best", changed).score(Specification("keep my papers in Zotero")).total
    assert int(scores.argmax()) == len(renamed) - 1


def test_an_unknown_retriever_is_refused(data):
    with pytest.raises(StudyError, match="unknown retriever 'google'"):
        build("google", data)
    assert set(RETRIEVERS) == {"best", "minilm", "tfidf", "t2mrec"}
