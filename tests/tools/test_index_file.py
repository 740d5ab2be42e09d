"""The index file of a catalogue: what it holds, what is embedded again, filters, damage."""

import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from study.advisor.retrieval.documents import ToolCatalog
from study.advisor.retrieval.index import Settings, ToolIndex
from study.advisor.retrieval.texts import documents
from study.advisor.retrieval.vectors import FORMAT, IndexFile, index_file, kept_index, matching
from study.errors import StudyError


@pytest.fixture
def opened(tmp_path, embedder):
    """The index file, read anew."""
    return lambda identity="one": IndexFile(tmp_path / "toy.safetensors", embedder, identity)


def test_vectors_of_every_form_stand_in_one_file_by_id(opened, catalog, embedder, tmp_path):
    first = opened()
    wanted = {form: ToolIndex(catalog, Settings(document=form), first).vectors for form in ("template", "desc")}
    first.save(catalog)
    with safe_open(tmp_path / "toy.safetensors", framework="np") as stored:
        assert set(stored.keys()) == {"template", "desc", "template.sha256", "desc.sha256"}
        assert json.loads(stored.metadata()["about"])["tools"][1] == "fs/write_file"
        for form, vectors in wanted.items():
            np.testing.assert_array_equal(stored.get_tensor(form), vectors)
            np.testing.assert_array_equal(vectors, embedder.encode(documents(catalog, form)))
    embedder.asked.clear()
    again = opened()
    np.testing.assert_array_equal(again.encode(documents(catalog, "desc")), wanted["desc"])
    assert not embedder.asked
    assert opened("another model").kept == {}


def test_only_what_changed_is_embedded_and_what_is_gone_leaves(opened, catalog, embedder, tmp_path):
    first = opened()
    first.encode(documents(catalog, "name_desc"))
    first.save(catalog)
    # One tool is gone, one changed, one is new, and the order is another.
    tools = (catalog.tools[4], replace(catalog.tools[0], description="read it"), *catalog.tools[2:4])
    after = ToolCatalog("toy", catalog.servers, (*tools, replace(catalog.tools[2], name="receive")))
    embedder.asked.clear()
    second = opened()
    found = second.encode(documents(after, "name_desc"))
    assert embedder.asked == ["read_file: read it", "receive: send a mail"]
    assert second.new == 2
    second.save(after)
    with safe_open(tmp_path / "toy.safetensors", framework="np") as stored:
        np.testing.assert_array_equal(stored.get_tensor("name_desc"), found)
        np.testing.assert_array_equal(found, embedder.encode(documents(after, "name_desc")))
    assert len(opened().kept) == 5


def test_the_same_catalogue_gives_the_same_bytes(opened, catalog, tmp_path):
    written = set()
    for _ in range(8):
        index = opened()
        index.encode(documents(catalog, "desc"))
        index.save(catalog)
        written.add((tmp_path / "toy.safetensors").read_bytes())
        (tmp_path / "toy.safetensors").unlink()
    assert len(written) == 1


@pytest.mark.parametrize("fault", ["cut", "text", "shape"])
def test_a_damaged_file_is_said_and_made_again(opened, catalog, tmp_path, caplog, fault):
    first, path = opened(), tmp_path / "toy.safetensors"
    first.encode(documents(catalog, "desc"))
    first.save(catalog)
    path.write_bytes({"cut": path.read_bytes()[:-9], "text": b"no tensors", "shape": b""}[fault])
    if fault == "shape":
        tensors = {"desc": np.zeros((5, 8), dtype=np.float32), "desc.sha256": np.zeros((4, 32), dtype=np.uint8)}
        save_file(tensors, path, metadata={"about": json.dumps({"format": FORMAT, "embedder": "one"})})
    assert opened().kept == {}
    assert "toy.safetensors is damaged" in caplog.text
    opened().save(catalog)


def test_a_question_is_not_kept_and_a_new_form_is(project, toy, catalog, embedder):
    file = toy.with_name("toy.json")
    with kept_index(file, catalog) as index:
        ToolIndex(catalog, Settings(document="desc"), index).search("read a file")
    embedder.asked.clear()
    with kept_index(file, catalog) as index:
        ToolIndex(catalog, Settings(document="desc"), index).search("read a file")
        assert index.new == 0
    assert embedder.asked == ["read a file"]
    assert "read a file" not in {key.hex() for key in index_file(file).kept}


def test_filters_by_server_and_tag(catalog):
    marked = (replace(catalog.servers[0], tags=("Office",)), replace(catalog.servers[1], sources=("hub",)))
    own = ToolCatalog("toy", (*marked, catalog.servers[2]), catalog.tools)
    assert matching(own, [], []) is None
    rows = {
        ("MAIL*", ""): [2, 3],  # an alias, a name, or an id
        ("geo", ""): [4],
        ("", "office"): [0, 1],
        ("*", "HUB"): [2, 3],
    }
    for (server, tag), expected in rows.items():
        found = matching(own, [server] if server else [], [tag] if tag else [])
        assert np.flatnonzero(found).tolist() == expected
    with pytest.raises(StudyError, match="geo"):
        matching(own, ["geo"], ["hub"])


def test_only_the_chosen_servers_are_searched(toy, run):
    words = ["find", "write a file", "--catalogue", "toy", "--json", "--server", "mail"]
    for mode in ("dense", "bm25", "routed"):
        assert {one["server"]["id"] for one in json.loads(run(*words, "--method", mode).output)} == {"mail"}
