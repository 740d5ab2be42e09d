"""When the slot filler leaves a parameter empty."""

import numpy as np
import pandas as pd
import pytest

from study.advisor.retrieval.documents import Server, Tool, ToolCatalog
from study.tools.flow import abstention
from study.tools.flow.abstention import COLUMNS, GRID, best_of, decisions, least_probability
from study.tools.flow.samples import Sample, server_groups
from study.tools.flow.slot_filler import SlotFiller
from tests.tools.test_flow_learning import CATALOG, COPYING, FLOW, SAMPLES, URL, parameters

TEXT = "please read a page using https://toronto.org/a for Anna at 7"


@pytest.fixture(scope="module")
def slot_filler():
    return SlotFiller(CATALOG, COPYING).fit(SAMPLES)


def test_a_value_below_the_least_probability_is_left_out(slot_filler):
    (one,) = slot_filler.choose(TEXT, 0, ["url"])
    assert one.option.value == "https://toronto.org/a"
    assert 0.5 < one.probability < 1
    assert slot_filler.fill(TEXT, 0, ["url"], absent=None, least=one.probability) == {"url": one.option.value}
    assert slot_filler.fill(TEXT, 0, ["url"], absent=None, least=one.probability + 1e-6) == {"url": None}
    # Nothing in this text is an address, and a filler that never abstains takes the next best.
    assert slot_filler.fill("read a page for Anna", 0, ["url"]) != {"url": ""}
    assert slot_filler.fill("read a page for Anna", 0, ["url"], least=0.5) == {"url": ""}


def test_a_date_goes_to_no_parameter_that_asks_for_none():
    """The regression is sure of everything: only the words of the parameter decide."""
    stated = {"customer": URL, "dueDate": URL, "note": URL | {"description": "when it ends"}}
    stated |= {"amount": {"type": "number"}, "year": {"type": "integer"}}
    tool = Tool(0, "invoice", "", parameters([*stated], **stated))
    sure = (np.zeros(0, dtype=np.float32), 10.0)
    made = SlotFiller(ToolCatalog("o", (Server("x", "X", ""),), (tool,)), COPYING, sure, sure)
    filled = [made.fill("due 2026-12-01", 0, [name], absent=None, least=0.05) for name in stated]
    assert filled[:3] == [{"customer": None}, {"dueDate": "2026-12-01"}, {"note": "2026-12-01"}]
    assert filled[3:] == [{"amount": None}, {"year": 2026}]  # nor does a part of it
    assert made.fill("250 euro, due 2026-12-01", 0, ["amount"], absent=None, least=0.05) == {"amount": 250}
    assert made.fill("due 2026-12-01", 0, ["customer"]) == {"customer": "2026-12-01"}


def test_decisions_by_hand(slot_filler):
    right = Sample("a", TEXT, 0, 0, {"url": "https://toronto.org/a", "unheard": 1}, "a")
    wrong = Sample("b", TEXT, 0, 0, {"url": "https://berlin.org/a"}, "b")
    invented = Sample("c", TEXT, 0, 0, {}, "c")
    found = decisions(slot_filler, [right, wrong, invented])
    own = found[["filled", "given", "right"]].to_numpy().tolist()
    assert own == [[True, True, True], [False, True, False], [True, True, False], [True, False, False]]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([(0.04, True), (0.9, True)], 0.0),
        ([(0.04, False), (0.9, True)], 0.05),
        ([(0.04, False), (0.15, True), (0.15, False), (0.15, False), (0.9, True)], 0.2),
        ([(0.04, False), (0.15, True), (0.15, True), (0.15, False), (0.9, True)], 0.05),
        ([(0.9, False)], 0.0),
    ],
)
def test_the_least_probability_by_hand(rows, expected):
    found = pd.DataFrame([(own, True, True, right) for own, right in rows], columns=COLUMNS)
    assert best_of(found) == expected
    assert expected in GRID


def test_it_is_chosen_on_servers_that_are_held_out(slot_filler, monkeypatch):
    seen = []
    real = SlotFiller.fit
    monkeypatch.setattr(SlotFiller, "fit", lambda self, own, more=(): seen.append(own) or real(self, own, more))
    checked = []
    real_decisions = decisions
    monkeypatch.setattr(
        abstention, "decisions", lambda own, rows: checked.append(list(rows)) or real_decisions(own, checked[-1])
    )
    assert least_probability(SlotFiller(CATALOG, COPYING), SAMPLES) in GRID
    assert sum(map(len, checked)) == len(SAMPLES)
    for train, test in zip(seen, checked, strict=True):
        assert not {one.server for one in train} & {one.server for one in test}


def test_groups_of_servers_by_hand():
    assert server_groups([3] * 5 + [1] * 3 + [2] * 2 + [7], 2) == {3: 0, 1: 1, 2: 1, 7: 0}
    assert server_groups([3], 4) == {3: 0}


def test_the_table_counts_every_parameter_once(bench_like):
    table = abstention.abstention_table(bench_like, [], FLOW).set_index("arguments")
    given = sum(len(one.arguments) for one in SAMPLES)
    assert (table["parameters"] == given).all()
    assert (table["filled_right"] + table["filled_wrong"] + table["left_empty"] == given).all()
    assert table.loc["abstaining", "filled_wrong"] <= table.loc["always", "filled_wrong"]
    assert table.loc["always", "least_high"] == 0


@pytest.fixture
def bench_like(embedder):
    from study.tools.flow import bench as benches

    return benches.assemble(CATALOG, SAMPLES, FLOW, embedder)
