"""`FieldDense` against its formula, with an encoder whose vectors are known."""

import numpy as np
import pandas as pd
import pytest

from study.analysis.usefulness import choosing
from study.analysis.usefulness.parts import conf
from study.config.compose import build_system, choices, load
from study.config.reader import read_settings
from study.errors import StudyError
from study.judging.store import pool_settings
from study.usefulness import field_dense
from study.usefulness.field_dense import FieldDense, standardised

EMPTY = dict.fromkeys(("language", "category", "subcategory", "theme", "system", "tools"), "")
WRONG = [({"parts": []}, "no part"), ({"parts": [{"view": "all", "field": "price"}]}, "no field 'price'")]
WRONG += [({"parts": [{"view": "all", "fields": "all"}]}, "a part holds")]
WRONG += [({"priors": {"beauty": 1.0}}, "no prior 'beauty'")]


def table(names, descriptions):
    return pd.DataFrame({"name": names, "description": descriptions, "id": range(len(names))}).assign(**EMPTY)


def fake_encode(texts, *, model="minilm", store=True):
    """Letter counts, normalised."""
    counts = np.array([[1 + text.count(letter) for letter in "abc"] for text in texts], dtype=np.float32)
    return counts / np.linalg.norm(counts, axis=1, keepdims=True)


@pytest.fixture(autouse=True)
def known_vectors(monkeypatch):
    monkeypatch.setattr(field_dense, "encode", fake_encode)


SERVERS = table(["aa", "bb", "cc", "demo of c"], ["aaa", "bab", "ccb", "abc"])
REQUESTS = table(["b", "c"], ["abb", "cca"])


def test_scores_are_the_weighted_sum_of_standardised_cosines():
    parts = [{"view": "description", "field": "description"}, {"view": "name", "field": "name", "weight": 0.5}]
    system = indexed(SERVERS, parts=parts)
    cosines = [fake_encode(REQUESTS[c]) @ fake_encode(SERVERS[c]).T for c in ("description", "name")]
    expected = standardised(standardised(cosines[0]) + 0.5 * standardised(cosines[1]))
    np.testing.assert_allclose(system.score_requests(REQUESTS), expected, rtol=1e-5)
    found = standardised(np.array([[1.0, 2, 3], [5, 5, 5]], dtype=np.float32))
    np.testing.assert_allclose(found[0], [-1.2247449, 0, 1.2247449], rtol=1e-6)
    assert found[1].tolist() == [0, 0, 0]


def indexed(servers, **settings):
    system = FieldDense(**settings)
    system.index(servers)
    return system


def test_priors_and_products_are_added_in_standard_deviations():
    plain, other = indexed(SERVERS), indexed(SERVERS, priors={"template": -2.0})
    difference = other.score_requests(REQUESTS) - plain.score_requests(REQUESTS)
    np.testing.assert_allclose(difference, [[0, 0, 0, -2]] * 2, atol=1e-5)


def test_a_named_product_comes_first():
    servers = table(["Slack", "other"], ["posts, as Slack does", "aaa"])
    request = table([""], ["aaa aaa and then to Slack"])
    plain, best = indexed(servers), indexed(servers, product_bonus=6.0)
    assert plain.score_requests(request).argmax() == 1
    assert best.score_requests(request).argmax() == 0


@pytest.mark.parametrize(("arguments", "message"), WRONG)
def test_wrong_settings_are_refused(arguments, message):
    with pytest.raises(StudyError, match=message):
        FieldDense(**arguments)


def test_every_committed_setting_builds_and_uses_the_validation_part_alone():
    for name in choices("system"):
        if name == "field_dense" or name.startswith("field_dense_"):
            assert isinstance(build_system(load([f"system={name}"]).system), FieldDense)
    chosen = read_settings(choosing.Choice, conf("choice"))
    assert chosen.part == "valid"
    assert pool_settings().candidates_part == "valid"
    found = choosing.variants(chosen.variants)
    assert len(found) == len(chosen.variants)
    assert found["field_dense"] == build_system(load(["system=field_dense"]).system)
    with pytest.raises(StudyError, match="sets"):
        choosing.variants({"a": {"colour": 1}})
