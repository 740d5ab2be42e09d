"""A small catalogue of tools and an embedder whose vectors can be computed by hand."""

import numpy as np
import pytest
from typer.testing import CliRunner

from study.advisor.encoders import choose as embedding
from study.advisor.retrieval.documents import Server, Tool, ToolCatalog, save_catalog
from study.cli import tools as cli
from study.cli.tools import catalogue_file
from tests.tiny_study import REPOSITORY

WORDS = ("file", "read", "write", "mail", "send", "map", "route", "price")
BLOCK = "<tool_assistant>\nserver: {}\ntool: {}\n</tool_assistant>"


class BagOfWords:
    """Counts of `WORDS`, scaled to length 1; a text without any gets equal counts. It counts what it is asked."""

    def __init__(self):
        self.asked = []

    def encode(self, texts, *, store=True):
        self.asked += list(texts)
        counts = np.array([[text.lower().count(word) for word in WORDS] for text in texts], dtype=np.float32)
        counts = counts.reshape(len(texts), len(WORDS))
        counts[~counts.any(axis=1)] = 1
        return counts / np.linalg.norm(counts, axis=1, keepdims=True)


@pytest.fixture
def project(new_root):
    """A project folder of its own with the committed configuration."""
    (new_root / "conf").symlink_to(REPOSITORY / "conf")
    return new_root


@pytest.fixture
def embedder():
    return BagOfWords()


@pytest.fixture
def run():
    """A command of `study tools`."""
    return lambda *words: CliRunner().invoke(cli.app, list(words), catch_exceptions=False)


@pytest.fixture
def toy(project, catalog, embedder, monkeypatch):
    """The small catalogue as the indexed catalogue `toy`, embedded by hand; its file."""
    monkeypatch.setattr(embedding.MiniLm, "encode", lambda self, texts, store=True: embedder.encode(texts))
    save_catalog(catalogue_file("toy"), catalog)
    return catalogue_file("toy")


def schema(**texts):
    properties = {name: {"type": "string", "description": text} for name, text in texts.items()}
    return {"type": "object", "properties": properties}


@pytest.fixture
def catalog():
    servers = (
        Server("fs", "Files", "read and write a file"),
        Server("mail", "Mail", "send mail", aliases=("mailer",)),
        Server("geo", "Maps", "map and route"),
    )
    tools = (
        Tool(0, "read_file", "read a file", schema(path="where the file is")),
        Tool(0, "write_file", "write a file", schema(path="where", text="what to write")),
        Tool(1, "send", "send a mail"),
        Tool(1, "write_file", "write a mail to a file"),
        Tool(2, "route", "find a route on a map"),
    )
    return ToolCatalog("toy", servers, tools)


def listing(name, *texts):
    """A catalogue of one server, by the descriptions of its tools."""
    return ToolCatalog(
        name, (Server("s", name, "about"),), tuple(Tool(0, f"t{i}", text) for i, text in enumerate(texts))
    )
