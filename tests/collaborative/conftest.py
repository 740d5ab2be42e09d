from __future__ import annotations

import sys
from pathlib import Path

import pytest

# The toy data sets are shared with the other baselines' tests.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "baselines"))


@pytest.fixture(autouse=True, scope="module")
def _private_cache(private_cache):
    """Every file here has a cache of its own."""


@pytest.fixture(scope="session")
def planted(tmp_path_factory):
    """Made-up data with what warm systems live on in Task2MCP: lists that repeat, and a flat popularity."""
    from study.data import dataset, prepare, synthetic

    folder = tmp_path_factory.mktemp("planted")
    raw = synthetic.generate(folder / "raw", n_servers=800, duplicate_share=0.4, popularity_sd=0.3)
    prepare.prepare("synthetic", raw, folder / "prepared", folder / "tables")
    return dataset.load("synthetic", folder / "prepared")


@pytest.fixture(scope="session")
def floor(planted, tmp_path_factory):
    """Protocol -> the least mean Recall@10 of a system that works: five times popularity, or five times chance."""
    from collaborative_toys import fit_and_recall

    from study.data.splits import make

    popularity = fit_and_recall("popularity", planted, make(planted, "warm"), tmp_path_factory.mktemp("floor"))
    return {"warm": 5 * popularity, "cold": 5 * 10 / planted.n_servers}


@pytest.fixture(scope="session")
def blocks():
    """Two blocks of tasks and servers, and their `warm` split."""
    from baseline_toys import block_dataset

    from study.data.splits import make

    data = block_dataset()
    return data, make(data, "warm")
