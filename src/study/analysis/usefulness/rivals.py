"""How products search MCP servers and tools today, each from its public description, over the open catalogue.

A method takes requests and servers (columns of `catalog.merge.COLUMNS`) and gives for each request the rows of at
most `k` servers, best first; what does not match is left out, and equal servers keep the order of their ids. Products
for tools search one text per tool. Here a server is one text: its name, its description, and the names and
descriptions of its tools as far as they are known (the catalogue has no arguments of tools).
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

import bm25s
import numpy as np
import pandas as pd
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

from study.advisor.encoders.sentence import cosines, encode

Rows = list[list[int]]
Method = Callable[[Sequence[str], pd.DataFrame, int], Rows]
# Of Okapi's BM25, as docker/mcp-gateway and fastmcp set them.
K1, B = 1.5, 0.75
# Share of the semantic half in ToolHive's hybrid, its default.
SEMANTIC = 0.5
# One of these words in a request makes ToolHive look for the request as a phrase.
_COMMON = "name description schema input output type properties required title id tool server meta data content text"
PHRASE = frozenset(f"{_COMMON} value field column table index key primary".split())


def docker(requests: Sequence[str], servers: pd.DataFrame, k: int) -> Rows:
    """`mcp-find` of Docker's MCP gateway: BM25 in which the words of name, title and tools' names count 4, 3 and 2
    times, those of descriptions once (docker/mcp-gateway, pkg/gateway/findmcps.go at b982681).

    A word that the request repeats counts once. Assumed: the name is the last part of the id, the title is our name.
    """
    documents = []
    for server in servers.to_dict("records"):
        parts = [(re.split(r"[/:]", server["id"])[-1], 4), (server["name"], 3), (server["description"], 1)]
        for name, description in _tools(server):
            parts += [(name, 2), (description, 1)]
        documents.append([word for text, weight in parts for word in _words(text) * weight])
    return _bm25(documents, [list(dict.fromkeys(_words(request))) for request in requests], k)


def tool_search_bm25(requests: Sequence[str], servers: pd.DataFrame, k: int) -> Rows:
    """`BM25SearchTransform` of FastMCP: BM25 over one text, words of two characters or more (jlowin/fastmcp,
    src/fastmcp/server/transforms/search/bm25.py at a272dfa).

    Claude's tool search by BM25 states the same texts and no parameters, so this row stands for it, too.
    """
    documents = [_long_words(f"{name} {text}") for name, text in _texts(servers)]
    return _bm25(documents, [_long_words(request) for request in requests], k)


def tool_search_regex(requests: Sequence[str], servers: pd.DataFrame, k: int) -> Rows:
    """Claude's tool search by regular expression: `re.search` over one text (Claude's documentation, "Tool search
    tool", type tool_search_tool_regex_20251119; FastMCP's `RegexSearchTransform` does the same).

    Assumed: the model, which writes the pattern, asks for any of the request's words but function words, whatever the
    case; texts in which more of them are found come first, since no order is documented.
    """
    texts = [f"{name} {text}" for name, text in _texts(servers)]
    patterns = [[re.compile(re.escape(word), re.I) for word in _content_words(request)] for request in requests]
    return [
        _best([sum(bool(word.search(text)) for word in expressions) for text in texts], k) for expressions in patterns
    ]


def toolhive(requests: Sequence[str], servers: pd.DataFrame, k: int) -> Rows:
    """`find_tool` of ToolHive's optimizer: half of the places by cosine of sentence vectors, then half by SQLite's FTS5
    with stemming, without repeats (stacklok/toolhive, pkg/vmcp/optimizer/internal/toolstore at 01cc3da).

    Assumed: all-MiniLM-L6-v2 encodes; the product leaves the choice of the encoder to its user.
    """
    texts = _texts(servers)
    vectors = encode([f"name: {name} description: {text}" for name, text in texts])
    near = cosines(encode(requests), vectors)
    half = round(k * SEMANTIC)
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE VIRTUAL TABLE servers USING fts5(name, description, tokenize='porter')")
        rows = [(row, *text) for row, text in enumerate(texts)]
        database.executemany("INSERT INTO servers(rowid, name, description) VALUES (?, ?, ?)", rows)
        query = "SELECT rowid FROM servers WHERE servers MATCH ? ORDER BY rank LIMIT ?"
        worded = [
            [row for (row,) in database.execute(query, (expression(request), k - half))] if request.strip() else []
            for request in requests
        ]
    # A cosine below 0 is too far.
    return [list(dict.fromkeys([*_best(cosine, half), *other])) for cosine, other in zip(near, worded, strict=True)]


def expression(request: str) -> str:
    """What ToolHive asks FTS5: any of the words, or all as one phrase if there is one word or one of `PHRASE`."""
    words = request.replace('"', '""').split()
    if len(words) == 1 or PHRASE & {word.lower() for word in words}:
        return f'"{" ".join(words)}"'
    return " OR ".join(f'"{word}"' for word in words)


def registry(requests: Sequence[str], servers: pd.DataFrame, k: int) -> Rows:
    """`search` of the official registry's GET /v0.1/servers: a substring of the server's name, whatever the case
    (modelcontextprotocol/registry, docs/reference/api/official-registry-api.md).

    Assumed: the name is our id, and its user searches for each word but function words; names with more of them come
    first. The request as it is stands in no name.
    """
    names = servers["id"].str.lower().tolist()
    counts = ([sum(word in name for word in _content_words(request)) for name in names] for request in requests)
    return [_best(count, k) for count in counts]


METHODS: Mapping[str, Method] = {
    method.__name__: method for method in (docker, tool_search_bm25, tool_search_regex, toolhive, registry)
}


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def _long_words(text: str) -> list[str]:
    return [word for word in _words(text) if len(word) > 1]


def _content_words(request: str) -> list[str]:
    return [word for word in dict.fromkeys(_long_words(request)) if word not in ENGLISH_STOP_WORDS]


def _tools(server: Mapping[Any, Any]) -> list[tuple[str, str]]:
    return [(tool["name"], tool["description"]) for tool in json.loads(server["tools"])]


def _texts(servers: pd.DataFrame) -> list[tuple[str, str]]:
    """Name, and description with names and descriptions of tools, of each server."""
    return [
        (server["name"], " ".join([server["description"], *(part for tool in _tools(server) for part in tool)]))
        for server in servers.to_dict("records")
    ]


def _bm25(documents: list[list[str]], requests: list[list[str]], k: int) -> Rows:
    vocabulary = {word for document in documents for word in document}
    index = bm25s.BM25(k1=K1, b=B, method="lucene", backend="numpy")
    index.index(documents, show_progress=False)
    words = [[word for word in request if word in vocabulary] for request in requests]
    return [_best(index.get_scores(query), k) if query else [] for query in words]


def _best(scores: Sequence[float] | np.ndarray, k: int) -> list[int]:
    """Rows of the k highest scores above 0, best first."""
    values = np.asarray(scores, dtype=np.float64)
    order = np.argsort(-values, kind="stable")[:k]
    return [int(row) for row in order if values[row] > 0]
