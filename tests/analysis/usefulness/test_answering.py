"""The tables of what stands around the ranking, on made-up closeness and a hand-computed prior."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from study.advisor.saved.contract import Recommendation
from study.advisor.saved.settings import Answering, Filtered
from study.analysis.usefulness import answering
from study.analysis.usefulness.answering import Requests, filtered_rows, fit_rows, prior_of
from study.judging.collection import Collection
from tests.analysis.toys import toy

SETTINGS = replace(Answering.read(), large=1, fit={"minilm": 0.5})
WORDS = "mail one two three four iron shirts"


class Stated:
    """A request is as close as the number that it ends in."""

    servers = pd.DataFrame({"name": [WORDS], "description": [""]})

    def closeness(self, text, nearest):
        return "minilm", {"one": 0.1, "two": 0.4, "three": 0.6, "four": 0.9}[text.split()[-1]]


def test_requests_are_told_apart_by_half():
    """The first half holds mail four, mail two and shirts one; the second mail three, iron four and gibberish."""
    requests = Requests(["mail four", "mail three", "mail two"], ["iron four", "shirts one", "zzgh wqpoz"])
    choice, test = fit_rows("toy", Stated(), requests, SETTINGS)
    assert (choice["n_served"], choice["n_unserved"]) == (2, 1)
    assert (choice["auc"], choice["served_answered"], choice["unserved_refused"]) == (1, 0.5, 1)
    # 0.6 is nearer than 0 (no known word) and farther than 0.9.
    assert (test["auc"], test["served_answered"], test["unserved_refused"]) == (0.5, 1, 0.5)
    # Requests written for one server stand between: mail one is in the second half, mail four in the first.
    choice, test = fit_rows("toy", Stated(), requests, SETTINGS, ["mail one", "mail four"])
    assert (choice["n_served"], choice["n_known"], choice["known_answered"]) == (3, 1, 1)
    assert (test["n_served"], test["n_known"], test["known_answered"]) == (2, 1, 0)


def test_useful_servers_are_told_from_others_by_half():
    """Of every ranking, the first two servers share the word mail; the third lacks it, the fourth scores too little."""

    class Ranking(Stated):
        servers = pd.DataFrame({"name": [WORDS] * 4, "description": [""] * 4})

        def recommend(self, text, *, k):
            rows = enumerate([("mail", 9.0), ("mail", 8.0), ("iron", 7.0), ("mail", 1.0)])
            return [Recommendation(row + 1, row, name, "", score, {}) for row, (name, score) in rows]

    settings = replace(SETTINGS, filtered=Filtered(best=2, share=1.0, letters=3, score=0.5))
    requests = Requests(["mail three", "mail four", "shirts one"], [])
    pairs = [(1, 0, 2), (1, 2, 1), (1, 3, 0), (2, 0, 0), (2, 1, 1), (2, 2, 0), (3, 0, 2)]
    judged = pd.DataFrame(pairs, columns=["task_id", "server_id", "final"])
    choice, test = filtered_rows(Ranking(), judged, requests, settings)
    # Request 3 fits nothing, so it is not asked.
    assert choice == {"part": "choice", "n_useful": 2, "n_useless": 1, "useful_kept": 0.5, "useless_left_out": 1}
    assert test == {"part": "test", "n_useful": 1, "n_useless": 2, "useful_kept": 1, "useless_left_out": 0.5}


def test_the_prior_by_hand_and_what_each_weight_of_it_does_to_the_order(monkeypatch):
    """The only useful server is second by its score, and first by enough of the prior; the third is out of the pool."""
    own = SETTINGS.prior
    data = toy([{"name": "valid"}, {"name": "test"}], [[0], [0]], 3)
    about = {"name": ["A (archived)", "B", "C"], "stars_count": [0, own.full, own.full]}
    data = replace(data, servers=data.servers.assign(**about, is_official=[False, True, True]))
    assert prior_of(data, SETTINGS).tolist() == pytest.approx([-own.aside, *[own.stars + own.official] * 2])

    class Scored:
        def index(self, servers):
            pass

        def score_requests(self, tasks):
            return np.tile(np.array([own.stars + own.official, 0, -1], np.float32), (len(tasks), 1))

    topics = pd.DataFrame({"task_id": [1, 2], "part": ["valid", "test"], "subcategory": "x"})
    judged = pd.DataFrame([(task, server, 2 * (server == 2)) for task in (1, 2) for server in (1, 2, 3)])
    judged = judged.set_axis(["task_id", "server_id", "final"], axis=1).assign(grade_1=0, grade_2=0)
    known = SimpleNamespace(known=lambda part: sp.csr_matrix(data.relevance.shape, dtype=np.float32))
    monkeypatch.setattr(answering, "load_split", lambda name: (data, known))
    monkeypatch.setattr(answering, "variants", lambda changed: {"field_dense": Scored()})
    monkeypatch.setattr(answering.Collection, "load", lambda name: Collection.of(topics, judged))
    settings = replace(SETTINGS, pool=2, prior=replace(own, weight=1.5, aside=0.0))
    table = answering.prior_table("toy", settings).set_index(["part", "weight"])["ndcg@10"]
    second = 1 / np.log2(3)
    assert table["test"].to_dict() == {0.0: pytest.approx(second), 1.5: 1.0}
    assert (table["valid"][lambda found: found == 1].index > 1).all()
    assert table["valid"][[0.0, 0.75, 1.5]].tolist() == pytest.approx([second, second, 1])
