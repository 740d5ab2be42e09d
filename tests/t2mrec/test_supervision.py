"""What T2MRec is taught in place of the labels: planted texts, hand-computed positives, no look at other labels."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from study.base.errors import StudyError
from study.t2mrec.supervision import Supervision, add_supervision, card_queries, select_agreeing, without
from tests.baselines.toys import build, make_dataset, split_of

SERVERS = [
    ("Zebra Tables", "An MCP server that extracts tables from PDF documents"),
    ("Postgres", "Query a PostgreSQL database"),
    ("Weather", "Weather forecasts for any city"),
    ("Mail", "Send electronic mail"),
    ("Songs", "Play music and make playlists"),
]
TASKS = ["extract every table of a PDF document", "what will the weather be in Lisbon", "play quiet music"]


@pytest.fixture
def toy(private_cache):
    servers = [{"name": name, "description": text} for name, text in SERVERS]
    tasks = [{"name": "", "description": text} for text in TASKS]
    data = make_dataset(tasks, servers, [[0, 1], [3, 1], [4]])
    return data, split_of(data, [0, 1], [2])


def positives(split):
    return {int(row): split.train[row].indices.tolist() for row in split.tasks("train")}


def test_agreement_keeps_the_label_that_the_text_supports(toy):
    data, split = toy
    kept = select_agreeing(data, split.train, split.tasks("train"), 0.2)  # the nearest of five servers
    assert kept.toarray().nonzero()[1].tolist() == [0]
    assert kept[1].nnz == 0  # neither mail nor a database tells the weather
    everything = select_agreeing(data, split.train, split.tasks("train"), 1.0)
    assert (everything != split.train).nnz == 0


def test_cards_ask_for_every_server_without_its_name(toy):
    data, split = toy
    whole, given = add_supervision(data, split, Supervision(["cards"]))
    assert positives(given) == {3 + row: [row] for row in range(5)}
    assert whole.n_tasks == 8
    assert whole.tasks["id"].is_unique
    queries = card_queries(data.servers, data.tasks)
    assert queries["description"].iloc[0] == "extracts tables from PDF documents"
    assert queries["description"].iloc[1] == "Query a PostgreSQL database"  # another word
    assert without("Songs", "Play songs, and more Songs") == "Play , and more"
    pd.testing.assert_frame_equal(whole.tasks.iloc[:3].reset_index(drop=True), data.tasks)
    # The best answers the training tasks alone.
    alone, both = (Supervision(sources, depth=1) for sources in (["teacher"], ["teacher", "cards"]))
    assert positives(add_supervision(data, split, alone, build("field_dense"))[1]) == {0: [0], 1: [2]}
    _, given = add_supervision(data, split, both, build("field_dense"))
    assert positives(given) == {0: [0], 1: [2]} | {3 + row: [row] for row in range(5)}


def test_other_labels_are_not_looked_at(toy):
    data, split = toy
    other = replace(split, test=sp.csr_matrix(np.ones(data.relevance.shape, np.float32)))
    for source in ("agreement", "teacher", "cards"):
        one, two = (
            add_supervision(data, chosen, Supervision([source], keep=0.4), build("field_dense"))[1]
            for chosen in (split, other)
        )
        assert (one.train != two.train).nnz == 0
        assert one.test.nnz == one.valid.nnz == 0


def test_a_supervision_that_leaves_no_label_is_refused(toy):
    data, split = toy
    nothing = replace(split, train=sp.csr_matrix(split.train.shape, dtype=np.float32))
    with pytest.raises(StudyError, match="leaves no label"):
        add_supervision(data, nothing, Supervision(["agreement"]))
