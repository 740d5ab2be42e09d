"""Vectors from an endpoint, by configuration and on the command line."""

import json

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from study import paths
from study.cli import tools as cli
from study.encoders import endpoint as embedding
from study.encoders.endpoint import EndpointEmbedder
from study.errors import StudyError
from study.llm import client as llm
from study.tools.catalogues.catalog import save
from study.tools.discovery.index import Settings, ToolIndex
from study.tools.mcp_zero.request import Request
from study.tools.mcp_zero.routing import Router


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"mode": "guess"}, "unknown mode"),
        ({}, "needs a cassette"),
        ({"base_url": "file:///etc", "mode": "off"}, "HTTP"),
    ],
)
def test_settings_are_checked(settings, reason):
    with pytest.raises(StudyError, match=reason):
        llm.Client(**({"base_url": "http://x"} | settings))


def test_vectors_from_an_endpoint(server, client, tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "cache", lambda: tmp_path)
    embedder = EndpointEmbedder(client, "e", 2)
    server.script = ["vectors"]
    for _ in range(2):  # the second time from disk
        np.testing.assert_allclose(embedder.encode(["a", "b"]), [[0.8, 0.6], [0, 1]], rtol=1e-6)
    assert [body for _, body, _ in server.seen] == [{"model": "e", "input": ["a", "b"]}]


@pytest.mark.parametrize("fault", ["short_vectors", "zero_vectors", "odd"])
def test_bad_vectors(server, client, fault):
    server.script = [fault]
    with pytest.raises(StudyError, match=r"vectors of shape|not an embeddings reply"):
        EndpointEmbedder(client, "e", 2).encode(["a", "b"], store=False)


def configure(project, **embedder):
    """The committed configuration with another embedder."""
    read = yaml.safe_load((project / "conf/tools/discovery.yaml").read_text())
    (project / "conf").unlink()
    (project / "conf/tools").mkdir(parents=True)
    text = yaml.safe_dump(read | {"embedder": embedder})
    (project / "conf/tools/discovery.yaml").write_text(text)


def test_an_endpoint_by_configuration(server, project, catalog):
    configure(
        project,
        kind="endpoint",
        base_url=f"http://127.0.0.1:{server.server_port}/v1",
        model="e",
        dimension=2,
        retries=0,
    )
    server.script = ["own_vectors"] * 20
    index = ToolIndex(catalog, Settings(document="name_desc"))
    assert len(index.search("send a mail", 2)[0]) == 2
    assert Router(catalog).scores([Request("mail", "send")]).shape == (1, 5)
    save(cli.place("toy"), catalog)
    done = CliRunner().invoke(cli.app, ["find", "x", "--catalogue", "toy"], catch_exceptions=False)
    assert done.output
    assert {path for path, *_ in server.seen} == {"/v1/embeddings"}
    assert {body["model"] for _, body, _ in server.seen} == {"e"}
    server.script = ["html"]
    with pytest.raises(StudyError, match="1 attempts"):
        index.search("something else", 2)


@pytest.mark.parametrize(
    ("embedder", "reason"),
    [
        ({"kind": "magic"}, "unknown embedder"),
        ({"kind": "endpoint", "base_url": "http://x", "model": "m"}, "without base_url, model or dimension"),
        ({"kind": "minilm", "modle": "m"}, "modle"),
    ],
)
def test_the_configured_embedder_is_checked(project, embedder, reason):
    configure(project, **embedder)
    with pytest.raises(StudyError, match=reason):
        embedding.configured()


def test_a_model_asks_for_tools_on_the_command_line(server, project, catalog, embedder, monkeypatch):
    monkeypatch.setattr(embedding.MiniLm, "encode", lambda self, texts, store=True: embedder.encode(texts))
    save(cli.place("toy"), catalog)
    url, cassette = f"http://127.0.0.1:{server.server_port}/v1", str(project / "c.jsonl")

    def run(*words):
        fixed = ["request", "read it", "--url", url, "--model", "m", "--catalogue", "toy", "-k", "1", "--json"]
        return CliRunner().invoke(cli.app, [*fixed, *words], catch_exceptions=False)

    server.script = ["block"]
    recorded = run("--cassette", cassette, "--mode", "record")
    assert [(found["server"]["name"], found["tool"]["name"]) for found in json.loads(recorded.stdout)] == [
        ("Files", "read_file")
    ]
    assert "1 requests, 0 malformed" in recorded.stderr
    assert recorded.stderr.rstrip().endswith("hello")
    asked = len(server.seen)
    assert run("--cassette", cassette).stdout == recorded.stdout
    assert len(server.seen) == asked == 2
    server.script = ["block"]
    assert run("--mode", "off").stdout == recorded.stdout
    with pytest.raises(StudyError, match="needs a cassette"):
        run()
    with pytest.raises(StudyError, match="unknown mode"):
        run("--mode", "guess")
