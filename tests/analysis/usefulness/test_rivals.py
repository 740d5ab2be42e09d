"""The search methods of products, by cases whose answer is known."""

import json

import numpy as np
import pandas as pd

from study.analysis.usefulness import rivals as products


def shelf(*rows):
    """Servers from (id, name, description, {tool: description})."""
    table = pd.DataFrame([row[:3] for row in rows], columns=["id", "name", "description"])
    tools = [dict(*row[3:]) for row in rows]
    return table.assign(tools=[json.dumps([{"name": n, "description": d} for n, d in own.items()]) for own in tools])


def asked(method, servers, *requests, k=10):
    return [[servers["id"][row] for row in rows] for rows in method(requests, servers, k)]


def test_docker_counts_a_word_by_its_field():
    # Every text has 4 + 3 + 1 + 2 + 1 words, so the count of the word alone decides.
    servers = shelf(
        ("o/a", "b", "slack", {"c": "d"}),
        ("o/e", "f", "g", {"slack": "h"}),
        ("slack/i", "j", "k", {"l": "m"}),  # the owner is no part of the name
        ("o/n", "Slack", "p", {"q": "r"}),
        ("o/slack", "s", "t", {"u": "v"}),
        ("o/w", "x", "y", {"z": "slack"}),
    )
    assert asked(products.docker, servers, "SLACK") == [["o/slack", "o/n", "o/e", "o/a", "o/w"]]
    assert asked(products.docker, servers, "slack", k=2) == [["o/slack", "o/n"]]
    assert asked(products.docker, servers, "teams", "?!") == [[], []]


def test_a_word_that_the_request_repeats_counts_in_one_bm25_and_not_in_the_other():
    servers = shelf(("o/a", "x1", "pdf"), ("o/b", "x2", "mail"), ("o/c", "x3", "none"))
    assert asked(products.docker, servers, "mail mail pdf") == [["o/a", "o/b"]]
    assert asked(products.tool_search_bm25, servers, "mail mail pdf") == [["o/b", "o/a"]]


def test_tool_search_reads_tools_but_not_single_letters_and_a_pattern_finds_parts_of_words():
    servers = shelf(("o/a", "c", "letters c c c"), ("o/b", "mail", "m", {"send_mail": "Sends it through c to Gmail"}))
    for method in (products.tool_search_bm25, products.tool_search_regex):
        assert asked(method, servers, "c", "gmail") == [[], ["o/b"]]
    servers = shelf(("o/a", "Podcasts", ""), ("o/b", "Pods", "of a Kubernetes cluster"), ("o/c", "Of the", "from"))
    assert asked(products.tool_search_regex, servers, "the pod of a cluster", "from the") == [["o/b", "o/a"], []]
    assert asked(products.tool_search_bm25, servers, "pod") == [[]]


def test_toolhive_fills_half_by_meaning_and_half_by_words(monkeypatch):
    near = {"one": 0.9, "two": 0.8, "three": 0.7, "four": 0.0, "five": -0.5}
    place = {f"name: {name}": cosine for name, cosine in near.items()} | {"post it": 1.0}

    def encode(texts):
        cosines = np.array([place[text.partition(" description")[0]] for text in texts], dtype=np.float32)
        return np.stack([cosines, np.sqrt(1 - cosines**2)], axis=1)

    monkeypatch.setattr(products, "encode", encode)
    # By words: four, which has the stem more often, then two; five has none of them.
    rows = [("one", ""), ("two", "a post box"), ("three", ""), ("four", "posting posts posted"), ("five", "mail")]
    servers = shelf(*((f"o/{name}", name, text) for name, text in rows))
    assert asked(products.toolhive, servers, "post it", k=2) == [["o/one", "o/four"]]
    # The half by words is cut before repeats are left out.
    assert asked(products.toolhive, servers, "post it", k=4) == [["o/one", "o/two", "o/four"]]
    # Five places by meaning, but a cosine of 0 or less is no hit.
    assert asked(products.toolhive, servers, "post it") == [["o/one", "o/two", "o/three", "o/four"]]


def test_toolhive_asks_for_a_phrase_where_a_word_is_too_common():
    assert products.expression("send mail") == '"send" OR "mail"'
    assert products.expression("send Text") == '"send Text"'
    assert products.expression('say "hi"') == '"say" OR """hi"""'
    assert products.expression("mail") == '"mail"'


def test_the_registry_finds_substrings_of_names_alone():
    servers = shelf(("o/myslackbot", "x", ""), ("o/x", "slack", "slack"), ("slack/channel", "x", ""))
    found = asked(products.registry, servers, "post to a Slack channel", "to a")
    assert found == [["slack/channel", "o/myslackbot"], []]
