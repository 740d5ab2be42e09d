"""`FieldDense` against its formula, as one product of vectors, and the texts, names and schemas that are read."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.advisor.encoders.sentence import encode
from study.advisor.retrieval import field_dense, two_encoders
from study.advisor.retrieval import fields as texts
from study.advisor.retrieval.documents import resolve
from study.advisor.retrieval.field_dense import FieldDense, standardised
from study.advisor.retrieval.names import ProductNames, Spelling, key
from study.advisor.retrieval.two_encoders import TwoEncoders
from study.advisor.saved.large import Moments, server_vectors
from study.analysis.framework import load_settings
from study.analysis.usefulness import choosing
from study.base.errors import StudyError
from study.config.compose import build_system, load
from study.judging.store import pool_settings

pytestmark = pytest.mark.usefixtures("private_cache")

EMPTY = dict.fromkeys(("language", "category", "subcategory", "theme", "system", "tools"), "")
PRICE = {"view": "all", "field": "price"}
WRONG = [({"parts": []}, "no part"), ({"parts": [PRICE]}, "unknown field 'price'")]
WRONG += [({"parts": [{"view": "all", "fields": "all"}]}, "unknown key 'fields'")]
WRONG += [({"priors": {"beauty": 1.0}}, "unknown prior 'beauty'")]


def table(names, descriptions):
    return pd.DataFrame({"name": names, "description": descriptions, "id": range(len(names))}).assign(**EMPTY)


def fake_encode(texts, *, model="minilm", store=True):
    """Letter counts, normalised."""
    counts = np.array([[1 + text.count(letter) for letter in "abc"] for text in texts], dtype=np.float32)
    return counts / np.linalg.norm(counts, axis=1, keepdims=True)


@pytest.fixture(autouse=True)
def known_vectors(request, monkeypatch):
    """Letter counts in the place of the encoder, where a test does not take the system of real vectors."""
    if "system" not in request.fixturenames:
        monkeypatch.setattr(field_dense, "encode", fake_encode)


SERVERS = table(["aa", "bb", "cc", "demo of c"], ["aaa", "bab", "ccb", "abc"])
REQUESTS = table(["b", "c"], ["abb", "cca"])


def test_scores_are_the_weighted_sum_of_standardised_cosines():
    parts = [{"view": "description", "field": "description"}, {"view": "name", "field": "name", "weight": 0.5}]
    system = indexed(SERVERS, parts=parts)
    cosines = [fake_encode(REQUESTS[c]) @ fake_encode(SERVERS[c]).T for c in ("description", "name")]
    expected = standardised(standardised(cosines[0]) + 0.5 * standardised(cosines[1]))
    np.testing.assert_allclose(system.score_requests(REQUESTS), expected, rtol=1e-5)
    values = standardised(np.array([[1.0, 2, 3], [5, 5, 5]], dtype=np.float32))
    np.testing.assert_allclose(values[0], [-1.2247449, 0, 1.2247449], rtol=1e-6)
    assert values[1].tolist() == [0, 0, 0]


def test_terms_of_a_second_encoder_are_added_each_text_read_once(monkeypatch):
    read = []

    def large(texts, *, store=True):
        read.append(list(texts))
        return fake_encode([text.replace("b", "c") for text in texts])

    monkeypatch.setattr(two_encoders.mpnet, "encode", large)
    part = {"view": "description", "field": "description"}
    one = {"view": "object", "field": "name", "weight": 0.5}
    system = indexed(SERVERS, TwoEncoders, parts=[part], large=[part, one])
    read.clear()
    scores = system.score_requests(REQUESTS)
    assert read == [["abb", "cca"]]  # both views of these tasks are their description
    own = fake_encode(REQUESTS["description"]) @ fake_encode(SERVERS["description"]).T
    fields = (["aaa", "cac", "ccc", "acc"], ["aa", "cc", "cc", "demo of c"])
    other, names = (fake_encode(["acc", "cca"]) @ fake_encode(texts).T for texts in fields)
    expected = standardised(own) + standardised(other) + 0.5 * standardised(names)
    np.testing.assert_allclose(scores, standardised(expected), rtol=1e-4, atol=1e-6)
    with pytest.raises(StudyError, match="unknown field 'price'"):
        TwoEncoders(parts=[part], large=[PRICE])


def indexed(servers, kind=FieldDense, **settings):
    system = kind(**settings)
    system.index(servers)
    return system


@pytest.mark.parametrize(("arguments", "message"), WRONG)
def test_wrong_settings_are_refused(arguments, message):
    with pytest.raises(StudyError, match=message):
        FieldDense(**arguments)


def test_settings_are_chosen_on_the_validation_part_alone():
    chosen = load_settings(choosing.Choice)
    assert (chosen.part, pool_settings().candidates_part) == ("valid", "valid")
    committed = build_system(load(["system=field_dense"]).system)
    assert choosing.variants(chosen.variants)["field_dense"] == committed


READINGS = [
    (texts.first_clause, "Rank videos by novelty", "Rank videos"),
    (texts.first_clause, "Plan, then act", "Plan"),
    *((texts.first_clause, text, text) for text in ("with care", "")),
    (texts.capability, "A Model Context Protocol server that allows you to search packages", "search packages"),
    (texts.capability, "An MCP server for weather data", "weather data"),
    *((texts.capability, text, text) for text in ("MCP server", "Finds trains.")),
    (key, "mcp-server-wechat", ("wechat",)),
    (key, "GitHub MCP Server", ("github",)),
    *((key, text, ()) for text in ("MCP Server", "")),
    # The theme is taken out with what ties it.
    (partial(texts.without_theme, theme="Gaming"), "Detect leaks for Gaming, fast", "Detect leaks, fast"),
    *((partial(texts.without_theme, theme="Gaming"), text, text) for text in ("Gaming", "Gamingly slow")),
    (partial(texts.without_theme, theme="vr/ar"), "Read maps in VR/AR archives with care", "Read maps with care"),
    (partial(texts.without_theme, theme=""), "No theme here", "No theme here"),
    (partial(texts.without_theme, theme="a+b"), "Cost (C++) of a+b", "Cost (C++)"),
]


@pytest.mark.parametrize(("reading", "text", "expected"), READINGS)
def test_what_is_read_of_a_text(reading, text, expected):
    assert reading(text) == expected


@given(st.text(max_size=60), st.text(max_size=10))
def test_no_reading_of_a_text_is_emptied(text, theme):
    for reading in (texts.without_theme(text, theme), texts.first_clause(text), texts.capability(text)):
        assert any(map(str.isalnum, reading)) >= any(letter.isalnum() and letter.isascii() for letter in text)


DESCRIPTIONS = {
    "Slack MCP Server": "Posts to Slack. It reads Slack channels, as Slack users see them, in Slack or near Slack.",
    "Memory Server": "Keeps memory. It stores a memory of what was said, and the memory stays.",
    "Slack Search": "Searches Slack.",
    "Google Maps": "Routes by Google Maps.",
    "Google": "Asks Google.",
    "IoT Hub": "Connects IoT devices, and IoT only.",
}
NAMED = pd.DataFrame(DESCRIPTIONS.items(), columns=["name", "description"])


def test_names_of_products_are_told_from_words():
    names = ProductNames.of(NAMED)
    assert ("slack",) in names.bearers
    assert ("memory",) not in names.bearers
    assert names.mentioned("post it to slack") == {("slack",)}  # written as a name often enough to be sure
    assert names.mentioned("keep a Memory of it") == set()
    assert names.mentioned("route it with Google Maps please") == {("google", "maps")}
    assert names.mentioned("something for the IoT") == set()
    assert names.mentioned("Ask Google Things") == set()  # a title: capitals say nothing
    # A named product counts fully for its server and half for others.
    assert names.named(["post it to slack", "nothing"]).tolist() == [[1.0, 0, 0.5, 0, 0, 0], [0.0] * 6]


def test_spelling_ignores_the_first_word_of_a_sentence():
    spelling = Spelling.of(["Memory is cheap. Memory lasts", "a memory of Ada"])
    assert spelling.share("memory") == 0.0
    assert spelling.share("ada") == 1.0
    assert spelling.share("never-met") == 1.0
    assert not spelling.sure("ada")  # met too rarely


def test_priors_by_hand():
    servers = pd.DataFrame({"name": ["A template", "B"], "description": ["", "a thing"], "stars_count": ["9", None]})
    assert field_dense.template(servers).tolist() == [1.0, 0.0]
    assert field_dense.stars(servers).tolist() == pytest.approx([1.0, -1.0])
    assert field_dense.combined_priors(servers, {"template": -2.0}).tolist() == [-2.0, 0.0]
    assert field_dense.stars(servers.drop(columns="stars_count")).tolist() == [0.0, 0.0]


PARTS = [
    {"view": "description", "field": "all", "weight": 1.0},
    {"view": "name", "field": "all", "weight": 0.4},
    {"view": "object", "field": "description", "weight": -0.7},
]
WORDS = ["Slack starter", "Postgres query", "PDF tables", "weather", "browser demo", "file search"]


@pytest.fixture(scope="module")
def system(private_cache):
    blank = dict.fromkeys(("language", "system", "tools", "category", "subcategory", "url"), "")
    servers = pd.DataFrame({"name": WORDS, "description": [f"a server for {word}" for word in WORDS]}).assign(**blank)
    fitted = FieldDense(parts=PARTS, priors={"template": -1.0, "stars": 0.2})
    fitted.index(servers.assign(stars_count=[1, 50, 3, 900, 0, 7]))
    return fitted


def test_scores_are_those_of_the_system(system):
    tasks = pd.DataFrame({"name": ["ask a database", "chat"], "description": ["SQL for Gaming", "post to Slack"]})
    tasks = tasks.assign(theme=["Gaming", ""], language="", category="", subcategory="")
    named = {name: texts.texts(tasks, texts.VIEWS, name) for name in ("description", "name", "object")}
    views = {name: encode(of_tasks, store=False) for name, of_tasks in named.items()}
    vectors = server_vectors(system)
    questions = Moments.of(vectors).questions(system.terms, views)
    ours = questions.scores(questions.vectors @ vectors.T)
    np.testing.assert_allclose(ours, system.score_requests(tasks, store=False), atol=1e-4)
    assert np.ptp(ours) > 1


def test_a_request_that_tells_no_servers_apart_leaves_the_prior(system):
    vectors = server_vectors(system)
    vectors[:, :-1] = vectors[0, :-1]
    view = vectors[:1, :384]
    questions = Moments.of(vectors).questions(system.terms, dict.fromkeys(("description", "name", "object"), view))
    scores = questions.scores(questions.vectors @ vectors.T)[0]
    np.testing.assert_allclose(scores - scores.mean(), system.prior - system.prior.mean(), atol=1e-4)


DOCUMENT = {"$defs": {"a/b": [{"type": "string"}, {"$ref": "#/$defs/a~1b/0"}], "loop": {"$ref": "#/$defs/loop"}}}


# The first is behind the end.
NOWHERE = ["#/$defs/a~1b/2", "#/$defs/a~1b/x", "#/$defs/loop", "https://example.org/schema"]
FOUND = [*((f"#/$defs/a~1b/{at}", {"type": "string"}) for at in (0, 1)), *((pointer, None) for pointer in NOWHERE)]


@pytest.mark.parametrize(("pointer", "found"), FOUND)
def test_a_reference_leads_to_a_part_of_the_document_or_nowhere(pointer, found):
    assert resolve({"$ref": pointer}, DOCUMENT) == found
