"""Vectors from an endpoint, and the configured embedder."""

import numpy as np
import pytest
import yaml

from study.advisor.encoders import choose as embedding
from study.advisor.encoders.choose import EndpointEmbedder
from study.base import paths
from study.base.errors import StudyError

pytestmark = pytest.mark.usefixtures("private_cache")

WRONG = {"kind: magic": "unknown embedder", "modle: m": "modle", "timeout: long": r"column timeout\): 'long'"}
WRONG |= {"kind: endpoint\nbase_url: http://x\nmodel: m": "without base_url, model or dimension"}


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


@pytest.mark.parametrize(("text", "reason"), WRONG.items())
def test_the_configured_embedder_is_checked(conf_root, text, reason):
    file = conf_root / "conf/tools/embedder.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | yaml.safe_load(text)))
    with pytest.raises(StudyError, match=reason):
        embedding.configured_embedder()
