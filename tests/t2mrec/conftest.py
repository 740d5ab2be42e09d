"""Small data sets with learnable text, made in memory."""

from dataclasses import replace

import numpy as np
import pytest

from study.data.splits import make
from study.data.toys import make_dataset

PLAIN = {"category": "tools", "url": "https://example.org", "license": "MIT", "official": "non-official"}
WORDS = ["pdf", "image", "sql", "mail", "maps", "cloud", "audio", "video", "git", "chart"]


def make_data(n_tasks, n_servers, descriptions=None):
    """Server i belongs to topic i % 10 and has an id that is not its row; a task lists the first five of its topic."""
    topic = np.random.default_rng(7).integers(0, 10, n_tasks)
    servers, tasks = [], []
    for i in range(n_servers):
        texts = {"name": f"{WORDS[i % 10]} server {i}", "language": "Python" if i % 2 else "Go, Docker"}
        texts["description"] = descriptions[i] if descriptions else f"tool for {WORDS[i % 10]} number{i}"
        servers.append({**texts, "subcategory": f"sub{i % 3}", **PLAIN})
    for i, t in enumerate(topic):
        texts = {"name": f"do {WORDS[t]} work", "description": f"please handle {WORDS[t]} item{i}"}
        kind = {"language": "Python", "category": "work", "subcategory": "sub0", "theme": f"theme{i % 4}"}
        tasks.append(texts | kind)
    data = make_dataset(tasks, servers, [[t + 10 * j for j in range(5)] for t in topic])
    return replace(data, servers=data.servers.assign(id=3 * np.arange(n_servers) + 100, author="a", stars_count=1))


@pytest.fixture(scope="session")
def toy():
    return make_data(100, 50)


@pytest.fixture(scope="session")
def toy_split(toy):
    return make(toy, "cold")
