"""`field_dense` as one product of vectors gives the scores of `field_dense`."""

import numpy as np
import pandas as pd
import pytest

from study.advisor.encoders.sentence import encode
from study.advisor.retrieval.field_dense import FieldDense
from study.advisor.retrieval.fields import VIEWS, texts
from study.advisor.retrieval.one_product import Moments, server_vectors

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
    found = FieldDense(parts=PARTS, priors={"template": -1.0, "stars": 0.2})
    found.index(servers.assign(stars_count=[1, 50, 3, 900, 0, 7]))
    return found


def test_scores_are_those_of_the_system(system):
    tasks = pd.DataFrame({"name": ["ask a database", "chat"], "description": ["SQL for Gaming", "post to Slack"]})
    tasks = tasks.assign(theme=["Gaming", ""], language="", category="", subcategory="")
    views = {name: encode(texts(tasks, VIEWS, name), store=False) for name in ("description", "name", "object")}
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
    found = questions.scores(questions.vectors @ vectors.T)[0]
    np.testing.assert_allclose(found - found.mean(), system.prior - system.prior.mean(), atol=1e-4)
