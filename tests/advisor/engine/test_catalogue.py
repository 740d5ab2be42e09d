"""The ranking over the open catalogue: who answers, what is encoded again, and what leaves it."""

import json

import numpy as np
import pytest

from study.advisor.catalog import checks, store
from study.advisor.retrieval import field_dense
from study.advisor.saved import open_catalogue as catalogue
from study.base.errors import StudyError
from tests.advisor.catalog.sources import record
from tests.advisor.catalog.sources import take as store_records

pytestmark = pytest.mark.usefixtures("private_cache")
TEXTS = {
    "pdf": "Reads PDF documents and extracts their tables",
    "mail": "Sends electronic mail",
    "maps": "Finds places and routes on a map",
}


@pytest.fixture
def encoded(monkeypatch):
    """A stand-in for the encoder: words as hashed counts; remembers which texts it was given."""
    seen, stored = [], set()

    def encode(texts, *, model, store=True, device="cpu"):
        seen.extend(text for text in texts if text not in stored)
        if store:
            stored.update(texts)
        vectors = np.full((len(texts), 384), 1e-3, dtype=np.float32)
        for row, text in enumerate(texts):
            for word in text.lower().split():
                vectors[row, sum(word.encode()) % 384] += 1
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    monkeypatch.setattr(field_dense, "encode", encode)
    return seen


def take(texts, source="toolsdk", packages=None, **more):
    """Make servers of these texts a source's in the catalogue; `packages`: by key its package, and who vouches."""
    records = [
        record(source, key, f"github.com/o/{key}", *(packages or {}).get(key, ()), description=text, **more)
        for key, text in texts.items()
    ]
    store_records(records, source)


def test_a_request_is_answered_from_the_catalogue_once_it_is_there(conf_root, encoded, call):
    assert not catalogue.synced()
    with pytest.raises(StudyError, match="no catalogue yet"):
        catalogue.load()
    take(TEXTS)
    code, out, _ = call("recommend", "extract tables of PDF documents", "-k", "2", "--json")
    answer = json.loads(out)
    assert (code, answer["dataset"]) == (0, "catalogue open")
    assert answer["recommendations"][0]["server_id"] == "o/pdf"
    assert call("recommend", "extract tables of PDF documents", "--explain")[0] == 0
    out = call("recommend", "send electronic mail", "-k", "1")[1]
    assert "(o/mail)" in out.splitlines()[1]
    assert "INVENTED" not in out
    assert "study install" in out


def test_an_answer_says_which_packages_are_there(conf_root, encoded, call, monkeypatch):
    take(TEXTS, packages={key: (key, key != "maps") for key in TEXTS})
    answers = {"pdf": checks.Check("2026-01-02", found=False), "mail": checks.Check("2026-01-02", version="2.0.0")}

    def ask(kind, identifier):
        if identifier not in answers:
            raise StudyError(f"{kind} is silent on {identifier}", fix="x")
        return answers[identifier]

    monkeypatch.setattr(checks, "ask", ask)
    words = ["recommend", "extract tables of PDF documents", "-k", "3", "--json"]
    code, out, err = call(*words, "--check")
    assert (code, "npm is silent on maps" in err) == (0, True)
    for output in (out, call(*words)[1]):  # what was found out stays
        rows = {row["server_id"]: row for row in json.loads(output)["recommendations"]}
        assert rows["o/pdf"]["facts"]["start"] == rows["o/maps"]["facts"]["start"] == ""
        assert rows["o/mail"]["facts"]["start"] == "npx -y mail@1.0.0"
        assert rows["o/pdf"]["trust"]["checks"]["npm:pdf"]["found"] is False
    assert "NOT ON NPM (2026-01-02)" in call("recommend", "extract tables of PDF documents", "-k", "1")[1]
    assert "npm has 2.0.0 (2026-01-02)" in call("catalog", "show", "o/mail", "--check")[1]
    for option in ("--check", "--verified"):
        assert call("recommend", "x", option, "--dataset", "synthetic")[0] == 2
    # What nobody vouches for is left out.
    (row,) = json.loads(call("recommend", TEXTS["maps"], "-k", "2", "--verified", "--json")[1])["recommendations"]
    assert (row["server_id"], row["trust"]["vouched"]) == ("o/mail", ["toolsdk"])
    # A missing package starts nothing, so the next verified server answers.
    only = [*words[:2], "-k", "1", "--verified", "--json"]
    (row,) = json.loads(call(*only)[1])["recommendations"]
    assert row["server_id"] == "o/mail"
    (conf_root / "data" / "catalog" / "checks.json").unlink()
    assert json.loads(call(*only)[1])["recommendations"][0]["server_id"] == "o/pdf"
    assert json.loads(call(*only, "--check")[1])["recommendations"][0]["server_id"] == "o/mail"


def test_only_changed_texts_are_encoded_again(conf_root, encoded):
    take(TEXTS)
    catalogue.load()
    assert len(encoded) == 6  # two fields of three servers
    encoded.clear()
    catalogue.load()
    assert encoded == []
    take(TEXTS | {"mail": "Sends letters"})
    model, servers = catalogue.load()
    assert len(encoded) == 2
    assert all("Sends letters" in text for text in encoded)
    assert len(servers) == len(model.servers) == 3
    # A damaged ranking, and one of an earlier version, which wrote no manifest, are made again.
    (file,) = store.required().glob("field_dense*/model.json")
    file.write_text("{")
    assert len(catalogue.load()[1]) == 3
    assert file.read_text() != "{"
    (manifest := file.with_name("files.json")).unlink()
    assert len(catalogue.load()[1]) == 3
    assert manifest.exists()
    # What is gone is not recommended.
    take({key: text for key, text in TEXTS.items() if key != "pdf"})
    model, servers = catalogue.load()
    items = model.recommend("extract tables of PDF documents", k=2)
    assert {servers.at[item.server_id, "id"] for item in items} == {"o/mail", "o/maps"}


def test_own_servers_are_a_catalogue_and_several_make_one_ranking(conf_root, encoded, call):
    take(TEXTS)
    with pytest.raises(StudyError, match="has no server"):
        catalogue.load("mine")
    take({"own": "My own server"}, source="mine")
    assert list(catalogue.load("mine")[1]["id"]) == ["mine:own"]
    assert len(catalogue.load("open")[1]) == 4
    assert call("recommend", "x", "--catalog", "else")[0] == 2
    assert call("recommend", "x", "--catalog", "open", "--system", "t2mrec")[0] == 2
    code, out, _ = call("recommend", "My own server", "--catalog", "open", "--catalog", "mine", "-k", "4", "--json")
    answer = json.loads(out)
    assert (code, answer["dataset"]) == (0, "catalogue open and mine")
    assert sorted(row["server_id"] for row in answer["recommendations"]) == ["mine:own", "o/mail", "o/maps", "o/pdf"]
    # Task2MCP can join where it is prepared.
    code, _, err = call("recommend", "x", "--catalog", "open", "--catalog", "task2mcp")
    assert (code, "study prepare dataset=task2mcp" in err) == (2, True)


def test_new_texts_of_known_names_are_not_answered_from_old_ones(conf_root, encoded, monkeypatch):
    take(TEXTS)

    def best():
        model, servers = catalogue.load()
        (item,) = model.recommend(TEXTS["maps"], k=1)
        return servers.at[item.server_id, "id"]

    living = catalogue.living
    assert best() == "o/maps"

    def turned(version, names):
        table = living(version, names)
        return table.assign(description=np.roll(table["description"].to_numpy(), 1))

    monkeypatch.setattr(catalogue, "living", turned)
    assert best() != "o/maps"
