"""A small data set with learnable text, made in memory."""

import numpy as np
import pandas as pd
import pytest

from study.data import dataset as datasets
from study.data.dataset import Dataset
from study.data.splits import Split, make

WORDS = ["pdf", "image", "sql", "mail", "maps", "cloud", "audio", "video", "git", "chart"]


@pytest.fixture(scope="session")
def toy() -> Dataset:
    """100 tasks and 50 servers in ten topics; a task lists the five servers of its topic."""
    rng = np.random.default_rng(7)
    servers = pd.DataFrame(
        {
            "id": np.arange(1, 51),
            "name": [f"{WORDS[i % 10]} server {i}" for i in range(50)],
            "description": [f"tool for {WORDS[i % 10]} number{i}" for i in range(50)],
            "language": ["Python" if i % 2 else "Go, Docker" for i in range(50)],
            "system": "",
            "tools": "",
            "category": "tools",
            "subcategory": [f"sub{i % 3}" for i in range(50)],
            "url": [f"https://example.org/{i}" for i in range(50)],
            "author": "a",
            "license": "",
            "stars_count": 1,
        }
    )
    topic = rng.integers(0, 10, 100)
    tasks = pd.DataFrame(
        {
            "id": np.arange(1, 101),
            "name": [f"do {WORDS[t]} work" for t in topic],
            "description": [f"please handle {WORDS[t]} item{i}" for i, t in enumerate(topic)],
            "language": "Python",
            "category": "work",
            "subcategory": "sub0",
            "theme": [f"theme{i % 4}" for i in range(100)],
        }
    )
    labels = pd.DataFrame(
        [(i + 1, 1 + t + 10 * j, j + 1) for i, t in enumerate(topic) for j in range(5)],
        columns=["task_id", "server_id", "position"],
    )
    return datasets.build("toy", servers, tasks, labels)


@pytest.fixture(scope="session")
def toy_split(toy: Dataset) -> Split:
    return make(toy, "cold")
