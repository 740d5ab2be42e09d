"""Small data sets with learnable text, made in memory."""

import numpy as np
import pandas as pd
import pytest

from study.data import dataset as datasets
from study.data.splits import make

PLAIN = {"category": "tools", "url": "https://example.org", "author": "a", "license": "MIT", "stars_count": 1}
PLAIN |= {"official": "non-official"}
WORDS = ["pdf", "image", "sql", "mail", "maps", "cloud", "audio", "video", "git", "chart"]


def make_data(n_tasks, n_servers, descriptions=None):
    """Server i belongs to topic i % 10 and has an id that is not its row; a task lists the first five of its topic."""
    topic = np.random.default_rng(7).integers(0, 10, n_tasks)
    ids = 3 * np.arange(n_servers) + 100
    own = [f"tool for {WORDS[i % 10]} number{i}" for i in range(n_servers)]
    servers = pd.DataFrame({"id": ids, "description": own if descriptions is None else descriptions}).assign(
        name=[f"{WORDS[i % 10]} server {i}" for i in range(n_servers)],
        language=["Python" if i % 2 else "Go, Docker" for i in range(n_servers)],
        subcategory=[f"sub{i % 3}" for i in range(n_servers)],
        system="",
        tools="",
        **PLAIN,
    )
    tasks = pd.DataFrame({"id": np.arange(1, n_tasks + 1), "language": "Python", "category": "work"}).assign(
        name=[f"do {WORDS[t]} work" for t in topic],
        description=[f"please handle {WORDS[t]} item{i}" for i, t in enumerate(topic)],
        subcategory="sub0",
        theme=[f"theme{i % 4}" for i in range(n_tasks)],
    )
    labels = pd.DataFrame(
        [(i + 1, ids[t + 10 * j], j + 1) for i, t in enumerate(topic) for j in range(5)],
        columns=["task_id", "server_id", "position"],
    )
    return datasets.build("toy", servers, tasks, labels)


@pytest.fixture(scope="session")
def toy():
    return make_data(100, 50)


@pytest.fixture(scope="session")
def toy_split(toy):
    return make(toy, "cold")
