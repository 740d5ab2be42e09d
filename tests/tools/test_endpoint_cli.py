"""An endpoint for vectors and for a model that asks for tools, on the command line."""

import json

import pytest
import yaml
from typer.testing import CliRunner

from study.cli import tools as cli
from study.encoders import endpoint as embedding
from study.errors import StudyError
from study.tools.catalogues.catalog import save_catalog
from study.tools.discovery.index import Settings, ToolIndex
from study.tools.mcp_zero.routing import Request, Router


def configure(project, **embedder):
    """The committed configuration with another embedder."""
    path = project / "conf/tools/embedder.yaml"
    committed = yaml.safe_load(path.read_text())
    (project / "conf").unlink()
    path.parent.mkdir(parents=True)
    path.write_text(yaml.safe_dump(committed | embedder))


def test_an_endpoint_by_configuration(server, project, catalog):
    url = f"http://127.0.0.1:{server.server_port}/v1"
    configure(project, kind="endpoint", base_url=url, model="e", dimension=2, retries=0)
    server.script = ["own_vectors"] * 20
    index = ToolIndex(catalog, Settings(document="name_desc"))
    assert len(index.search("send a mail", 2)[0]) == 2
    assert Router(catalog).scores([Request("mail", "send")]).shape == (1, 5)
    save_catalog(cli.catalogue_file("toy"), catalog)
    done = CliRunner().invoke(cli.app, ["find", "x", "--catalogue", "toy"], catch_exceptions=False)
    assert done.output
    assert {path for path, *_ in server.seen} == {"/v1/embeddings"}
    assert {body["model"] for _, body, _ in server.seen} == {"e"}
    server.script = ["html"]
    with pytest.raises(StudyError, match="1 attempts"):
        index.search("something else", 2)


def test_a_model_asks_for_tools_on_the_command_line(server, project, catalog, embedder, monkeypatch):
    monkeypatch.setattr(embedding.MiniLm, "encode", lambda self, texts, store=True: embedder.encode(texts))
    save_catalog(cli.catalogue_file("toy"), catalog)
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
