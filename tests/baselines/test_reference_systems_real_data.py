"""Measured values of the reference systems on Task2MCP (authors' cold split), to notice a change of data or code."""

from __future__ import annotations

import os

import numpy as np
import pytest

from study.evaluation.ranking import mask_known, tie_order, top_k
from tests.baselines.toys import build, recall10

pytestmark = [
    pytest.mark.mirror,
    pytest.mark.skipif(not os.environ.get("T2M_MIRROR"), reason="T2M_MIRROR names no folder with the public data"),
]


# Recall@10 of seed 1. Three seeds of popularity and of the oracle agree to four decimals; the random one varies most.
MEASURED = {
    "random": 0.0028,
    "popularity": 0.0191,
    "popularity_subcategory": 0.0515,
    "popularity_theme": 0.2336,
    "tfidf": 0.0694,
    "bm25": 0.0844,
    "oracle_neighbour": 0.7169,
}


@pytest.mark.parametrize("name", MEASURED)
def test_recall_on_the_authors_split(name, task2mcp, tmp_path):
    data, split = task2mcp.data, task2mcp.split("cold")
    system = build(name)
    system.fit(data, split, seed=1, workdir=tmp_path)
    tasks = split.tasks("test")
    ranked = top_k(mask_known(system.score(tasks), tasks, split.known("test")), 10, tie_order(data.n_servers, 1))[0]
    assert np.mean(recall10(ranked, split)) == pytest.approx(MEASURED[name], abs=0.003)
