"""A catalogue small enough to compute by hand, the agent over it, and a page that is served."""

import re
import socket
import threading
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pandas as pd
import pytest
import yaml

from study.advisor.agent.conversation import Agent
from study.advisor.agent.page import Service, create_app
from study.advisor.engine.catalogue import Catalogue
from study.advisor.engine.facts import Facts, first_sentence
from study.advisor.engine.intent.feedback import FeedbackStore
from study.advisor.saved.contract import Recommendation, require_request

FOLDER = Path(__file__).parent
ROWS = yaml.safe_load((FOLDER / "catalogue.yaml").read_text(encoding="utf-8"))
KINDS = yaml.safe_load((FOLDER / "hostile.yaml").read_text(encoding="utf-8"))
HOSTILE = range(901, 951)
WORD = re.compile(r"\w+")


class Words:
    """Ranks servers by the words that they share with a request; equal ones by id."""

    standardised, title, caption = True, "words", "shared words"

    def __init__(self, servers):
        self.servers = servers

    def recommend(self, text, *, k, **attributes):
        require_request(text, k, len(self.servers))
        wanted = set(WORD.findall(text.lower()))
        scores = [len(wanted & set(WORD.findall(description.lower()))) for description in self.servers["description"]]
        rows = (
            self.servers.assign(score=scores).sort_values(["score", "id"], ascending=[False, True]).to_dict("records")
        )
        return [Recommendation.of(rank, row, row["score"], {}) for rank, row in enumerate(rows[:k], start=1)]

    def closeness(self, text, nearest):
        return None

    def warnings(self, text, **attributes):
        return []


def toy(rows=ROWS, urls=None):
    """The agent's catalogue over rows of ``catalogue.yaml``."""
    columns = ["id", "name", "description", "language", "licence", "system", "stars", "official", "tools"]
    table = pd.DataFrame(rows, columns=columns)
    table["url"] = [(urls or {}).get(name, f"https://github.com/example/{name}") for name in table["id"]]
    rows_by_id = {row["id"]: row for row in table.to_dict("records")}

    def facts(server):
        row = rows_by_id[server.server_id]
        official, language = row["official"] == "official", row["language"].partition(",")[0]
        does = first_sentence(row["description"])
        return Facts("", row["url"], does, row["stars"], row["licence"], official, (language,) if language else ())

    return Catalogue("toy", "words", Words(table), facts)


def hostile_catalogue():
    """The toy catalogue and fifty servers whose texts attack whoever reads them."""
    entries = [entry for kind in KINDS.values() for entry in kind]
    rows, urls = [], {}
    for server, (name, description, url, *times) in zip(HOSTILE, entries, strict=True):
        rows.append((server, name, description * (times or [1])[0], "Python", "mit", "", 5, "non-official", ""))
        urls[server] = url or f"https://github.com/hostile/{server}"
    return toy([*ROWS, *rows], urls)


@pytest.fixture(scope="session")
def agent():
    return Agent(toy())


@pytest.fixture(scope="session")
def hostile():
    return Agent(hostile_catalogue())


@pytest.fixture
def feedback(tmp_path):
    return FeedbackStore(tmp_path / "toy.sqlite")


@contextmanager
def serving(app):
    """The application on a free port of this machine, in a thread, as it is served; yields its address."""
    import uvicorn

    from study.advisor.serving import settings

    server = uvicorn.Server(settings(app))
    with socket.create_server(("127.0.0.1", 0)) as listening:  # a request waits until the server has started
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(20)


@contextmanager
def visited(agent, feedback, **more):
    """A client of the page of an agent; `more`: as `create_app`."""
    with (
        serving(create_app(agent, feedback, Service.read(), **more)) as address,
        httpx2.Client(base_url=address, timeout=60, trust_env=False) as client,
    ):
        yield client


class Talk:
    """One conversation with the page over HTTP."""

    def __init__(self, client):
        self.client = client
        begun = client.post("/api/conversations", json={}).json()
        self.headers, self.catalogue = {"X-Conversation": begun["conversation"]}, begun["catalogue"]

    def post(self, path, **body):
        return self.client.post(f"/api/{path}", json=body, headers=self.headers)

    def ids(self, path, **body):
        return [server["server_id"] for server in self.post(path, **body).json()["servers"]]
