"""Task -> servers -> tools -> budget: by hand on the small catalogue, and with the study's own systems."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from study.advisor.retrieval.index import Settings, within
from study.advisor.retrieval.route import server_texts
from study.base.errors import StudyError
from study.config.compose import choices
from study.data.dataset import Dataset, relevance_from_lists
from study.data.splits import Split
from study.tools import router
from study.tools.queries import QuerySet
from study.tools.router import Stage

pytestmark = pytest.mark.usefixtures("private_cache")
TOOLS = np.array([[0.1, 0.9, 0.8, 0.3, 0.7]], np.float32)


def test_only_tools_of_the_best_servers_and_equal_ones_in_the_given_order(catalog):
    servers, order = np.array([[0.2, 0.9, 0.5]], np.float32), np.arange(3)
    expected = {1: [2, 3, -1, -1, -1], 2: [2, 4, 3, -1, -1], None: [1, 2, 4, 3, 0]}
    for keep, ranked in expected.items():
        assert router.route(servers, TOOLS, catalog.server_of, keep, order).tolist() == [ranked]
    equal = np.zeros((1, 3), np.float32)
    for first in range(3):
        order = np.array([first, *(row for row in range(3) if row != first)])
        ranked = router.route(equal, TOOLS, catalog.server_of, 1, order)[0]
        assert {int(catalog.server_of[row]) for row in ranked if row >= 0} == {first}


@given(hnp.arrays(np.int64, st.integers(1, 8), elements=st.integers(1, 100)), st.integers(1, 300), st.integers(0, 200))
def test_a_budget_is_kept_and_never_loses_the_first_that_fits(sizes, budget, more):
    ranked = np.arange(len(sizes))[None]
    small, large = (within(ranked, sizes, limit)[0] for limit in (budget, budget + more))
    assert sizes[small].sum() <= budget
    assert sizes[large].sum() <= budget + more
    fitting = [row for row in range(len(sizes)) if sizes[row] <= budget]
    assert small[:1] == fitting[:1]


def test_a_budget_takes_what_still_fits():
    sizes = np.array([50, 30, 40, 5])
    assert within(np.array([[1, 0, 2, 3, -1]]), sizes, 75) == [[1, 2, 3]]
    assert [within(np.arange(4)[None], sizes, budget) for budget in (4, 125)] == [[[]], [[0, 1, 2, 3]]]


def test_a_server_stands_where_its_nearest_text_does(catalog, embedder):
    task, stage = ["write a mail to a file"], Stage("tool_to_agent", None, None)
    # Of the servers' own texts that of Files is nearest; of all texts that of a tool of Mail.
    assert np.argmax(embedder.encode(task) @ embedder.encode(server_texts(catalog, named=True)).T) == 0
    scores = router.server_scores(stage, catalog, task, seed=0, embedder=embedder)
    # Counts of file, read, write, mail, map and route in the nearest texts, by hand; Maps shares no word.
    np.testing.assert_allclose(scores, [[4 / 24**0.5, 5 / 27**0.5, 0]], rtol=1e-6)


def test_the_oracle_knows_the_labels_servers(catalog):
    scores = router.oracle(catalog, [((0,), (1, 3)), ((4,),)])
    np.testing.assert_allclose(scores, [[1, 0.5, 0], [0, 0, 1]])


def base():
    texts = ("language", "system", "tools", "category", "subcategory", "url", "author", "license")
    servers = pd.DataFrame({"id": [5, 9], "name": ["Old files", "Old mail"], "description": ["read file", "send mail"]})
    servers = servers.assign(**dict.fromkeys(texts, ""), stars_count=[3, 4], is_official=[True, False])
    tasks = pd.DataFrame({"id": [1, 2], "name": ["a", "b"], "description": ["x", "y"]})
    tasks = tasks.assign(**dict.fromkeys(("language", "category", "subcategory", "theme"), ""))
    lists = (np.array([0]), np.array([1]))
    data = Dataset("old", servers, tasks, relevance_from_lists(lists, 2), lists)
    nothing = sp.csr_matrix((2, 2), dtype=np.float32)
    return data, Split("cold", data.relevance, nothing, nothing, cold=True)


def test_new_servers_and_tasks_stand_behind_the_base_without_labels(catalog):
    old = base()
    data, split, rows, columns = router.joined(catalog, ["read it", "send it"], old)
    assert (data.n_tasks, data.n_servers) == (4, 5)
    assert (rows.tolist(), columns.tolist()) == ([2, 3], [2, 3, 4])
    assert data.servers["id"].tolist() == [5, 9, 10, 11, 12]
    assert data.servers.dtypes.to_dict() == old[0].servers.dtypes.to_dict()
    assert data.server_texts()[2] == "Files \n read and write a file \n read_file, write_file"
    assert data.task_texts()[2] == "read it"
    assert split.train.toarray()[:2, :2].tolist() == [[1, 0], [0, 1]]
    assert split.train[2:].nnz == split.train[:, 2:].nnz == split.test.nnz == 0
    # The base itself is left alone.
    assert old[1].train.shape == (2, 2)


@pytest.mark.parametrize("system", ["tfidf", "bm25"])
def test_systems_of_the_study_rank_unseen_servers(catalog, system):
    scores = router.server_scores(Stage(system, None, None), catalog, ["send a mail", "map and route"], seed=1)
    assert scores.shape == (2, 3)
    assert scores.argmax(axis=1).tolist() == [1, 2]


def test_other_stages(catalog, embedder):
    flat = router.server_scores(Stage("all", None, None), catalog, ["x"], seed=1)
    assert flat.tolist() == [[0, 0, 0]]
    zero = router.server_scores(Stage("mcp_zero", None, None), catalog, ["send mail"], seed=1, embedder=embedder)
    assert zero[0].argmax() == 1
    with pytest.raises(StudyError, match="unknown server stage"):
        router.server_scores(Stage("nobody", None, None), catalog, ["x"], seed=1)


def test_measures_by_hand(monkeypatch, catalog):
    monkeypatch.setattr(router, "definition_tokens", lambda _: np.array([10, 20, 30, 40, 50]))
    chosen = router.RouterSettings({"good": Stage("oracle", None, None)}, Settings(), (1, 2), 1, (30, 100), 0)
    queries = QuerySet("q", ("a",), ("t",), (((1,), (4,)),), ("a",))
    servers = np.array([[0.9, 0.1, 0.5]], np.float32)
    runs, lines = router.measure_stage("good", servers, TOOLS, catalog, queries, chosen)
    by = pd.DataFrame(lines).set_index(["servers", "budget"])
    # One server: tools 1 (20 tokens) and 0 (10); two servers add tool 4 (50).
    assert by["server_recall"].tolist() == [0.5, 0.5, 1, 1]
    assert by["tokens_of_these_servers"].tolist() == [30, 30, 80, 80]
    assert by["tool_recall"].tolist() == [0.5, 0.5, 0.5, 1]
    assert by["tokens"].tolist() == [30, 30, 30, 80]
    made = {run.protocol: run.table.drop(columns=["task_id", "seed"]).iloc[0].to_dict() for run in runs}
    assert made["router_budget"] == {"recall@30": 0.5, "hit_rate@30": 1, "recall@100": 0.5, "hit_rate@100": 1}
    assert made["router_servers"] == {"recall@1": 0.5, "hit_rate@1": 1, "recall@2": 1, "hit_rate@2": 1}
    assert made["router"]["recall@1"] == 0.5


def test_the_committed_configuration():
    found = router.router_settings()
    assert {"all", "random", "oracle", "t2mrec"} <= set(found.stages)
    assert found.default_servers in found.servers
    own = {"all", "mcp_zero", "tool_to_agent", "oracle"}
    assert all(stage.system in own or stage.system in choices("system") for stage in found.stages.values())
