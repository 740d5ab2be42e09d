"""A catalogue small enough to compute by hand, and the agent over it."""

import socket
import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from study.advisor.agent.agent import Agent
from study.advisor.agent.retrieval import Lexical
from study.advisor.agent.settings import Service, Settings, read_conf
from study.advisor.engine.intent.feedback import FeedbackStore
from study.data.dataset import Dataset, relevance_from_lists
from tests.advisor.agent.messages import hostile_rows
from tests.tiny_study import lay_out, make_data, rooted

COLUMNS = ["id", "name", "description", "language_tokens", "license_clean", "system_tokens"]
COLUMNS += ["stars_count", "official", "tools"]
ROWS = yaml.safe_load(Path(__file__).with_name("catalogue.yaml").read_text(encoding="utf-8"))


def catalogue(rows=ROWS, name="toy"):
    servers = pd.DataFrame(rows, columns=COLUMNS)
    slugs = servers["name"].str.lower().str.replace(r"[^a-z0-9]+", "-", regex=True).str.strip("-")
    servers["url"] = "https://github.com/example/" + slugs
    servers["web_url"] = "https://example.org/" + slugs
    servers[["language", "system", "license"]] = servers[["language_tokens", "system_tokens", "license_clean"]]
    servers["category"] = servers["category_clean"] = "tools"
    servers["subcategory"] = servers["subcategory_clean"] = "General"
    servers["author"], servers["origin"], servers["watching_count"], servers["activity"] = "example", "toy", 1, 1
    servers["is_official"] = servers["official"] == "official"
    tasks = pd.DataFrame({"language_tokens": ["Python", "Go", "TypeScript", "JavaScript", "C", "C++"]})
    themes = ["Marketing", "Video Production", "Retail", "Retail", "Security", "Security"]
    tasks = tasks.assign(id=range(1, 7), theme_clean=themes)
    lists = (np.array([0], dtype=np.int64),) * len(tasks)
    return Dataset(name, servers, tasks, relevance_from_lists(lists, len(servers)), lists)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A small synthetic data set in a folder of its own."""
    root = tmp_path_factory.mktemp("study")
    lay_out(root)
    with rooted(root):
        make_data()
        yield root


@pytest.fixture(scope="session")
def data():
    return catalogue()


def asking(data):
    """An agent that asks for a language before it answers, which `conf/agent/agent.yaml` does not."""
    return Agent(data, retriever=Lexical(data), settings=replace(read_conf(Settings), essential=["language"]))


@pytest.fixture(scope="session")
def agent(data):
    return asking(data)


@pytest.fixture(scope="session")
def service():
    return read_conf(Service)


@pytest.fixture
def feedback(tmp_path):
    return FeedbackStore(tmp_path / "toy.sqlite")


@contextmanager
def serving(app):
    """The application on a free port of this machine, in a thread; yields its address."""
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False, ws="none"))
    with socket.create_server(("127.0.0.1", 0)) as listening:  # a request waits until the server has started
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(20)


@pytest.fixture(scope="session")
def hostile():
    """The agent over the toy catalogue and fifty hostile servers."""
    rows, urls = hostile_rows()
    data = catalogue([*ROWS, *rows], name="hostile")
    data.servers["url"] = data.servers["id"].map(urls).fillna(data.servers["url"])
    return asking(data)
