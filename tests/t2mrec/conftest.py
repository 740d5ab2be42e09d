"""A small data set with learnable text, made in memory."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from study.data import dataset as datasets
from study.data.splits import make
from study.t2mrec.module import PairEpoch

WORDS = ["pdf", "image", "sql", "mail", "maps", "cloud", "audio", "video", "git", "chart"]


@pytest.fixture(scope="session")
def toy():
    """100 tasks and 50 servers in ten topics; a task lists the five servers of its topic."""
    servers = pd.DataFrame({"id": np.arange(1, 51), "system": "", "tools": "", "category": "tools"})
    servers = servers.assign(author="a", license="", stars_count=1)
    servers["name"] = [f"{WORDS[i % 10]} server {i}" for i in range(50)]
    servers["description"] = [f"tool for {WORDS[i % 10]} number{i}" for i in range(50)]
    servers["language"] = ["Go, Docker", "Python"] * 25
    servers["subcategory"] = [f"sub{i % 3}" for i in range(50)]
    servers["url"] = [f"https://example.org/{i}" for i in range(50)]
    topic = np.random.default_rng(7).integers(0, 10, 100)
    tasks = pd.DataFrame({"id": np.arange(1, 101), "language": "Python", "category": "work", "subcategory": "sub0"})
    tasks["name"] = [f"do {WORDS[t]} work" for t in topic]
    tasks["description"] = [f"please handle {WORDS[t]} item{i}" for i, t in enumerate(topic)]
    tasks["theme"] = [f"theme{i % 4}" for i in range(100)]
    labels = [(i + 1, 1 + t + 10 * j, j + 1) for i, t in enumerate(topic) for j in range(5)]
    return datasets.build("toy", servers, tasks, pd.DataFrame(labels, columns=["task_id", "server_id", "position"]))


@pytest.fixture(scope="session")
def toy_split(toy):
    return make(toy, "cold")


@pytest.fixture
def pair_epoch(toy_split):
    """The pairs of an epoch, whose vectors tell the numbers of tasks and servers."""
    eyes = (sp.eye_array(n, format="csr") for n in toy_split.train.shape)
    return partial(PairEpoch, *eyes, toy_split.train, toy_split.tasks("train"), batch_size=16)
