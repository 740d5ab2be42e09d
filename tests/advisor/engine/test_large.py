"""`field_dense` by an index: the answers of `field_dense` by a scan, a product's servers first, a stop and a change."""

import json

import numpy as np
import pandas as pd
import pytest
import yaml

from study.advisor.retrieval.field_dense import FieldDense
from study.advisor.saved import open_catalogue as catalogue
from study.advisor.saved.field_dense import SavedFieldDense
from study.advisor.saved.large import LargeFieldDense
from study.base import paths
from tests.advisor.engine.test_catalogue import TEXTS, take

pytestmark = pytest.mark.usefixtures("private_cache", "conf_root")
THINGS = ["invoices", "maps", "weather", "tickets", "notes", "videos", "mail", "flights", "tables", "photos"]
VERBS = ["Reads", "Sends", "Finds", "Draws", "Sorts", "Counts", "Checks", "Plans", "Merges", "Prints"]
PARTS = [{"view": "description", "field": "all"}, {"view": "name", "field": "description", "weight": 0.4}]


@pytest.fixture
def servers():
    pairs = [(verb, thing) for verb in VERBS for thing in THINGS]
    names = [f"{thing} {'starter' if row % 7 == 0 else 'helper'}" for row, (_, thing) in enumerate(pairs)]
    texts = [f"{verb} {thing} of people who use Zotero" for verb, thing in pairs]
    names[42] = "Zotero MCP"
    table = pd.DataFrame({"name": names, "description": texts, "id": np.arange(100), "url": "https://example.org"})
    return table.assign(**dict.fromkeys(("language", "system", "tools", "category", "subcategory"), ""))


def settings_with(**values):
    file = paths.conf() / "encoders" / "nearest.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | values))


@pytest.fixture(params=["ivf_sq8", "ivf_pq", "exact"])
def pair(request, servers, tmp_path):
    """The same catalogue by index and by scan."""
    pytest.importorskip("faiss", reason="faiss is not installed (make setup FAISS=1)")
    if request.param != "exact":
        below = {"exact_below": 10, "scalar_below": 1000 if request.param == "ivf_sq8" else 20}
        settings_with(**below, most_lists=2, per_list=50, subquantisers=64, reduced=64)
    settings = {"parts": PARTS, "priors": {"template": -1.0}, "product_bonus": 6.0}
    large = LargeFieldDense.of("field_dense", FieldDense(**settings), servers, seed=0, folder=tmp_path / "large")
    assert large.index.about["kind"] == request.param
    system = FieldDense(**settings)
    system.index(servers)
    SavedFieldDense("field_dense", system, servers, seed=0).save(tmp_path / "small")
    return large, SavedFieldDense.load(tmp_path / "small")


@pytest.mark.parametrize("text", ["print my photos", "find flights", "add a paper to my Zotero library"])
def test_answers_are_those_of_a_scan(pair, text):
    large, small = pair
    ours, expected = large.recommend(text, k=10), small.recommend(text, k=100)
    scores = {item.server_id: item.score for item in expected}
    np.testing.assert_allclose([item.score for item in ours], [scores[item.server_id] for item in ours], atol=0.05)
    assert len({item.server_id for item in ours} & {item.server_id for item in expected[:10]}) >= 9
    assert [item.rank for item in ours] == list(range(1, 11))
    for item in ours:
        assert sum(item.parts.values()) == pytest.approx(item.score, abs=1e-4)
    assert large.closeness(text, 3)[0] == small.closeness(text, 3)[0]
    assert large.closeness(text, 3)[1] == pytest.approx(small.closeness(text, 3)[1], abs=0.01)
    assert large.warnings(text, language="Go") == small.warnings(text, language="Go")
    if "Zotero" in text:  # the server of a named product comes first
        first = large.recommend(text, k=2)[0]
        assert (first.server_id, first.parts["product"]) == (42, 6)


def test_the_open_catalogue_is_answered_by_an_index_once_it_is_large(call):
    pytest.importorskip("faiss", reason="faiss is not installed (make setup FAISS=1)")
    settings_with(exact_below=2, most_lists=1, candidates=8)
    take(TEXTS)
    code, out, err = call("recommend", "extract tables of PDF documents", "-k", "2", "--json")
    assert code == 0, err
    assert len(json.loads(out)["recommendations"]) == 2
    assert isinstance(catalogue.load()[0], LargeFieldDense)
